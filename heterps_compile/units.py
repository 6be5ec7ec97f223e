"""Quantities with their units: parsed from text such as "25 Gbit/s", printed for people.

Every number that a person writes carries a unit, and every number in the code carries it in its name.
Decimal prefixes (k, M, G, T, P) are powers of 1,000; binary ones (Ki, Mi, Gi, Ti) powers of 1,024.
Bits and bytes are never mixed: "bit" is a bit, "B" a byte.

Left out: conversion between currencies, compound units beyond those below.
"""

import math
import re
from collections.abc import Sequence

from .errors import InputError
from .escape import short

_PREFIXES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15} | {
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40
}  # fmt: skip

# dimension -> {base unit: factor to the unit of the result}
_UNITS: dict[str, dict[str, float]] = {
    "bytes": {"B": 1.0},
    "bytes per second": {"B/s": 1.0, "bit/s": 0.125, "bps": 0.125},
    "FLOP per second": {"FLOP/s": 1.0, "FLOPS": 1.0, "OP/s": 1.0},
    "seconds": {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9},  # micro sign and Greek mu
}
_EXAMPLES = {
    "bytes": "16 GiB",
    "bytes per second": "25 Gbit/s",
    "FLOP per second": "14 TFLOP/s",
    "seconds": "20 us",
}
NUMBER = r"[-+]?(?:\d+(?:_\d+)*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
"""A pattern of the numbers that people write, with ``re.ASCII``: all that it matches, ``float`` reads."""

_QUANTITY = re.compile(rf"\s*({NUMBER})\s*(\S*)\s*", re.ASCII)
_PRICE = re.compile(rf"\s*({NUMBER})\s*([A-Z]{{3}})\s*/\s*(?:h|hour)\s*", re.ASCII)
_LEAST, _MOST = 1e-15, 1e24  # of a quantity: beyond them products of two overflow before they mean anything
_LEAST_PRICE, _MOST_PRICE = 1e-6, 1e9


def parse_quantity(text: object, dimension: str) -> float:
    """Parse "16 GiB" and the like into bytes, bytes per second, FLOP per second or seconds.

    Args:
        text: What the person wrote.
        dimension: A key of the table above.

    Raises:
        InputError: where the text is no positive number with a unit of that dimension.
    """
    expected = f'expected {dimension} with a unit, such as "{_EXAMPLES[dimension]}"'
    match = _QUANTITY.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise InputError(f"{short(text)} is no quantity: {expected}")
    amount, unit = float(match[1]), match[2]
    for base, factor in _UNITS[dimension].items():
        prefix = unit.removesuffix(base)
        # seconds take no prefix here: ms, us and ns are units of their own, and "Ms" is nobody's intention
        if unit.endswith(base) and (prefix == "" or (prefix in _PREFIXES and dimension != "seconds")):
            result = amount * _PREFIXES[prefix] * factor
            if not math.isfinite(result) or result <= 0:
                raise InputError(f"{short(text)} must be positive and finite: {expected}")
            if not _LEAST <= result <= _MOST:
                raise InputError(f"{short(text)} must lie between {_LEAST:g} and {_MOST:g}: {expected}")
            return result
    missing = "has no unit" if unit == "" else f"has unknown unit {short(unit)}"
    raise InputError(f"{short(text)} {missing}: {expected}")


def parse_price(text: object) -> tuple[float, str]:
    """Parse "2.42 USD/h" into (2.42, "USD"), or "free" into (0.0, "USD").

    Raises:
        InputError: where the text is neither "free" nor a positive price per hour with its currency.
    """
    expected = 'expected a price per hour with its currency, such as "2.42 USD/h", or "free"'
    if text == "free":
        return 0.0, "USD"
    match = _PRICE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise InputError(f"{short(text)} is no price: {expected}")
    amount = float(match[1])
    if amount <= 0:
        raise InputError(f"{short(text)} must be above zero: {expected}")
    if not _LEAST_PRICE <= amount <= _MOST_PRICE:
        raise InputError(f"{short(text)} must lie between {_LEAST_PRICE:g} and {_MOST_PRICE:,.0f} an hour: {expected}")
    return amount, match[2]


def _scaled(amount: float, steps: tuple[tuple[float, str], ...]) -> str:
    for size, unit in steps:
        if abs(amount) >= size:
            return f"{amount / size:.3g} {unit}" if abs(amount) / size < 999.5 else f"{amount / size:,.0f} {unit}"
    size, unit = steps[-1]
    return f"{amount / size:.3g} {unit}"


def plain_number(number: float) -> str:
    """Print a number so that it is read again as the same: "30", "0.0012345678"."""
    brief = f"{number:g}"
    return brief if float(brief) == number else repr(number)


def counted(count: int, thing: str) -> str:
    """Return a number of things: ``1 node``, ``2 nodes``, ``2 micro-batches``, ``2 processes``."""
    many = "" if count == 1 else "es" if thing.endswith(("ch", "ss")) else "s"
    return f"{count:,} {thing}{many}"


def in_words(things: Sequence[str]) -> str:
    """Join things as a sentence does: ``"a, b and c"``."""
    *before, last = things
    return f"{', '.join(before)} and {last}" if before else last


def format_bytes(size_bytes: float) -> str:
    """Print bytes with a binary prefix: "1.5 GiB"."""
    if size_bytes < 1024:
        return f"{size_bytes:.0f} B"
    return _scaled(size_bytes, ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB")))


def format_seconds(time_s: float) -> str:
    """Print a time: "3.2 ms"."""
    if time_s == 0:
        return "0 s"
    return _scaled(time_s, ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")))


def format_duration(time_s: float) -> str:
    """Print a time that people wait for: "2.1 d", "5.3 h", "12 min"."""
    for least_s, unit_s, unit in ((2 * 86_400.0, 86_400.0, "d"), (3600.0, 3600.0, "h"), (60.0, 60.0, "min")):
        if time_s >= least_s:
            return f"{time_s / unit_s:,.3g} {unit}"
    return f"{plain_number(float(f'{time_s:.3g}'))} s"


def trace_ns(time_s: float) -> int:
    """Return a time in the whole nanoseconds that Perfetto keeps."""
    return round(time_s * 1e9)


def trace_thread(replica: int) -> int:
    """Return the number of a replica's thread: Perfetto takes thread 0 for the one that has its process's number."""
    return replica + 1


def trace_slice(start_s: float, end_s: float) -> dict[str, float]:
    """Return ``ts`` and ``dur`` of a slice of a Chrome trace, in microseconds.

    Both ends lie on whole nanoseconds: Perfetto drops a slice that begins before its neighbour ends, be it by the
    rounding of a length.
    """
    start_ns = trace_ns(start_s)
    return {"ts": start_ns / 1e3, "dur": (trace_ns(end_s) - start_ns) / 1e3}


def format_count(number: float) -> str:
    """Print a large count with a decimal prefix: "3.9 G"."""
    if abs(number) < 1000:
        return f"{number:.3g}"
    return _scaled(number, ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")))


def format_rate(samples_per_s: float) -> str:
    """Print a throughput: "12,300 samples/s"."""
    return f"{rate_number(samples_per_s)} samples/s"


def rate_number(samples_per_s: float) -> str:
    """Print a throughput without its unit, for a column that names it: "12,300"."""
    return f"{samples_per_s:,.0f}" if 100 <= samples_per_s < 1e15 else f"{samples_per_s:.3g}"


def format_money(amount: float) -> str:
    """Print money with as many digits as it needs: "2.42", "0.00031"."""
    if amount == 0:
        return "0"
    return f"{amount:,.2f}" if abs(amount) >= 1 else f"{amount:.3g}"


def format_share(share: float) -> str:
    """Print a part of a whole: "4.8 %" of 0.048."""
    return format_percent(100 * share)


def format_percent(percent: float) -> str:
    """Print a share or a change without exponents: "4.8 %", "3,570 %"."""
    return f"{percent:,.0f} %" if abs(percent) >= 999.5 else f"{percent:.3g} %"
