"""The tables of a pool's file, and what is wrong with one in words: where, what stands there, what was expected.

Left out: where pools lie and what is made of them (``load.py``).
"""

import datetime as dt
import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from types import MappingProxyType
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, model_validator

from heterps_compile.errors import InputError
from heterps_compile.ir.graph import ITEM_BITS, WORK_KINDS, OpKind
from heterps_compile.units import counted, parse_price, parse_quantity

from .devices import SERVER_MEMORY_BYTES, SERVER_PER_TABLE_S, TFLOAT32
from .link_kinds import read_efficiency

MAX_DEVICE_TYPES = 64
MAX_UNITS = 1_000_000

_EXAMPLE = "heterps-paper.toml"  # has every key, some of them in comments
_SHOWN = 60  # characters of a wrong value
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_CURRENCY = re.compile(r"[A-Z]{3}")
_DATE = re.compile(r"([0-9]{4})(?:-([0-9]{2})(?:-([0-9]{2}))?)?")


def is_name(text: str) -> bool:
    """Return whether a device type may have the name."""
    return _NAME.fullmatch(text) is not None


def _read(parse: Callable[[object], Any]) -> BeforeValidator:
    def validate(value: object) -> Any:
        try:
            return parse(value)
        except InputError as error:
            raise ValueError(str(error)) from error

    return BeforeValidator(validate)


def _quantity(dimension: str) -> BeforeValidator:
    return _read(lambda text: parse_quantity(text, dimension))


def _is(holds: Callable[[Any], bool], expected: str) -> BeforeValidator:
    def validate(value: object) -> object:
        if holds(value):
            return value
        raise ValueError(f"{_shown(value)} is wrong: expected {expected}")

    return BeforeValidator(validate)


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list) and (len(value) > 3 or any(isinstance(item, dict | list) for item in value)):
        return f"a list of {len(value)}"
    text = value.isoformat() if isinstance(value, dt.date | dt.time) else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _matches(pattern: re.Pattern[str]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and pattern.fullmatch(value) is not None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_list_of(kind: type, least: int, most: int) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, list) and least <= len(value) <= most and all(isinstance(item, kind) for item in value)
    )


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
            f'{_shown(value)} is no date; expected when the price was read, such as 2026-11-20 or "2026-11"'
        ) from error
    return match[0]


_KINDS = ("cpu", "gpu", "npu")
_LAYER_KINDS = tuple(kind.value for kind in OpKind)

Name = Annotated[
    str,
    _is(_matches(_NAME), "at most 64 letters, digits, dots, dashes and underscores, the first a letter or a digit"),
]
Kind = Annotated[str, _is(lambda value: value in _KINDS, '"cpu", "gpu" or "npu"')]
Count = Annotated[
    int, _is(lambda value: type(value) is int and 1 <= value <= MAX_UNITS, f"a whole number from 1 to {MAX_UNITS:,}")
]
Fraction = Annotated[float, _is(lambda value: _is_number(value) and 0 < value <= 1, "a number above 0 and at most 1")]
Currency = Annotated[str, _is(_matches(_CURRENCY), 'three capital letters, such as "USD"')]
Source = Annotated[
    str, _is(lambda value: isinstance(value, str) and value.strip() != "", "a text that says where the price was read")
]
Text = Annotated[str, _is(lambda value: isinstance(value, str), "a text")]
DType = Annotated[str, _is(lambda value: value in ITEM_BITS, f"a dtype, one of {', '.join(ITEM_BITS)}")]
_PEAKS = (*ITEM_BITS, TFLOAT32)
PeakType = Annotated[str, _is(lambda value: value in _PEAKS, f"a dtype, one of {', '.join(_PEAKS)}")]
WorkKind = Annotated[
    str,
    _is(lambda value: value in WORK_KINDS, f"one of {', '.join(WORK_KINDS)}"),
]
Ratio = Annotated[float, _is(lambda value: _is_number(value) and 0 <= value <= 1000, "a number from 0 to 1000")]
LayerKind = Annotated[str, _is(lambda value: value in _LAYER_KINDS, f"one of {', '.join(_LAYER_KINDS)}")]
Date = Annotated[str, BeforeValidator(_date)]
Truth = Annotated[bool, _is(lambda value: isinstance(value, bool), "true or false")]
Size = Annotated[float, _quantity("bytes")]
Bandwidth = Annotated[float, _quantity("bytes per second")]
Time = Annotated[float, _quantity("seconds")]
FlopRate = Annotated[float, _quantity("FLOP per second")]
LinkPart = Annotated[float, _read(read_efficiency)]
Price = Annotated[tuple[float, str], _read(parse_price)]
Peak = Annotated[
    dict[PeakType, FlopRate],
    _is(
        lambda value: isinstance(value, dict) and "float32" in value,
        'a rate for float32 at least, such as { float32 = "14 TFLOP/s" }',
    ),
]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Priced(_Table):
    price: Price
    price_source: Source
    price_date: Date | None = None

    @model_validator(mode="after")
    def _has_date(self) -> Self:
        if self.price[0] and self.price_date is None:
            raise ValueError("price_date is missing: say when the price was read, such as 2026-11-20")
        return self


class Rate(_Table):
    """A table under a heading ``[device.rates.KIND]``; what it leaves out takes no time."""

    start: Time | None = None
    flops: FlopRate | None = None
    memory: Bandwidth | None = None
    gradient: Bandwidth | None = None
    backward: Ratio
    inference: Ratio = 1.0
    error: Ratio
    dtype: DType = "float32"


class Device(_Priced):
    """A table under a heading ``[[device]]``."""

    name: Name
    kind: Kind
    max_units: Count
    memory: Size
    peak: Peak
    memory_bandwidth: Bandwidth
    network_bandwidth: Bandwidth
    network_latency: Time
    input_bandwidth: Bandwidth
    shared_input_bandwidth: Bandwidth | None = None
    supports: (
        Annotated[list[LayerKind], _is(_is_list_of(str, 1, len(_LAYER_KINDS)), "a list of one or more kinds of layers")]
        | None
    ) = None
    launch: Time
    efficiency: Fraction
    compute_parallel: Fraction
    data_parallel: Fraction
    rates: dict[WorkKind, Rate] = {}
    units_per_machine: Count = 1
    inner_bandwidth: Bandwidth | None = None
    inner_latency: Time | None = None
    whole_machines: Truth = False
    network_efficiency: LinkPart = 1.0
    inner_efficiency: LinkPart = 1.0

    @model_validator(mode="after")
    def _has_inner_rate(self) -> Self:
        inner = {"inner_bandwidth": self.inner_bandwidth, "inner_latency": self.inner_latency}
        for key, value in inner.items():
            if self.units_per_machine > 1 and value is None:
                raise ValueError(f"{key} is missing: with units_per_machine above 1, say what connects them inside")
            if self.units_per_machine == 1 and value is not None:
                raise ValueError(f"{key} is of machines with several units; say how many: units_per_machine = 8")
        if self.whole_machines and self.units_per_machine == 1:
            raise ValueError("whole_machines is of machines with several units; say how many: units_per_machine = 8")
        if self.whole_machines and self.max_units % self.units_per_machine:
            whole = self.max_units // self.units_per_machine * self.units_per_machine
            raise ValueError(
                f"max_units is {self.max_units}, and units are rented in machines of {self.units_per_machine}; take "
                f"{whole or self.units_per_machine}"
            )
        return self


class Link(_Table):
    """A table under a heading ``[[link]]``."""

    between: Annotated[list[Name], _is(_is_list_of(str, 2, 2), 'two devices, such as ["cpu-core", "v100"]')]
    bandwidth: Bandwidth
    latency: Time


class Server(_Priced):
    """The table under the heading ``[parameter_server]``."""

    bandwidth: Bandwidth
    memory: Size = SERVER_MEMORY_BYTES
    per_table: Time = SERVER_PER_TABLE_S


class Pool(_Table):
    """The whole file."""

    description: Text = ""
    currency: Currency = "USD"
    device: Annotated[
        list[Device],
        _is(
            _is_list_of(dict, 1, MAX_DEVICE_TYPES),
            f"at least one and at most {MAX_DEVICE_TYPES} tables, each under a heading [[device]]",
        ),
    ]
    link: Annotated[list[Link], _is(_is_list_of(dict, 0, 10**6), "tables, each under a heading [[link]]")] = []
    parameter_server: (
        Annotated[Server, _is(lambda value: isinstance(value, dict), "one table, under [parameter_server]")] | None
    ) = None

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        names = [device.name for device in self.device]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"device {name!r} stands {names.count(name)} times; names must differ")
        priced = {f"device {device.name!r}": device.price for device in self.device}
        if self.parameter_server is not None:
            priced["the parameter server"] = self.parameter_server.price
        for what, (price, currency) in priced.items():
            if price and currency != self.currency:
                raise ValueError(
                    f"{what} is priced in {currency}, the pool in {self.currency}; "
                    "a pool has one currency, which the key currency at the top of the file names"
                )
        pairs = [tuple(sorted(link.between)) for link in self.link]
        for first, second in pairs:
            for name in {first, second} - set(names):
                raise ValueError(f"a link names the device {name!r}; the pool has {', '.join(map(repr, names))}")
            if pairs.count((first, second)) > 1:
                raise ValueError(f"{pairs.count((first, second))} links between {first!r} and {second!r}; give one")
        return self


def parse_pool(document: Mapping[str, Any]) -> Pool:
    """Check what a file says.

    Raises:
        InputError: with the place, what was expected, and how many more faults there are.
    """
    try:
        return Pool.model_validate(document)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        # a misspelt key is missing too: of the two it is the one that tells
        fault = next((fault for fault in faults if fault["type"] == "extra_forbidden"), faults[0])
        more = "" if len(faults) == 1 else f" (and {counted(len(faults) - 1, 'more fault')})"
        raise InputError(f"{_place(fault['loc'], document)}: {_words(fault)}{more}") from error


_TABLES: Mapping[str, type[_Table]] = MappingProxyType({"device": Device, "link": Link, "parameter_server": Server})


def _place(location: Sequence[int | str], document: Mapping[str, Any]) -> str:
    where = [str(part) for part in location if part != "[key]"]  # pydantic's word for the key itself
    if len(location) > 1 and isinstance(location[1], int):
        entry = document[where[0]][location[1]]
        named = entry.get("name") if isinstance(entry, dict) else None
        where[:2] = [f"{where[0]} {named!r}" if isinstance(named, str) else f"{where[0]} number {location[1] + 1}"]
    return ", key ".join(where) or "the file"


def _table_at(location: Sequence[int | str]) -> type[_Table]:
    """Return the table that a place in the file is in."""
    if "rates" in location:
        return Rate
    return _TABLES.get(str(location[0]), Pool) if location else Pool


def _words(fault: Mapping[str, Any]) -> str:
    key = str(fault["loc"][-1]) if fault["loc"] else ""
    if fault["type"] == "extra_forbidden":
        known = _table_at(fault["loc"][:-1]).model_fields
        near = difflib.get_close_matches(key, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return f"unknown key{hint} (known keys: {', '.join(known)})"
    if fault["type"] == "missing":
        if key == "device":
            return "there is none; expected at least one table, under a heading [[device]]"
        return f"the key is missing; expected such as {_example(key)}"
    return str(fault["msg"]).removeprefix("Value error, ")


def _example(key: str) -> str:
    """Return the line of a built-in pool that has a key, without its comment."""
    text = resources.files("heterps_compile.cluster").joinpath("pools", _EXAMPLE).read_text("utf-8")
    found = re.search(rf"^(?:# )?({key} = (?:\[.*?\]|\{{.*?\}}|\".*?\"|\S+))", text, re.MULTILINE)
    return key if found is None else found[1]
