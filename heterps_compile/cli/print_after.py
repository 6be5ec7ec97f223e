"""``--print-after PASS``: the draft as it stands after a pass.

Left out: the text (``report/draft_text.py``).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from heterps_compile.errors import UnknownNameError

from .output import ProgressLine, printing

if TYPE_CHECKING:
    from heterps_compile.passes.contract import Pass
    from heterps_compile.passes.drafts import Draft


def draft_printer(
    names: tuple[str, ...], stream: TextIO, progress: ProgressLine, passes: str | None = None
) -> "Callable[[Pass, Draft], None]":
    """Return an observer that prints the draft after the named passes of a pipeline, given as text.

    Raises:
        UnknownNameError: where there is no such pass.
    """
    if not names:
        return lambda _step, _draft: None
    from heterps_compile.passes.pipeline import as_pipeline  # noqa: PLC0415 - the passes
    from heterps_compile.report.draft_text import draft_text  # noqa: PLC0415 - as above

    known = [step.name for step in as_pipeline(passes)]
    for name in names:
        if name not in known:
            raise UnknownNameError("pass", name, known)

    def observe(step: "Pass", draft: "Draft") -> None:
        if step.name in names:
            progress.close()
            with printing(f"the draft after {step.name}"):
                stream.write(draft_text(step, draft))
                stream.flush()

    return observe
