"""Reading the ranks' files while they are written.

A line counts once its end is there: a rank may be in the middle of writing one. A step counts once all ranks have told
of it. A rank that died tells no more, and its steps stay incomplete, which is not an error here: the run's own watch
says why it ended.

Left out: files of other machines (each machine's launcher follows its own ranks, or a shared folder has all of them).
"""

import os
from pathlib import Path

from heterps_compile.errors import RunError

from .events import RankSpans, RankStart, RankStep, RankTables, RankValidation, from_line
from .rank_recorder import FILE_NAME
from .step_report import StepReport, step_report


class RunFollower:
    """Follows the files of a run's ranks.

    Attributes:
        starts: Of the ranks that began, by rank.
        spans: What traced steps consist of, in the order it came.
    """

    def __init__(self, directory: Path, world_size: int) -> None:
        """Follow the ranks 0 to ``world_size - 1`` that write to a directory; it need not exist yet.

        Args:
            directory: Of the files.
            world_size: Ranks in all.
        """
        self.starts: dict[int, RankStart] = {}
        self.spans: list[RankSpans] = []
        self._paths = [directory / FILE_NAME.format(rank=rank) for rank in range(world_size)]
        self._places = [0] * world_size
        self._others: list[RankValidation | RankTables] = []
        self._steps: dict[int, list[RankStep]] = {}
        self._last: StepReport | None = None

    def poll(self) -> list[StepReport]:
        """Read what is new; give the steps that are complete now, in their order.

        Raises:
            RunError: where a file cannot be read.
            InputError: where a line is none that a rank writes.
        """
        for rank, path in enumerate(self._paths):
            for line in self._new_lines(rank, path):
                event = from_line(line)
                if isinstance(event, RankStart):
                    self._start(event)
                elif isinstance(event, RankSpans):
                    self.spans.append(event)
                elif isinstance(event, RankValidation | RankTables):
                    self._others.append(event)
                else:
                    self._steps.setdefault(event.step, []).append(event)
        complete = sorted(step for step, ranks in self._steps.items() if len(ranks) == len(self._paths))
        return [self._report(self._steps.pop(step)) for step in complete]

    def take_others(self) -> list[RankValidation | RankTables]:
        """Return the validations and counts of tables that :meth:`poll` has read since the last call."""
        taken, self._others = self._others, []
        return taken

    def _start(self, start: RankStart) -> None:
        if start.rank in self.starts:  # what it told before was of another run
            self.spans = [spans for spans in self.spans if spans.rank != start.rank]
            for ranks in self._steps.values():
                ranks[:] = [rank for rank in ranks if rank.rank != start.rank]
        self.starts[start.rank] = start

    def _report(self, ranks: list[RankStep]) -> StepReport:
        last = self._last
        is_next = last is not None and last.step + 1 == ranks[0].step
        before_s = {rank.rank: rank.ended_s for rank in last.ranks} if last is not None and is_next else {}
        self._last = step_report(self.starts, ranks, before_s)
        return self._last

    def _new_lines(self, rank: int, path: Path) -> list[str]:
        try:
            with path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self._places[rank]:  # begun anew, after a run that left its files
                    self._places[rank] = 0
                file.seek(self._places[rank])
                content = file.read()
        except FileNotFoundError:
            return []  # the rank has not begun
        except OSError as error:
            raise RunError(f"cannot read the telemetry in {os.fspath(path)!r}: {error.strerror}") from error
        whole = content[: content.rfind(b"\n") + 1]
        self._places[rank] += len(whole)
        return whole.decode("ascii", "replace").splitlines()
