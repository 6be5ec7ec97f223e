"""What a rank is started with, what it has once it has context, and what a run came to."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from heterps_compile.errors import SIGNALLED
from heterps_compile.runtime.pipeline.layout import Layout
from heterps_compile.runtime.validation.result import Validation
from heterps_compile.strict_json import received

from .membership import Membership
from .prepare import Prepared
from .progress import ProgressRecorder
from .run_options import RunOptions
from .training_file import Training
from .watch import Watch

if TYPE_CHECKING:
    import torch

    from heterps_compile.runtime.c10d import Store
    from heterps_compile.runtime.data.sample_source import Source

STEPS_KEY = "steps"
"""Where rank 0 says in the store how many steps the run has."""

RESULT_KEY = "result"
"""Where rank 0 leaves the result in the store."""


@dataclass(frozen=True, slots=True)
class RankSpec:
    """What a rank is started with.

    Attributes:
        options: Of the run.
        training: Loss and optimiser, where they are given as objects; else they are read from the options' file.
        source: The data, where they are given as an object.
        validation: The data to validate on, where they are given as an object.
        parent: Process of the launcher; None under torchrun.
        telemetry: Folder for what ranks tell of their steps; None for nothing.
        prints_summary: Whether rank 0 prints what the run came to, where there is no launcher that does.
        checked_sha256: Of the plan file whose folder the launcher has checked; None where this rank does.
        folder: Of the launcher, with the store and the heartbeats of the run; None where there is no launcher.
    """

    options: RunOptions
    training: Training | None = None
    source: "Source | None" = None
    validation: "Source | None" = None
    parent: int | None = None
    telemetry: Path | None = None
    folder: Path | None = None
    prints_summary: bool = False
    checked_sha256: str | None = None


@dataclass(frozen=True, slots=True)
class RankContext:
    """What a rank has once all agree.

    Attributes:
        spec: What it was started with.
        member: Who it is.
        prepared: The run.
        store: The main thread's connection to the store.
        watch: Watches over the rank.
        progress: What it does.
        device: Where it computes.
        machine_of: The machine of every rank; empty where all are on one.
    """

    spec: RankSpec
    member: Membership
    prepared: Prepared
    store: "Store"
    watch: Watch
    progress: ProgressRecorder
    device: "torch.device"
    machine_of: tuple[int, ...] = ()

    @property
    def options(self) -> RunOptions:
        """Return the options of the run."""
        return self.spec.options

    @property
    def layout(self) -> Layout:
        """Return the layout of the run's ranks."""
        return self.prepared.layout

    @property
    def rank(self) -> int:
        """Return its number."""
        return self.member.rank


@dataclass(frozen=True, slots=True)
class Result:
    """What a run came to, as rank 0 tells it.

    Attributes:
        first_step: The step it began with.
        steps: Done in all, those before it included.
        batch: Samples in a step.
        stopped_by: The signal that ended it early; 0 for none.
        checkpoint: Folder of the last checkpoint; "" for none.
        filled: Samples of the last step that only filled it up.
        skipped: Steps of this run that changed no weight, since gradients were not finite in float16.
        validations: Those of this run, in their order; what ranks that failed had told of stands in the log alone.
        stopped_after: Validations without a better one that ended it (``--stop-after``); 0 where they did not.
        restarts: How often it went on from the last checkpoint after a process had failed.
        resizes: How often it went on with other widths.
        best_step: Steps done at the best validation (``--keep-best``), earlier runs included; 0 for none.
        best_checkpoint: Folder of its checkpoint; "" for none.
    """

    first_step: int
    steps: int
    batch: int
    stopped_by: int = 0
    checkpoint: str = ""
    filled: int = 0
    skipped: int = 0
    validations: tuple[Validation, ...] = ()
    stopped_after: int = 0
    restarts: int = 0
    resizes: int = 0
    best_step: int = 0
    best_checkpoint: str = ""

    @property
    def exit_code(self) -> int:
        """Return 0, or 128 and the signal."""
        return SIGNALLED + self.stopped_by if self.stopped_by else 0

    def to_json(self) -> str:
        """Return text that the launcher reads."""
        return json.dumps(asdict(self))


def result_from_json(text: bytes) -> Result:
    """Read what :meth:`Result.to_json` wrote.

    Raises:
        RunError: where it is something else.
    """
    return received(Result, text, "the result of the run")
