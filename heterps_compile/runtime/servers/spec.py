"""What the parameter servers of a run hold, as one value that every rank makes for itself.

The rows of a table are dealt to servers like cards: row r of a table lies on server r mod n as its row r div n, so
that frequent rows, which often have small numbers, are spread evenly.

Left out: how servers talk (``protocol.py``).
"""

from dataclasses import dataclass
from pathlib import Path

from heterps_compile.errors import RunError

from .optimizers import SparseOptimizer

WIRES = ("float32", "float16", "bfloat16")
FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Growth:
    """How a table grows and shrinks.

    Attributes:
        admit_after: Pushes that an id must have had, this one included, before its row is trained.
        unseen_steps: A row that no push has touched for so many steps is evicted; None for never.
        least_shows: A row whose show score is below is evicted; None for never.
        decay: What the show score, which every push raises by 1, is multiplied by whenever rows are looked over.
        every: Steps between two times that rows are looked over.
        seed: Of what new rows are drawn from.
    """

    admit_after: int = 1
    unseen_steps: int | None = None
    least_shows: float | None = None
    decay: float = 0.98
    every: int = 1000
    seed: int = 0


@dataclass(frozen=True, slots=True)
class TableSpec:
    """One table of float32 rows.

    Attributes:
        name: The parameter's name in the model.
        rows: How many.
        width: Numbers in a row.
        weights: The safetensors file in which its first rows lie, under that name.
        trained: Whether gradients are wanted.
        states: Where the first state of its optimiser lies, number by number of a weight: a safetensors file and the
            name in it; none where it is what the optimiser starts with.
        updates: How many updates it has had.
        growth: How it grows, where any int64 may be an id; None where its ids are the numbers of its rows.
    """

    name: str
    rows: int
    width: int
    weights: Path
    trained: bool = True
    states: tuple[tuple[Path, str], ...] = ()
    updates: int = 0
    growth: Growth | None = None

    @property
    def shown(self) -> str:
        """Return the name as it may be printed."""
        return repr(self.name)


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """The servers of one run.

    Attributes:
        workers: Ranks that pull and push, each once per step.
        ranks: Ranks of the servers, in the order of their shards.
        tables: What they hold.
        optimizer: What applies gradients.
        staleness: 0: a step's gradients are summed over all workers and applied at once, and the next step's pulls
            wait for that. s > 0: each worker's gradients are applied as they come, and pulls of step t wait only for
            those of steps up to t - 1 - s.
        clips: Whether a step's gradients are held until a worker, who has learned their norm, says what to multiply
            them by; with a staleness of 0 alone.
        save_every: Steps between two checkpoints of the run. With a staleness, what is pushed for steps after a
            checkpoint waits until that is written. None where there are none but at the end.
        memory_bytes: What each server may hold in memory, tables, optimiser state and index; None for all it needs.
            What does not fit lies in files in ``directory``.
        directory: Where those files are made; they have no name, and so vanish with the server.
        wire: Type of rows and gradients in messages.
        first_step: The first step of the run: 0, or where a resumed run goes on.
        resume: A folder that ``Client.save`` wrote, to start from instead of the weights.
        weights_only: Whether the state of the optimiser that lies there is left where it is.
    """

    workers: tuple[int, ...]
    ranks: tuple[int, ...]
    tables: tuple[TableSpec, ...]
    optimizer: SparseOptimizer
    staleness: int = 0
    clips: bool = False
    save_every: int | None = None
    memory_bytes: int | None = None
    directory: Path | None = None
    wire: str = "float32"
    first_step: int = 0
    resume: Path | None = None
    weights_only: bool = False

    def __post_init__(self) -> None:
        if not self.ranks or not self.workers or not self.tables:
            raise RunError(
                f"{len(self.ranks)} parameter servers for {len(self.tables)} tables and {len(self.workers)} workers: "
                f"at least one of each is needed"
            )
        if self.staleness < 0:
            raise RunError(f"the staleness is {self.staleness}; it must be 0 (synchronous) or more steps")
        grown = next((table for table in self.tables if table.growth is not None), None)
        if grown is not None and self.memory_bytes is not None:
            raise RunError(
                f"table {grown.shown} grows, and its rows lie in memory alone; leave out the bound of the servers' "
                f"memory"
            )
        if self.clips and self.staleness != 0:
            raise RunError("gradients that are applied as they come have no norm to clip; give a staleness of 0")
        if self.wire not in WIRES:
            raise RunError(f"rows cannot travel as {self.wire!r}; expected {', '.join(WIRES)}")
        if self.memory_bytes is not None and self.memory_bytes <= 0:
            raise RunError(f"a parameter server has {self.memory_bytes} bytes of memory; give it some")

    @property
    def count(self) -> int:
        """Return how many servers there are, and so shards of every table."""
        return len(self.ranks)


def record_bytes(table: TableSpec, states: int) -> int:
    """Return the bytes of one row with its optimiser state of ``states`` numbers a weight."""
    return table.width * (1 + states) * FLOAT_BYTES


def shard_rows(rows: int, count: int, index: int) -> int:
    """Return how many of ``rows`` rows lie on server ``index`` of ``count``."""
    return (rows - index + count - 1) // count


def allot_memory(needs_bytes: tuple[int, ...], memory_bytes: int | None) -> tuple[int, ...]:
    """Divide a server's memory among its tables: small ones whole, what is left in equal parts to the large ones.

    ::

        needs    1   2   9   9     memory 12
        gets     1   2  4.5 4.5

    Args:
        needs_bytes: Of every table, were it all in memory.
        memory_bytes: None for all that is needed.
    """
    if memory_bytes is None or sum(needs_bytes) <= memory_bytes:
        return needs_bytes
    gets = [0] * len(needs_bytes)
    left = memory_bytes
    smallest_first = sorted(range(len(needs_bytes)), key=lambda i: needs_bytes[i])
    for position, table in enumerate(smallest_first):
        gets[table] = min(needs_bytes[table], left // (len(needs_bytes) - position))
        left -= gets[table]
    return tuple(gets)
