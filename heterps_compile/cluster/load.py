"""Read pools: the built-in ones by name, a user's own from a TOML file.

A pool's file names every unit ("25 Gbit/s", "16 GiB", "2.42 USD/h"); a price that is missing or zero is an
error unless it is written as "free". See ``pools/heterps-paper.toml`` for every key with a comment.

Left out: cloud catalogues and spot prices; the ``local`` pool (``local.py``) is made, not read.
"""

import datetime as dt
import math
import re
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from heterps_compile.errors import InputError, UnknownNameError
from heterps_compile.ir.graph import OpKind
from heterps_compile.units import parse_price, parse_quantity

from .devices import Cluster, DeviceType, Link, ParameterServer

MAX_DEVICE_TYPES = 64
LOCAL = "local"


def _quantity(dimension: str) -> BeforeValidator:
    def parse(text: object) -> float:
        try:
            return parse_quantity(text, dimension)
        except InputError as error:
            raise ValueError(str(error)) from error

    return BeforeValidator(parse)


def _price(text: object) -> tuple[float, str]:
    try:
        return parse_price(text)
    except InputError as error:
        raise ValueError(str(error)) from error


def _date(value: object) -> str:
    """Take a TOML date, or a text with a year and as much more of a date as is known."""
    text = value.isoformat() if type(value) is dt.date else value
    match = _DATE.fullmatch(text) if isinstance(text, str) else None
    try:
        if match is None:
            raise ValueError
        dt.date(int(match[1]), int(match[2] or 1), int(match[3] or 1))
    except ValueError as error:
        raise ValueError(
            f'{text!r} is no date; expected when the price was read, such as 2026-11-20 or "2026-11"'
        ) from error
    return match[0]


_DATE = re.compile(r"(\d{4})(?:-(\d{2})(?:-(\d{2}))?)?")

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Fraction = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False, strict=True)]
Size = Annotated[float, _quantity("bytes")]
Bandwidth = Annotated[float, _quantity("bytes per second")]
Time = Annotated[float, _quantity("seconds")]
FlopRate = Annotated[float, _quantity("FLOP per second")]
Price = Annotated[tuple[float, str], BeforeValidator(_price)]
Source = Annotated[str, Field(min_length=1)]
Date = Annotated[str, BeforeValidator(_date)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Priced(_Strict):
    price: Price
    price_source: Source
    price_date: Date | None = None

    @model_validator(mode="after")
    def _has_date(self) -> Self:
        if self.price[0] and self.price_date is None:
            raise ValueError("price_date is missing: say when the price was read, such as 2026-11-20")
        return self


class _Device(_Priced):
    name: Name
    kind: Literal["cpu", "gpu", "npu"]
    max_units: Annotated[int, Field(ge=1, le=1_000_000, strict=True)]
    memory: Size
    peak: dict[str, FlopRate]
    memory_bandwidth: Bandwidth
    network_bandwidth: Bandwidth
    network_latency: Time
    input_bandwidth: Bandwidth
    shared_input_bandwidth: Bandwidth | None = None
    supports: list[OpKind] | None = None
    launch: Time
    efficiency: Fraction
    compute_parallel: Fraction
    data_parallel: Fraction

    @model_validator(mode="after")
    def _supports_something(self) -> Self:
        if self.supports is not None and not self.supports:
            raise ValueError("supports names no kind of layer, so nothing could run here; leave it out for all kinds")
        return self

    @model_validator(mode="after")
    def _has_float32(self) -> "_Device":
        if "float32" not in self.peak:
            raise ValueError('peak must give float32, such as peak = { float32 = "14 TFLOP/s" }')
        return self


class _Link(_Strict):
    between: Annotated[list[Name], Field(min_length=2, max_length=2)]
    bandwidth: Bandwidth
    latency: Time


class _ParameterServer(_Priced):
    bandwidth: Bandwidth


class _Pool(_Strict):
    description: str = ""
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")] = "USD"
    device: Annotated[list[_Device], Field(min_length=1, max_length=MAX_DEVICE_TYPES)]
    link: list[_Link] = []
    parameter_server: _ParameterServer | None = None

    @model_validator(mode="after")
    def _agrees(self) -> "_Pool":
        names = [device.name for device in self.device]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"device {name!r} stands {names.count(name)} times; names must differ")
        priced = {f"device {device.name!r}": device.price for device in self.device}
        if self.parameter_server is not None:
            priced["the parameter server"] = self.parameter_server.price
        for what, (price, currency) in priced.items():
            if price and currency != self.currency:
                raise ValueError(f"{what} is priced in {currency}, the pool in {self.currency}")
        pairs = [tuple(sorted(link.between)) for link in self.link]
        for first, second in pairs:
            for name in {first, second} - set(names):
                raise ValueError(f"a link names the device {name!r}; the pool has {', '.join(map(repr, names))}")
            if pairs.count((first, second)) > 1:
                raise ValueError(f"{pairs.count((first, second))} links between {first!r} and {second!r}; give one")
        return self


def builtin_names() -> tuple[str, ...]:
    """Give the names of the built-in pools, ascending; ``local`` is among them."""
    files = resources.files("heterps_compile.cluster").joinpath("pools").iterdir()
    names = [item.name.removesuffix(".toml") for item in files if item.name.endswith(".toml")]
    return tuple(sorted([*names, LOCAL]))


def load_cluster(name_or_path: str | Path) -> Cluster:
    """Load a built-in pool by name, or a pool from a TOML file.

    Whatever has a ``/`` in it or ends in ``.toml`` is a path.

    Raises:
        UnknownNameError: no built-in pool of that name.
        InputError: the file is missing, is not TOML, or says something wrong; names file, key and what was expected.
    """
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or text.endswith(".toml") or "/" in text:
        return _read(Path(text))
    if text == LOCAL:
        from .local import describe_local  # noqa: PLC0415 - reads this machine only when asked

        return describe_local()
    if text not in builtin_names():
        raise UnknownNameError("cluster", text, builtin_names())
    file = resources.files("heterps_compile.cluster").joinpath("pools", f"{text}.toml")
    return _parse(file.read_text("utf-8"), name=text, source=f"built-in pool {text!r}")


def _read(path: Path) -> Cluster:
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise InputError(f"cannot read the cluster file {str(path)!r}: {reason}") from error
    return _parse(text, name=path.stem, source=str(path))


def _parse(text: str, *, name: str, source: str) -> Cluster:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{source} is not TOML: {error}") from error
    try:
        pool = _Pool.model_validate(document)
    except ValidationError as error:
        raise InputError(f"{source}: {_first_fault(error, document)}") from error
    server = pool.parameter_server
    return Cluster(
        name=name,
        description=pool.description,
        currency=pool.currency,
        device_types=tuple(_device_type(device) for device in pool.device),
        source=source,
        links=tuple(Link((link.between[0], link.between[1]), link.bandwidth, link.latency) for link in pool.link),
        parameter_server=None
        if server is None
        else ParameterServer(server.price[0], server.price_source, server.price_date or "", server.bandwidth),
    )


def _first_fault(error: ValidationError, document: Mapping[str, Any]) -> str:
    faults = error.errors(include_url=False)
    fault = faults[0]
    where = [str(part) for part in fault["loc"]]
    if len(where) > 1 and where[1].isdigit():
        entry = document[where[0]][int(where[1])]
        named = entry.get("name") if isinstance(entry, dict) else None
        where[:2] = [f"{where[0]} {named!r}" if isinstance(named, str) else f"{where[0]} number {int(where[1]) + 1}"]
    message = fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "extra_forbidden":
        model = _MODELS.get(str(fault["loc"][0]), _Pool) if len(fault["loc"]) > 1 else _Pool
        message = f"unknown key; known keys: {', '.join(model.model_fields)}"
    elif fault["type"] == "missing":
        message = "the key is missing"
    more = f" (and {len(faults) - 1} more faults)" if len(faults) > 1 else ""
    return f"{', key '.join(where) or 'the file'}: {message}{more}"


_MODELS: Mapping[str, type[_Strict]] = MappingProxyType(
    {"device": _Device, "link": _Link, "parameter_server": _ParameterServer}
)
"""What the tables of a file hold, for telling the keys that are known."""


def _device_type(device: _Device) -> DeviceType:
    return DeviceType(
        name=device.name,
        kind=device.kind,
        price_per_hour=device.price[0],
        price_source=device.price_source,
        max_units=device.max_units,
        memory_bytes=device.memory,
        peak_flops=MappingProxyType(dict(device.peak)),
        memory_bytes_per_s=device.memory_bandwidth,
        network_bytes_per_s=device.network_bandwidth,
        network_latency_s=device.network_latency,
        input_bytes_per_s=device.input_bandwidth,
        launch_s=device.launch,
        efficiency=device.efficiency,
        compute_parallel=device.compute_parallel,
        data_parallel=device.data_parallel,
        price_date=device.price_date or "",
        shared_input_bytes_per_s=device.shared_input_bandwidth or math.inf,
        supports=None if device.supports is None else tuple(kind.value for kind in device.supports),
    )
