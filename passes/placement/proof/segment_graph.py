"""Which graph of segments a search runs on: a list of them, or tiles made as they are needed.

Left out: paths over it (``paths.py``, ``tiled_paths.py``).
"""

from heterps_compile.passes.deadline import Deadline
from heterps_compile.passes.placement.geometry import Chain, Segments

from .linked_chain import LinkedChain
from .paths import ListedSegments, Prices, SegmentGraph
from .tiled_paths import TiledSegments


def segment_graph(
    chain: Chain | LinkedChain, prices: Prices, deadline: Deadline, segments: Segments | None = None
) -> SegmentGraph:
    """Return some segments of a chain with their prices; all of them without a list."""
    if segments is None and isinstance(chain, Chain):
        return TiledSegments(chain, prices, deadline)
    return ListedSegments(
        chain.all_segments(deadline) if segments is None else segments, prices, chain.length, deadline
    )
