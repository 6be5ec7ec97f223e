"""What a model takes, against what the data give: names, dtypes, shapes.

A plan says what every input may be; of an older one that ONNX Runtime runs, its stages' files say it. Data fit where
the shapes of a sample are equal and the numbers are of the same sort: whole numbers in another width where they are in
its range, floats in another precision, whole numbers where floats are wanted. Floats never become whole numbers.

Left out: what the numbers mean; an id beyond its table is found by the stage that looks it up.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from heterps_compile.errors import InputError
from heterps_compile.escape import printable
from heterps_compile.plan.plan import Plan
from heterps_compile.runtime.signature import signature_of_plan

from .sample_source import Source

_NAMES_SHOWN = 16


@dataclass(frozen=True, slots=True)
class InputSpec:
    """What one input of a model takes.

    Attributes:
        dtype: As in ``"float32"``; None where it is not known.
        shape: Of a sample; None for a dimension that may vary, None in place of all where it is not known.
        rows: Of the table that it is looked up in; None where there is none, or not one alone.
        planned: Shape of a sample that the plan is for, if one of its sizes may vary and all are known; else None.
    """

    dtype: str | None = None
    shape: tuple[int | None, ...] | None = None
    rows: int | None = None
    planned: tuple[int, ...] | None = None

    def __str__(self) -> str:
        sizes = "..." if self.shape is None else ", ".join("any" if size is None else str(size) for size in self.shape)
        return f"{self.dtype or 'any dtype'}[{sizes}]"


def inputs_of_plan(plan: Plan, folder: Path | None = None) -> dict[str, InputSpec]:
    """Return what every input of a plan's model takes, as far as is known.

    Args:
        plan: The plan.
        folder: Where its stages were written; None looks into the plan alone.

    Raises:
        PlanError: where the plan's signature is none.
    """
    accepts: Mapping[str, Any] = getattr(signature_of_plan(plan), "accepts", {})
    known = {name: _of_shape(a.dtype, a.shape, plan.bindings) for name, a in accepts.items() if a.dtype is not None}
    if folder is not None:
        for artifacts in plan.artifacts:
            if artifacts and artifacts[0].file.endswith(".onnx"):
                known = _of_onnx(folder / artifacts[0].file) | known
    tables = plan.id_tables
    return {name: replace(known.get(name, InputSpec()), rows=tables.get(name)) for name in plan.graph_inputs}


def _of_shape(
    dtype: str | None, shape: Sequence[int | str | None] | None, bindings: Mapping[str, int] = MappingProxyType({})
) -> InputSpec:
    if shape is None:
        return InputSpec(dtype)
    free = tuple(size if isinstance(size, int) else None for size in shape[1:])
    planned = tuple(size if isinstance(size, int) else bindings.get(size or "", -1) for size in shape[1:])
    return InputSpec(dtype, free, planned=planned if None in free and -1 not in planned else None)


def _of_onnx(path: Path) -> dict[str, InputSpec]:
    """Return what an ONNX file's inputs take; weights are not read."""
    import onnx_ir as ir  # noqa: PLC0415 - only for stages that are ONNX files

    found = {}
    for value in ir.load(path).graph.inputs:
        dtype = None if value.dtype is None else value.dtype.name.lower()
        sizes = None if value.shape is None else [size if isinstance(size, int) else None for size in value.shape]
        found[value.name or ""] = _of_shape({"float": "float32", "double": "float64"}.get(dtype or "", dtype), sizes)
    return found


def require_columns(source: Source, names: Iterable[str], where: str) -> None:
    """Check that data have the columns a model takes.

    Args:
        source: The data.
        names: InputSpec.
        where: The data come from, for the message.

    Raises:
        InputError: naming the columns that are missing and those there are.
    """
    missing = [name for name in names if name not in source.columns]
    if missing:
        there = ", ".join(repr(printable(name)) for name in source.columns[:_NAMES_SHOWN])
        more = f" and {len(source.columns) - _NAMES_SHOWN} more" if len(source.columns) > _NAMES_SHOWN else ""
        raise InputError(
            f"the model takes {', '.join(repr(printable(name)) for name in missing[:_NAMES_SHOWN])}, which is not in "
            f"{where} (with {there}{more}); rename the columns, or make the inputs of them in prepare(batch)"
        )


def fit(batch: Mapping[str, Tensor], wanted: Mapping[str, InputSpec]) -> dict[str, Tensor]:
    """Return a batch as the model takes it; columns that are no inputs stay as they are.

    Args:
        batch: Columns [n, ...] by name.
        wanted: What inputs take, by name.

    Raises:
        InputError: where an input is missing or does not fit, naming the column, what is expected and what was found.
    """
    fitted = dict(batch)
    for name, expected in wanted.items():
        if name not in batch:
            there = ", ".join(repr(printable(column)) for column in list(batch)[:_NAMES_SHOWN])
            raise InputError(f"the batch lacks {printable(name)!r}, which the model takes; it has {there or 'nothing'}")
        fitted[name] = _fit(name, batch[name], expected)
    return fitted


def _fit(name: str, tensor: Tensor, expected: InputSpec) -> Tensor:
    sample = tuple(tensor.shape[1:])
    if expected.shape is not None and (
        len(sample) != len(expected.shape)
        or any(size not in (None, found) for size, found in zip(expected.shape, sample, strict=True))
    ):
        raise _unfit(name, tensor, expected, "make samples of that shape")
    dtype = getattr(torch, expected.dtype or "", tensor.dtype)
    if dtype == tensor.dtype or not isinstance(dtype, torch.dtype):
        return tensor
    if dtype.is_floating_point and not tensor.is_complex():
        return tensor.to(dtype)
    is_whole = not (tensor.is_floating_point() or tensor.is_complex() or dtype.is_complex)
    if not is_whole or torch.bool in (dtype, tensor.dtype):
        raise _unfit(name, tensor, expected, "convert it in prepare(batch) if that is meant")
    converted = tensor.to(dtype)
    if not torch.equal(converted.to(tensor.dtype), tensor):
        raise _unfit(name, tensor, expected, f"its values, up to {int(tensor.max())}, do not all fit {expected.dtype}")
    return converted


def _unfit(name: str, tensor: Tensor, expected: InputSpec, way_out: str) -> InputError:
    found = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape[1:])}"
    return InputError(f"a sample of column {printable(name)!r} is {found}, the model takes {expected}; {way_out}")
