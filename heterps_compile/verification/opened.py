"""Compare a model whose batch was opened with the model as it was, on the samples one by one.

What is compared is the whole model at the opened batch; that the stages agree with it is compared elsewhere. Of a large
batch some samples are run, spread over it.

Left out: the proof that samples do not mix (``frontends/open_batch/``).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from heterps_compile.errors import VerificationError
from heterps_compile.escape import printable
from heterps_compile.ir.graph import ONNX, Graph, OpenedBatch
from heterps_compile.plan.plan import Verification
from heterps_compile.runtime.verify import Difference, compare_value

from .calls import as_now
from .float64 import oracle_in_float64, whole_in_float64
from .pair import SKIP, Pair

_MOST_SAMPLES = 16

Run = Callable[[Mapping[str, Any]], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class _Samples:
    """Which samples are run, as parts of the batch that the model fixes."""

    opened: OpenedBatch
    parts: Sequence[Sequence[int]]

    @classmethod
    def of(cls, opened: OpenedBatch, batch: int) -> "_Samples":
        count = min(batch, max(_MOST_SAMPLES, opened.fixed))
        chosen = np.linspace(0, batch - 1, count).round().astype(int).tolist()
        fixed = opened.fixed
        return cls(opened, [[chosen[(at + i) % count] for i in range(fixed)] for at in range(0, count, fixed)])

    @property
    def count(self) -> int:
        """Return how many there are, each once."""
        return len({sample for part in self.parts for sample in part})

    def take(self, values: Mapping[str, Any], part: Sequence[int]) -> dict[str, Any]:
        """Return some samples of arrays by name; those without samples as they are."""
        axes = self.opened.axes
        return {name: take_rows(v, part, axes[name]) if name in axes else v for name, v in values.items()}


def take_rows(value: Any, part: Sequence[int], axis: int) -> Any:
    """Return some rows of an array or a tensor."""
    if hasattr(value, "detach"):
        return value.index_select(axis, value.new_tensor(list(part)).long())
    return np.take(value, part, axis)


def compare_opened(pair: Pair, found: Verification) -> tuple[Verification, tuple[str, ...]]:
    """Compare the opened model with the samples one by one; return what was found with it, and notes.

    Args:
        pair: The model at the opened batch.
        found: Of its stages.

    Raises:
        VerificationError: naming the output that differs, and by how much.
    """
    opened = pair.graph.opened
    if opened is None:
        return found, ()
    original = opened.original()
    batch = next(v.shape[opened.axes[n]] for n, v in pair.inputs[0].items() if n in opened.axes)
    samples = _Samples.of(opened, batch)
    try:
        difference = _compare(pair, samples, pair.backend.reference(original))
        notes: tuple[str, ...] = ()
    except VerificationError as error:
        difference, notes = _compare_in_float64(pair, samples, original, error)
    return replace(found, samples=samples.count, samples_max_rel=difference.max_rel), notes


def _compare(pair: Pair, samples: _Samples, alone: Run) -> Difference:
    found = Difference()
    with pair.backend.reproducible(pair.graph, pair.seed):
        whole = as_now(pair.whole(pair.inputs[0]))
    for part in samples.parts:
        with pair.backend.reproducible(pair.graph, pair.seed):
            theirs = as_now(dict(zip(pair.graph.outputs, alone(samples.take(pair.inputs[0], part)), strict=True)))
        ours = samples.take(whole, part)
        for name in pair.compared.outputs:
            what = f"output {printable(name)!r}"
            sizes = [tuple(getattr(value, "shape", ())) for value in (ours[name], theirs[name])]
            if sizes[0] != sizes[1]:
                raise VerificationError(
                    f"{what} is of shape {list(sizes[0])} at the opened batch and {list(sizes[1])} at "
                    f"that which the model fixes, and has no dimension for the samples; {_way_out(pair)}"
                )
            one = compare_value(f"{what} of the samples one by one", ours[name], theirs[name], np.inf)
            found = found.joined(one)
            if one.max_rel > pair.tolerance:
                raise VerificationError(
                    f"{what} at the opened batch differs from that of the samples one by one by {one.max_abs:.3g}, "
                    f"{one.max_rel:.3g} of its scale; allowed is {pair.tolerance:g}; {_way_out(pair)}"
                )
    return found


def _way_out(pair: Pair) -> str:
    """Say what to do: a module may mix samples on purpose; of an ONNX model it was proven that it does not."""
    if pair.graph.family == ONNX:
        return f"please report it with the model; {SKIP}"
    return f"its forward mixes samples: give example inputs of the whole batch where that is meant; {SKIP}"


def _compare_in_float64(
    pair: Pair, samples: _Samples, original: Graph, error: VerificationError
) -> tuple[Difference, tuple[str, ...]]:
    """Compare once more in float64, where what hangs on a near-tie agrees."""
    if pair.graph.family != ONNX:
        raise error
    from heterps_compile.frontends.onnx_float64 import arrays_in_float64, graph_in_float64  # noqa: PLC0415 - onnx

    inputs = [arrays_in_float64(given) for given in pair.inputs]
    wide = replace(whole_in_float64(pair), inputs=inputs)
    wide = replace(wide, oracle=oracle_in_float64(pair, wide.graph, inputs[0]).run)
    narrow = graph_in_float64(original)
    alone = oracle_in_float64(pair, narrow, samples.take(inputs[0], samples.parts[0])).run
    found = _compare(wide, samples, alone)
    return found, (f"the opened batch was verified in float64; in the model's own precision {error}: rounding alone",)
