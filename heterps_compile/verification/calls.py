"""Compare outputs, and where a model keeps something from call to call, two calls in a row and what it keeps then.

Left out: gradients (``gradients.py``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heterps_compile.backends.trained import alone
from heterps_compile.errors import BackendError, VerificationError
from heterps_compile.escape import printable
from heterps_compile.ir.graph import TORCH
from heterps_compile.runtime.kept_state import kept_by_stages, kept_by_whole, written_by_nodes
from heterps_compile.runtime.verify import Difference, are_equal, compare_value, is_inexact, largest

from .pair import Pair

_SHOWN = 3
_OF_THE_LARGEST = 1e-3


@dataclass(frozen=True, slots=True)
class _Calls:
    """What calls in a row gave, what was kept after the last, and attributes that change and are no buffers."""

    outputs: Sequence[Mapping[str, Any]]
    kept: Mapping[str, Any]
    attributes: tuple[str, ...] = ()


def compare_calls(pair: Pair) -> tuple[Difference, int]:
    """Compare the outputs of one call, or of several in a row and what is kept; return how many calls there were.

    Raises:
        VerificationError: naming the output, or what is kept, that differs, and by how much.
        BackendError: naming what the model keeps and no stage does.
    """
    whole = _call_whole(pair)
    count = len(whole.outputs)
    with pair.backend.reproducible(pair.graph, pair.seed):
        outputs = [as_now(pair.staged(inputs)) for inputs in pair.inputs[:count]]
        staged = _Calls(outputs, kept_by_stages(alone(pair.stages), whole.kept))
    found = Difference()
    for number, (ours, theirs) in enumerate(zip(staged.outputs, whole.outputs, strict=True)):
        which = f" of call {number + 1} in a row" if number else ""
        for name in pair.compared.outputs:
            try:
                least = pair.least_scales.get(name, 0.0)
                what = f"output {name!r}{which}"
                one = compare_value(what, ours[name], theirs[name], pair.tolerance, least_scale=least)
                found = found.joined(one)
            except VerificationError as error:
                advice = _advice(whole) if number else ""
                raise VerificationError(f"{error}{advice}", is_explained=bool(advice)) from error
    anew = _changed_anew(pair) if whole.kept else frozenset()
    for name, value in whole.kept.items():
        what = f"{printable(name)!r}, which the model changes when it runs, after {count} calls"
        if name not in staged.kept:
            if name in anew:
                continue
            raise BackendError(
                f"{what}, is kept by no stage of the backend {pair.backend.name!r}, and calls after the first would "
                f"differ; take the backend torch, or leave the change out"
            )
        compare_value(what, staged.kept[name], value, pair.tolerance, least_scale=_least_scale(name, whole.kept))
    return found, count


def _least_scale(name: str, kept: Mapping[str, Any]) -> float:
    """Return what the scale of a buffer is at least: a part of what the largest of its module has.

    The running mean of what a norm has centred is nothing but rounding.
    """
    module = name.rpartition(".")[0]
    beside = {n: v for n, v in kept.items() if n.rpartition(".")[0] == module and is_inexact(v)}
    return _OF_THE_LARGEST * largest(beside)


def _changed_anew(pair: Pair) -> frozenset[str]:
    """Return the names of what is the same whether a change to it is kept or made again by every call."""
    if pair.graph.family != TORCH:
        return frozenset()
    from heterps_compile.frontends.torch_buffers import changed_anew  # noqa: PLC0415 - torch only for torch models

    return changed_anew(pair.graph)


def as_now(outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return outputs as they are now: one may be a buffer, which the next call changes."""
    return {name: value.detach().clone() if hasattr(value, "detach") else value for name, value in outputs.items()}


def _advice(whole: _Calls) -> str:
    if not whole.attributes:
        return ""
    shown = ", ".join(repr(printable(name)) for name in whole.attributes[:_SHOWN])
    return f"; each call changes {shown}, which is no buffer, and tracing makes it a constant: register_buffer keeps it"


def _call_whole(pair: Pair) -> _Calls:
    """Call the whole model once, and again where it keeps something; return what it has changed by then."""
    graph = pair.graph
    with pair.backend.reproducible(graph, pair.seed):
        before = kept_by_whole(graph)
        outputs = [as_now(pair.whole(pair.inputs[0]))]
        after = kept_by_whole(graph)
        changed = set(written_by_nodes(graph))
        changed.update(name for name, value in after.items() if not are_equal(value, before.get(name)))
        attributes: tuple[str, ...] = getattr(graph.source, "attributes", ())
        if not changed and not attributes:
            return _Calls(outputs, {})
        outputs += [as_now(pair.whole(inputs)) for inputs in pair.inputs[1:]]
        kept = {name: value for name, value in kept_by_whole(graph).items() if name in changed}
        return _Calls(outputs, kept, attributes)
