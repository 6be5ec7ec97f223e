"""Run all stages in this process, one after the other.

Left out: pipelining, processes, devices; a stage runs where its backend put it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from heterps_compile.errors import BackendError
from heterps_compile.ir.partition import Boundary
from heterps_compile.progress import check


def run_stages(
    boundaries: Sequence[Boundary],
    stages: Sequence[Callable[..., tuple[Any, ...]]],
    values: Mapping[str, Any],
    keep: Sequence[str],
) -> dict[str, Any]:
    """Run stages in order; a value is dropped after its last reader.

    Args:
        boundaries: Names of each stage's inputs and outputs.
        stages: What runs, in the same order.
        values: Graph inputs by name.
        keep: Names to give back: graph outputs; names that no stage makes are left out.

    Returns:
        The kept values by name.

    Raises:
        BackendError: where a stage gives another number of values than it promised.
        CancelledError: where this is part of a compilation that is cancelled.
    """
    live = dict(values)
    last_reader = {name: index for index, stage in enumerate(boundaries) for name in stage.inputs}
    kept = set(keep)
    for index, (boundary, stage) in enumerate(zip(boundaries, stages, strict=True)):
        check()
        results = stage(*(live[name] for name in boundary.inputs))
        if len(results) != len(boundary.outputs):
            raise BackendError(f"stage {index} gave {len(results)} values, its plan says {len(boundary.outputs)}")
        live.update(zip(boundary.outputs, results, strict=True))
        for name in (*boundary.inputs, *boundary.outputs):
            if last_reader.get(name, -1) <= index and name not in kept:
                live.pop(name, None)
    return {name: live[name] for name in kept if name in live}
