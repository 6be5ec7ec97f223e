"""ONNX's own node tests, which ship inside the ``onnx`` package, and the judgement of a result.

They are measured in tests and by ``tools/onnx_conformance.py``, the same way for every backend: the module
``heterps_compile.backends.NAME.run_onnx`` has ``run_onnx(model, inputs)``, which runs a model on arrays in the order of
its inputs and gives its outputs, and ``declared_ops()``, which gives for every op of the table, as a pair of domain
("" for ONNX's own) and name, the opsets that brought the versions it knows.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import onnx


@dataclass(frozen=True, slots=True)
class NodeCase:
    """One node test.

    Attributes:
        name: Of the test.
        model: What is run.
        ops: Domain and name of every op in it, those of subgraphs too.
        data: Pairs of inputs and expected outputs.
        relative: Allowed difference relative to the expected number.
        absolute: Allowed difference besides.
    """

    name: str
    model: onnx.ModelProto
    ops: frozenset[tuple[str, str]]
    data: tuple[tuple[Sequence[Any], Sequence[Any]], ...]
    relative: float
    absolute: float


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for body in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _nodes(body)


@cache
def node_cases() -> tuple[NodeCase, ...]:
    """Return every node test of the installed ``onnx``, in its order."""
    from onnx.backend.test.loader import load_model_tests  # noqa: PLC0415 - it makes all its data on import

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it divides by zero and overflows on purpose
        found = load_model_tests(kind="node")
    return tuple(
        NodeCase(
            t.name,
            t.model,
            frozenset((node.domain, node.op_type) for node in _nodes(t.model.graph)),
            tuple((list(i), list(o)) for i, o in t.data_sets),
            t.rtol,
            t.atol,
        )
        for t in found
    )


def fault(case: NodeCase, runner: ModuleType) -> str:
    """Return what is wrong with a backend's results, or "" where they are the expected ones."""
    for inputs, expected in case.data:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results = runner.run_onnx(case.model, [_plain(value) for value in inputs])
        if len(results) != len(expected):
            return f"{len(results)} outputs, not {len(expected)}"
        for place, (ours, theirs) in enumerate(zip(results, map(_plain, expected), strict=True)):
            wrong = _difference(ours, theirs, case)
            if wrong:
                return f"output {place}: {wrong}"
    return ""


def _plain(value: Any) -> Any:
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _difference(ours: Any, theirs: Any, case: NodeCase) -> str:
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return f"{ours.dtype}{list(ours.shape)}, not {theirs.dtype}{list(theirs.shape)}"
    if theirs.dtype.kind in "OUS":
        return "" if np.array_equal(ours, theirs) else "other strings"
    # two units in the last place of bfloat16, as ONNX's own runner of these tests has it
    relative = max(case.relative, 2**-6) if theirs.dtype.name == "bfloat16" else case.relative
    if theirs.dtype.isbuiltin != 1 and theirs.dtype.kind != "b":  # ml_dtypes: compared as wider numbers
        ours, theirs = ours.astype(np.float64), theirs.astype(np.float64)
    if np.allclose(ours, theirs, rtol=relative, atol=case.absolute, equal_nan=True):
        return ""
    with np.errstate(all="ignore"):
        return f"differs by {np.abs(ours.astype(np.float64) - theirs.astype(np.float64)).max():.3g}"
