"""Reading ahead: a thread reads the ranges a rank will ask for while the rank computes.

What is asked for is known ahead, since the ranges of a rank follow from its layout. The thread keeps at most ``depth``
answers that nobody has taken::

    asked      0    1    2    3          depth 2
    thread     |r0|r1|  |r2|  |r3|       waits while two answers lie ready
    rank          |c0   |c1   |c2   |    waits once, for the first

Left out: reading with several threads (decoding is one core's work, and the other cores compute), copies to a GPU.
"""

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from heterps_compile.errors import RunError

from .sample_source import Source

_CLOSE_S = 5.0  # how long closing waits for a read that is under way


@dataclass(frozen=True, slots=True)
class Request:
    """A range of samples and the columns of it that are wanted."""

    first: int
    count: int
    columns: tuple[str, ...]


class Prefetcher:
    """A source that is read ahead of the compute.

    It is read by one thread. What is asked must have been announced, in any order that never skips more than ``depth``
    announced requests; each is given as often as it was announced.
    """

    def __init__(self, source: Source, requests: Iterable[Request], *, depth: int = 4) -> None:
        """Begin to read.

        Args:
            source: Only this object reads from it from now on.
            requests: What will be asked, in order; may be endless.
            depth: Answers held that nobody has taken, at most.

        Raises:
            RunError: where the depth is below 1.
        """
        if depth < 1:
            raise RunError(f"reading {depth} ranges ahead is not possible; give one at least")
        self._source = source
        self._depth = depth
        self._requests: Iterator[Request] = iter(requests)
        self._changed = threading.Condition()
        self._ready: list[tuple[Request, dict[str, Tensor]]] = []
        self._error: BaseException | None = None
        self._is_over = False  # nothing more comes: no requests left, an error, or closed
        self._is_closed = False
        self._thread = threading.Thread(target=self._read_ahead, name="prefetch", daemon=True)
        self._thread.start()

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of the columns."""
        return self._source.columns

    @property
    def samples(self) -> int | None:
        """Return the number of samples, None where they never end or nobody knows."""
        return self._source.samples

    def read(self, first: int, count: int, columns: Sequence[str]) -> dict[str, Tensor]:
        """Return a range that was announced, waiting until it is there.

        Raises:
            RunError: where it was not announced, or the reader is closed; what the source raises is raised here.
        """
        request = Request(first, count, tuple(columns))
        with self._changed:
            while (place := self._place_of(request)) is None:
                if self._error is not None:
                    raise self._error
                if self._is_over or len(self._ready) >= self._depth:
                    raise self._unannounced(request)
                self._changed.wait()
            _, answer = self._ready.pop(place)
            self._changed.notify_all()
            return answer

    def close(self) -> None:
        """Stop reading; what was read and not taken is dropped."""
        with self._changed:
            self._is_closed = self._is_over = True
            self._ready.clear()
            self._changed.notify_all()
        self._thread.join(_CLOSE_S)

    def _read_ahead(self) -> None:
        try:
            for request in self._requests:
                if not self._wait_for_room():
                    return
                answer = self._source.read(request.first, request.count, request.columns)
                with self._changed:
                    if self._is_closed:
                        return
                    self._ready.append((request, answer))
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that reads
            with self._changed:
                self._error = error
        finally:
            with self._changed:
                self._is_over = True
                self._changed.notify_all()

    def _wait_for_room(self) -> bool:
        with self._changed:
            while len(self._ready) >= self._depth and not self._is_closed:
                self._changed.wait()
            return not self._is_closed

    def _place_of(self, request: Request) -> int | None:
        return next((place for place, (ready, _) in enumerate(self._ready) if ready == request), None)

    def _unannounced(self, request: Request) -> RunError:
        asked = f"samples {request.first:,} to {request.first + request.count - 1:,}"
        if self._is_closed:
            return RunError(f"{asked} were asked of a reader that is closed")
        held = ", ".join(f"{r.first:,}+{r.count:,}" for r, _ in self._ready) or "nothing"
        return RunError(
            f"{asked} were not announced to the reader that reads ahead, or are too far on (it holds {held}; "
            f"depth {self._depth})"
        )
