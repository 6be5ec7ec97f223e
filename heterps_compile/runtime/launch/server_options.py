"""The options of a run's parameter servers, declared as those of the run itself.

Left out: the run's other options (``run_options.py``).
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from heterps_compile.cost.memory import SERVER_OPTIMIZERS
from heterps_compile.options import Amount, Choice, Size, Whole, Words

from .option_fields import FilePath, training_option

_served_option = partial(training_option, needs=("parameter_servers",))
_GROWN = ("parameter_servers", "grow_tables")
_grown_option = partial(training_option, needs=_GROWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """The parameter servers of a run; the help of each option says what it is."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "strict": True}

    count: int = training_option(
        "--parameter-servers", Whole(0), "Serve embedding tables from N.", metavar="N", default=0
    )
    optimizer: str = _served_option(
        "--server-optimizer", Choice(SERVER_OPTIMIZERS), "Of the rows.", default=SERVER_OPTIMIZERS[0]
    )
    learning_rate: float = _served_option(
        "--server-learning-rate", Amount(above_zero=True), "Of that optimizer.", metavar="X", default=0.01
    )
    weight_decay: float = _served_option(
        "--server-weight-decay",
        Amount(),
        "L2, as that optimizer's of torch; of rows as they are touched.",
        metavar="X",
        default=0.0,
    )
    memory_bytes: int | None = _served_option(
        "--server-memory", Size(), "Of each server; the rest of the rows lies on disk.", metavar="SIZE"
    )
    directory: str | None = training_option(
        "--server-directory",
        FilePath(),
        "Where the rest lies.",
        metavar="DIR",
        default_words="a temporary folder",
        needs=("parameter_servers", "server_memory"),
    )
    staleness: int = _served_option(
        "--staleness", Whole(0), "Steps by which pulls may miss pushes.", metavar="STEPS", default=0
    )

    grow_tables: tuple[str, ...] = _served_option(
        "--grow-tables",
        Words(),
        "Any int64 is an id of these tables: new ones get rows. '*' for all.",
        metavar="NAMES",
        default=(),
    )
    admit_after: int = _grown_option(
        "--admit-after", Whole(), "Steps with an id before its row is trained.", metavar="N", default=1
    )
    evict_unseen: int | None = _grown_option(
        "--evict-unseen", Whole(), "Evict rows that no step has touched for so long.", metavar="STEPS"
    )
    evict_below: float | None = _grown_option(
        "--evict-below", Amount(above_zero=True), "Evict rows whose decayed count of steps is below.", metavar="SCORE"
    )
    show_decay: float = training_option(
        "--show-decay",
        Amount(most=1),
        "What that count is multiplied by whenever rows are looked over.",
        metavar="X",
        default=0.98,
        needs=(*_GROWN, "evict_below"),
    )
    evict_every: int = _grown_option(
        "--evict-every", Whole(), "Steps between two times that they are.", metavar="STEPS", default=1000
    )
