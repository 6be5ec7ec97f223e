"""Report times of a plan that are extrapolated: of which layer or message, by which factor, and what follows.

A time is extrapolated where one size alone was measured and another is used, or where a size is used that is more than
twice the largest measured one, or less than half of the smallest.
"""

from collections.abc import Iterator, Sequence

from heterps_compile.units import counted, format_bytes

from .given_plan import GivenStage
from .given_problem import GivenProblem
from .message_times import timed, untimed
from .problem_laws import shown

_FAR = 2.0


def is_extrapolated(measured: Sequence[float], size: float) -> bool:
    """Check if a size is far from all that were measured; they ascend."""
    is_alone = len(measured) == 1 and size != measured[0]
    return is_alone or size > _FAR * measured[-1] or size < measured[0] / _FAR


def layer_notes(problem: GivenProblem, stages: Sequence[GivenStage], samples: int) -> Iterator[str]:
    """Yield layers of a plan whose times are extrapolated to so many samples; those timed alike share a note."""
    found: dict[tuple[str, tuple[int, ...]], dict[str, None]] = {}
    for stage in stages:
        for kind in stage.replicas:
            for layer in (problem.layers[index] for index in stage.layers):
                times = layer.by_group[kind.device, kind.tensor_parallel]
                if any((*times.forward_s, *times.backward_s)) and is_extrapolated(times.samples, samples):
                    found.setdefault((kind.device, times.samples), {})[layer.name] = None
    for (device, measured), names in found.items():
        first, *more = names
        layers = f"layer {shown(first)}" + (f" and {counted(len(more), 'more layer')}" if more else "")
        nearest = measured[-1] if samples > measured[0] else measured[0]
        used = f"used at {samples:,}, {samples / nearest:.3g} times that"
        if len(measured) == 1:
            paid = "too long" if samples > nearest else "too short"
            follows = f"taken in proportion, {paid} by what each micro-batch pays besides its samples; time a second"
        else:
            follows = "read off the line through the nearest two sizes, which no time there confirms; time a nearer"
        yield f"{layers} on {shown(device)}, timed at {counted(nearest, 'sample')}, {used}: {follows} size"


def all_reduce_notes(
    problem: GivenProblem, number: int, stage: GivenStage, held_bytes: Sequence[float]
) -> Iterator[str]:
    """Yield types of a stage whose all-reduce was not measured among as many units, or of a far size."""
    missing = [] if problem.summed_every is not None else untimed(problem, stage.replicas)
    if missing:
        of_all = ", and counts where each of its types has one" if len(stage.replicas) > 1 else ""
        yield (
            f"all_reduces has none of {stage.width} units of {' and '.join(map(shown, missing))}{of_all}: what "
            f"stage {number} takes to sum its gradients follows from the pool's rates"
        )
        return
    sizes = zip(stage.replicas, held_bytes, strict=True)
    pairs = [(size_bytes, each) for kind, size_bytes in sizes for each in timed(problem, [kind], stage.width)]
    for size_bytes, measured in pairs if problem.summed_every is None else ():
        nearest = min(measured.sizes_bytes, key=lambda known: abs(known - size_bytes))
        if is_extrapolated(measured.sizes_bytes, size_bytes):
            yield (
                f"stage {number} sums {format_bytes(size_bytes)} of gradients on {shown(measured.device)}, "
                f"{size_bytes / nearest:.3g} times the nearest size of all_reduces: its time follows the line through "
                f"the sizes there"
            )
