"""Compare outputs, and where a model keeps something from call to call, two calls in a row and what it keeps then.

Left out: gradients (``gradients.py``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heterps_compile.backends.trained import alone
from heterps_compile.errors import VerificationError
from heterps_compile.escape import printable
from heterps_compile.runtime.kept_state import kept_by_stages, kept_by_whole, written_by_nodes
from heterps_compile.runtime.verify import Difference, are_equal, compare_value

from .pair import Pair

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class _Calls:
    """What calls in a row gave, what was kept after the last, and attributes that change and are no buffers."""

    outputs: Sequence[Mapping[str, Any]]
    kept: Mapping[str, Any]
    attributes: tuple[str, ...] = ()


def compare_calls(pair: Pair) -> tuple[Difference, int]:
    """Compare the outputs of one call, or of several in a row and what is kept; give how many calls there were.

    Raises:
        VerificationError: naming the output, or what is kept, that differs, and by how much.
    """
    whole = _call_whole(pair)
    count = len(whole.outputs)
    with pair.backend.reproducible(pair.graph, pair.seed):
        outputs = [_as_now(pair.staged(inputs)) for inputs in pair.inputs[:count]]
        staged = _Calls(outputs, kept_by_stages(alone(pair.stages), whole.kept))
    found = Difference()
    for number, (ours, theirs) in enumerate(zip(staged.outputs, whole.outputs, strict=True)):
        which = f" of call {number + 1} in a row" if number else ""
        for name in pair.compared.outputs:
            try:
                found = found.joined(compare_value(f"output {name!r}{which}", ours[name], theirs[name], pair.tolerance))
            except VerificationError as error:
                raise VerificationError(f"{error}{_advice(whole) if number else ''}") from error
    for name, value in whole.kept.items():
        what = f"{printable(name)!r}, which the model changes when it runs, after {count} calls"
        if name not in staged.kept:
            raise VerificationError(f"{what}: no stage keeps it")
        compare_value(what, staged.kept[name], value, pair.tolerance)
    return found, count


def _as_now(outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Give outputs as they are now: one may be a buffer, which the next call changes."""
    return {name: value.detach().clone() if hasattr(value, "detach") else value for name, value in outputs.items()}


def _advice(whole: _Calls) -> str:
    if not whole.attributes:
        return ""
    shown = ", ".join(repr(printable(name)) for name in whole.attributes[:_SHOWN])
    return f"; each call changes {shown}, which is no buffer, and tracing makes it a constant: register_buffer keeps it"


def _call_whole(pair: Pair) -> _Calls:
    """Call the whole model once, and again where it keeps something; give what it has changed by then."""
    graph = pair.graph
    with pair.backend.reproducible(graph, pair.seed):
        before = kept_by_whole(graph)
        outputs = [_as_now(pair.whole(pair.inputs[0]))]
        after = kept_by_whole(graph)
        changed = set(written_by_nodes(graph))
        changed.update(name for name, value in after.items() if not are_equal(value, before.get(name)))
        attributes: tuple[str, ...] = getattr(graph.source, "attributes", ())
        if not changed and not attributes:
            return _Calls(outputs, {})
        outputs += [_as_now(pair.whole(inputs)) for inputs in pair.inputs[1:]]
        kept = {name: value for name, value in kept_by_whole(graph).items() if name in changed}
        return _Calls(outputs, kept, attributes)
