"""What a review comes to: the exit codes of ``check``, ``update`` and ``diff``, of one plan and of many.

====  ==================================================================================================
code  meaning
====  ==================================================================================================
0     fine: the plan may stay, was written anew, or changed in nothing that counts
1     changed, or fails: a change that counts, a plan that does not hold, a better one beyond the tolerance
2     could not be judged or written: nothing to read, nothing that fits together, or wrong usage
====  ==================================================================================================

Of many plans the worst counts, and the order of the codes is that of bad to worse: a plan that nobody could judge is
worse than one that is known to fail.

Left out: a run that was interrupted (130), bugs of ours (``cli/main.py``).
"""

from collections.abc import Iterable
from enum import IntEnum

from heterps_compile.errors import HeterpsError, InfeasibleError, StalePlanError


class Verdict(IntEnum):
    """What a review comes to, as an exit code; the greater the worse."""

    FINE = 0
    FAILS = 1
    NOT_JUDGED = 2


REVIEW_EXIT_CODES = (
    "Exit codes: 0 fine: nothing that counts changed, the plan may stay, or was written anew; 1 changed, or fails; "
    "2 could not be judged or written, or wrong usage; 130 interrupted."
)
"""For the help of every command that reviews."""


def verdict_of_error(error: HeterpsError) -> Verdict:
    """Return what an error says of a plan: one that fits the model no more, or that none can replace, fails."""
    return Verdict.FAILS if isinstance(error, InfeasibleError | StalePlanError) else Verdict.NOT_JUDGED


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst of some verdicts; ``FINE`` of none."""
    return max(verdicts, default=Verdict.FINE)
