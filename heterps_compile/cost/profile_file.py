"""``profile.json``: a profile as a text file with a published schema, read strictly.

A profile may come from somebody else, so it is hostile input: unknown keys, text for numbers, NaN, infinities, negative
times, files and lists beyond any sense are refused with the place and what was expected. :func:`json_schema` gives the
schema as JSON Schema; the package holds it as ``profile.schema.json``. Every number has its unit in its name.

Version 2 has parallel fractions of layers, version 3 what busy cores take from one another, version 4 what layers take
whose tables lie on parameter servers, and what a step has besides layers; older ones are read too.

Left out: measuring (``profiling/``).
"""

import json
from collections.abc import Sequence
from importlib import resources
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from heterps_compile.conflict_markers import unmerged
from heterps_compile.errors import InputError
from heterps_compile.escape import one_line, shorten
from heterps_compile.ir.graph import OpKind
from heterps_compile.plain_file import open_plain

from . import profile as made
from .memory import OPTIMIZERS
from .step_rates import OptimizerRate, StepRates

FORMAT = "heterps-compile profile"
VERSION = 4
_READ = (1, 2, 3, 4)
_CAME_WITH = {"crowding": 3, "step_rates": 4}
_SERVED_SINCE = 4
SCHEMA_NAME = "profile.schema.json"
MOST_BYTES = 64 << 20
_SCHEMA_ID = "https://json-schema.org/draft/2020-12/schema"
_MOST = 2**63 - 1
_MOST_LAYERS = 100_000

Text = Annotated[str, Field(max_length=1000)]
Count = Annotated[int, Field(ge=0, le=_MOST)]
Positive = Annotated[int, Field(ge=1, le=_MOST)]
Seconds = Annotated[float, Field(ge=0, le=1e6)]
Rate = Annotated[float, Field(gt=0, le=1e18)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Error = Annotated[float, Field(ge=0, le=1e18)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class _Timing(_Part):
    median_s: Seconds
    spread_s: Seconds


class _Point(_Part):
    batch: Positive
    flops: Count
    moved_bytes: Count
    forward: _Timing
    backward: _Timing | None
    accumulate: _Timing | None
    repeats: Positive


class _Fitted(_Part):
    value: Fraction
    error: Error
    units: Annotated[list[Positive], Field(min_length=1, max_length=1000)]
    unclipped: Annotated[float, Field(ge=-1e18, le=1e18)] | None = None


class _Layer(_Part):
    name: Text
    keys: Annotated[list[Annotated[str, Field(pattern=r"^[0-9a-f]{24}$")]], Field(min_length=1, max_length=1000)]
    kind: Annotated[str, Field(pattern=f"^({'|'.join(OpKind)})$")]
    dtype: Text
    operations: Count
    points: Annotated[list[_Point], Field(min_length=1, max_length=1000)]
    compute_parallel: _Fitted | None = None
    data_parallel: _Fitted | None = None
    served: Annotated[list[_Point], Field(max_length=1000)] = []

    @model_validator(mode="after")
    def _ascends(self) -> Self:
        _check_ascending([point.batch for point in self.points])
        _check_ascending([point.batch for point in self.served])
        return self


class _Whole(_Part):
    batch: Positive
    forward_s: Seconds
    layers_forward_s: Seconds
    backward_s: Seconds
    layers_backward_s: Seconds


class _Link(_Part):
    bytes_per_s: Rate
    bytes_per_s_error: Error
    latency_s: Seconds
    latency_s_error: Seconds
    between: Text


class _Crowding(_Part):
    factor: Annotated[float, Field(gt=0, le=1e6)]
    spread: Error
    others: Positive
    batch: Positive


class _OptimizerRate(_Part):
    name: Annotated[str, Field(pattern=f"^({'|'.join(OPTIMIZERS)})$")]
    tensor_s: Seconds
    bytes_per_s: Rate


class _StepRates(_Part):
    moved_per_s: Rate
    selected_per_s: Rate
    chosen_per_s: Rate
    placed_per_s: Rate
    combined_per_s: Rate
    optimizers: Annotated[list[_OptimizerRate], Field(max_length=len(OPTIMIZERS))]

    @model_validator(mode="after")
    def _names_once(self) -> Self:
        names = [each.name for each in self.optimizers]
        if len(set(names)) < len(names):
            raise ValueError(f"optimizers stand there twice: {', '.join(names)}")
        return self


class _Device(_Part):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,63}$")]
    kind: Literal["cpu", "gpu", "npu"]
    description: Text
    backend: Text
    mode: Literal["inference", "training"]
    threads: Positive
    clock: Literal["wall", "cpu"]
    layers: Annotated[list[_Layer], Field(min_length=1, max_length=_MOST_LAYERS)]
    wholes: Annotated[list[_Whole], Field(max_length=1000)]
    compute_parallel: _Fitted | None
    data_parallel: _Fitted | None
    link: _Link | None
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    crowding: _Crowding | None = None
    step_rates: _StepRates | None = None

    @model_validator(mode="after")
    def _keys_have_one_entry(self) -> Self:
        known: dict[frozenset[str], _Layer] = {}
        for layer in self.layers:
            keys = frozenset(layer.keys)
            if keys in known:
                first_s, second_s = (each.points[0].forward.median_s for each in (known[keys], layer))
                raise ValueError(
                    f"the key {layer.keys[0]!r} has two entries, {known[keys].name!r} with a forward of {first_s} s "
                    f"and {layer.name!r} with {second_s} s; keep the one that holds, or measure again"
                )
            known[keys] = layer
        return self

    @model_validator(mode="after")
    def _measures_its_mode(self) -> Self:
        _check_ascending([whole.batch for whole in self.wholes])
        for layer in self.layers:
            for point in (*layer.points, *layer.served):
                timed = {"backward": point.backward, "accumulate": point.accumulate}
                wrong = [what for what, time in timed.items() if (time is None) is (self.mode == "training")]
                if wrong:
                    raise ValueError(
                        f"{wrong[0]} of layer {layer.name!r} at batch {point.batch} must be "
                        f"{'a time' if self.mode == 'training' else 'null'} in a profile of {self.mode}"
                    )
        return self


class _Host(_Part):
    system: Text
    processor: Text
    cores: Positive
    memory_bytes: Count


class ProfileFile(_Part):
    """The whole file."""

    format: Literal["heterps-compile profile"]
    version: Literal[1, 2, 3, 4]
    model: Text
    measured: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z$")]
    host: _Host
    versions: Annotated[dict[str, Text], Field(max_length=100)]
    devices: Annotated[list[_Device], Field(min_length=1, max_length=64)]

    @model_validator(mode="after")
    def _names_once(self) -> Self:
        names = [device.name for device in self.devices]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"device {twice!r} stands {names.count(twice)} times; names must differ")
        return self

    @model_validator(mode="after")
    def _has_what_its_version_has(self) -> Self:
        layers = (layer for device in self.devices for layer in device.layers)
        if self.version == 1 and any(layer.compute_parallel or layer.data_parallel for layer in layers):
            raise ValueError("version 1 has no parallel fractions of layers; they came with version 2")
        for name, came_with in _CAME_WITH.items():
            if self.version < came_with and any(getattr(device, name) for device in self.devices):
                raise ValueError(f"version {self.version} has no {name}; it came with version {came_with}")
        if self.version < _SERVED_SINCE and any(layer.served for device in self.devices for layer in device.layers):
            raise ValueError(f"version {self.version} has no served layers; they came with version {_SERVED_SINCE}")
        return self


def _check_ascending(batches: Sequence[int]) -> None:
    if any(first >= second for first, second in pairwise(batches)):
        raise ValueError(f"batches must ascend, and they are {list(batches)[:16]}")


def json_schema() -> dict[str, Any]:
    """Return the schema as JSON Schema, made from the classes above."""
    return {"$schema": _SCHEMA_ID, **ProfileFile.model_json_schema()}


def published_schema() -> str:
    """Return the text of the JSON Schema that is in the package."""
    return resources.files("heterps_compile.cost").joinpath(SCHEMA_NAME).read_text("utf-8")


def to_json(profile: made.Profile) -> str:
    """Write a profile as the text of its file."""
    document = {"format": FORMAT, "version": VERSION, **_plain(profile)}
    return json.dumps(ProfileFile.model_validate(document).model_dump(), indent=1) + "\n"


def read_profile(path: str | Path) -> made.Profile:
    """Read a profile from its file.

    Raises:
        InputError: where the file is missing, too large, no JSON, or says what no profile may say.
    """
    where = f"the profile {str(path)!r}"
    try:
        with open_plain(path) as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise InputError(f"cannot read {where}: {error.strerror}") from error
    if len(content) > MOST_BYTES:
        raise InputError(f"{where} has more than {MOST_BYTES >> 20} MiB; no profile is that large")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{where} is no UTF-8 text; make it with heterps-compile profile") from error
    return from_json(text, where)


def from_json(text: str, where: str) -> made.Profile:
    """Read a profile from the text of its file.

    Args:
        text: The file's text.
        where: What to call the file in messages.

    Raises:
        InputError: naming the place in the file and what was expected there.
    """
    try:
        document = json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        if conflict := unmerged(text):
            raise InputError(f"{where} {conflict}") from error
        raise InputError(
            f"{where} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}; make it with "
            f"heterps-compile profile"
        ) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is no profile: {one_line(str(error))}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InputError(
            f"{where} is no profile: its key 'format' must be {FORMAT!r}; make one with the command profile"
        )
    version = document.get("version")
    if version not in _READ or isinstance(version, (bool, float)):
        raise InputError(
            f"{where} has version {shorten(repr(version), 40)}, and {', '.join(map(str, _READ))} are what this "
            f"version reads; measure again"
        )
    try:
        return _made(ProfileFile.model_validate(document))
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in fault["loc"]) or "the file"
        found = shorten(repr(fault["input"]), 60) if fault["type"] not in ("missing", "value_error") else ""
        said = fault["msg"].removeprefix("Value error, ")
        raise InputError(one_line(f"{where}: {place}: {said}{f', not {found}' if found else ''}")) from error


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def _plain(value: Any) -> Any:
    """Return dataclasses as dicts, tuples as lists."""
    fields = getattr(value, "__dataclass_fields__", None)
    if fields is not None:
        return {name: _plain(getattr(value, name)) for name in fields}
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return dict(value) if isinstance(value, (dict, MappingProxyType)) else value


_MADE: dict[type[_Part], type] = {
    _Timing: made.Timing,
    _Point: made.LayerPoint,
    _Layer: made.LayerProfile,
    _Whole: made.Whole,
    _Fitted: made.Fitted,
    _Link: made.LinkProfile,
    _Crowding: made.Crowding,
    _OptimizerRate: OptimizerRate,
    _StepRates: StepRates,
    _Device: made.DeviceProfile,
    _Host: made.Host,
}


def _made(read: ProfileFile) -> made.Profile:
    return made.Profile(
        read.model,
        read.measured,
        _value(read.host),
        MappingProxyType(dict(read.versions)),
        tuple(_value(device) for device in read.devices),
    )


def _value(part: Any) -> Any:
    """Return a part of the file as the dataclass of its name, lists as tuples."""
    if isinstance(part, _Part):
        return _MADE[type(part)](**{name: _value(getattr(part, name)) for name in type(part).model_fields})
    return tuple(map(_value, part)) if isinstance(part, list) else part
