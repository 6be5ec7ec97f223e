"""The placement group of Ray that a trial runs in, where no node has all that its worker takes.

Left out: making the group (``ray_process.py``), starting ranks in it (``runtime/engines/``).
"""

import json
import os
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from heterps_compile.errors import RunError

from .trial_values import VARIABLE as VALUES_VARIABLE

if TYPE_CHECKING:
    from heterps_compile.runtime.launch.run_options import RunOptions

VARIABLE = "HETERPS_TRIAL_GROUP"
"""Where the process of a trial finds its group."""


@dataclass(frozen=True, slots=True)
class TrialGroup:
    """A placement group.

    Attributes:
        address: Of the cluster.
        namespace: Of the search in it.
        name: Of the group.
    """

    address: str
    namespace: str
    name: str

    def to_json(self) -> str:
        """Return it as the variable has it."""
        return json.dumps(asdict(self))


def group_of_trial() -> TrialGroup | None:
    """Return the group of the trial that this process is; None where it runs on this machine alone."""
    text = os.environ.get(VARIABLE)
    return None if text is None else TrialGroup(**json.loads(text))


def run_in_group(options: "RunOptions", group: TrialGroup) -> None:
    """Run a trial with a rank in every bundle that its plan needs.

    Raises:
        HeterpsError: where the run cannot start, or fails.
    """
    from heterps_compile.runtime.engines.contract import Job, Streams  # noqa: PLC0415 - only where a trial spans nodes
    from heterps_compile.runtime.engines.ray_cluster import Ray, connected  # noqa: PLC0415 - as above
    from heterps_compile.runtime.launch.prepare import prepare  # noqa: PLC0415 - as above

    job = Job(options, prepare(options))
    engine = Ray(ray_address=group.address)
    engine.check(job)
    values = {VALUES_VARIABLE: os.environ[VALUES_VARIABLE]}
    with connected(group.address, group.namespace):
        code = engine.start_within(job, group.name, values, Streams(sys.stdout, sys.stderr))
    if code:
        raise RunError(f"its run on several nodes left with exit code {code}")
