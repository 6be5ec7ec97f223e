"""Measure what a message between two processes of this machine takes, sent as a pipeline sends it.

One message goes to and fro at several sizes; half of a round is one way. Of all rounds at a size the lower quartile
counts: where another process holds the core, a round waits for a tick of the kernel's clock, which is a hundred times
what the message takes and says nothing of the link. Then a fixed number of bytes is moved by one
pair of processes, by two pairs that share it, and so on: how far more pairs shorten it is beta of the cost model. Beta
of a layer is that of as many bytes as it reads of the model's inputs: few bytes are mostly latency, which no replicas
divide.

Left out: links between machines (``host_links.py``), and between GPUs.
"""

import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from heterps_compile.cost.profile import Fitted, LinkProfile

from .clock import lower_quartile
from .fit import fit_link, fit_parallel_fraction
from .measuring_processes import NotMeasured, hear, started, tell

_LIMIT_S = 240.0
_NOT_MEASURED = NotMeasured("messages between processes", "--no-link")
_PARTS = 4
MOVED_BYTES = 1 << 23
_MOST_SIZES = 8


@dataclass(frozen=True, slots=True)
class MeasuredLink:
    """What was measured between processes of this machine.

    Attributes:
        link: What one message takes.
        data_parallel: beta of :data:`MOVED_BYTES`; None where there is one pair.
        by_size: beta of fewer bytes.
    """

    link: LinkProfile
    data_parallel: Fitted | None
    by_size: Mapping[int, Fitted]


def measure_link(pairs: int, sizes_bytes: Iterable[int] = ()) -> MeasuredLink:
    """Measure the link between processes of this machine, and the parallel fraction of its data movement.

    Args:
        pairs: Up to so many pairs of processes at once.
        sizes_bytes: That beta is wanted of besides: of those below :data:`MOVED_BYTES` the 8 largest are measured,
            and beyond it latency is next to nothing.

    Raises:
        RunError: where the processes cannot talk.
    """
    others = sorted({size for size in sizes_bytes if 0 < size < MOVED_BYTES}, reverse=True)[:_MOST_SIZES]
    moved = ",".join(map(str, (MOVED_BYTES, *others)))
    with tempfile.TemporaryDirectory(prefix="heterps-link-") as folder:
        module = ["heterps_compile.profiling.link_process", folder, str(2 * pairs), moved]
        with started(module, 2 * pairs, 1, _LIMIT_S, _NOT_MEASURED) as processes:
            for rank, process in enumerate(processes):
                tell(process, str(rank))
            read = json.loads(hear(processes[0]))
    sizes_bytes = [int(size) for size in read["times_s"]]
    link = fit_link(
        sizes_bytes, [lower_quartile(times) for times in read["times_s"].values()], "processes of one machine"
    )
    fitted = {
        int(size): fit_parallel_fraction({int(count): _lower_quartiles(times) for count, times in by_count.items()})
        for size, by_count in read["moves_s"].items()
    }
    by_size = {size: beta for size, beta in fitted.items() if beta is not None}
    return MeasuredLink(link, by_size.pop(MOVED_BYTES, None), by_size)


def _lower_quartiles(times_s: Sequence[float]) -> list[float]:
    """Return the lower quartile of each part of the rounds, so that their differences tell the error."""
    return [lower_quartile(times_s[part::_PARTS]) for part in range(_PARTS)]
