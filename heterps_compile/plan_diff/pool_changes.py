"""What a pool says otherwise than another one: prices, units, speeds, links, by value and not by a hash.

Left out: descriptions, names of pools (a setting of the plan), what the change does to a plan (``compare_plans.py``).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from math import inf
from types import MappingProxyType
from typing import Any

from heterps_compile.cluster.devices import Cluster
from heterps_compile.escape import Escape
from heterps_compile.units import format_bytes, format_money, format_seconds, plain_number

_SHOWN = 6


@dataclass(frozen=True, slots=True)
class PoolChange:
    """One thing that two pools say otherwise.

    Attributes:
        of: The device type, the link (``"cpu-core and v100"``) or ``"the parameter server"``; "" for the whole pool.
        what: In words: ``"price"``, ``"network bandwidth"``; "" where all of it came or went.
        old, new: As text with units; "" where the pool has none.
    """

    of: str
    what: str
    old: str
    new: str

    def told(self, escape: Escape) -> str:
        """Return it in words."""
        if not self.what:
            return f"{escape(self.of)} is {'gone' if self.old else 'new'}"
        of = f" of {escape(self.of)}" if self.of else ""
        return f"{self.what}{of} is {escape(self.new) or 'none'}, was {escape(self.old) or 'none'}"


def told_together(changes: Sequence[PoolChange], escape: Escape) -> str:
    """Return some changes in one line, the first six of them."""
    shown = [change.told(escape) for change in changes[:_SHOWN]]
    more = [f"{len(changes) - _SHOWN} more"] if len(changes) > _SHOWN else []
    return "; ".join([*shown, *more])


def compare_pools(old: Cluster, new: Cluster) -> tuple[PoolChange, ...]:
    """Return what two pools say otherwise, the device types in the order of the new one."""
    return tuple(_changes(old, new))


def _changes(old: Cluster, new: Cluster) -> Iterator[PoolChange]:
    if old.currency != new.currency:
        yield PoolChange("", "currency", old.currency, new.currency)
    yield from _named(
        {device.name: device for device in old.device_types},
        {device.name: device for device in new.device_types},
        (old.currency, new.currency),
    )
    yield from _named(_links(old), _links(new), (old.currency, new.currency))
    servers = [
        {} if pool.parameter_server is None else {"the parameter server": pool.parameter_server} for pool in (old, new)
    ]
    yield from _named(servers[0], servers[1], (old.currency, new.currency))


def _links(pool: Cluster) -> dict[str, Any]:
    return {f"the link between {' and '.join(sorted(link.between))}": link for link in pool.links}


def _named(old: Mapping[str, Any], new: Mapping[str, Any], currencies: tuple[str, str]) -> Iterator[PoolChange]:
    for name in [*new, *(name for name in old if name not in new)]:
        if name not in old or name not in new:
            yield PoolChange(name, "", name if name in old else "", name if name in new else "")
            continue
        was, now = _facts(old[name]), _facts(new[name])
        for fact in dict.fromkeys([*now, *was]):
            before, after = was.get(fact), now.get(fact)
            if before != after:
                texts = [_text(fact, value, at) for value, at in zip((before, after), currencies, strict=True)]
                if texts[0] == texts[1]:  # rounded alike
                    texts = [f"{text} ({value!r})" for text, value in zip(texts, (before, after), strict=True)]
                yield PoolChange(name, _words(fact), *texts)


def _facts(of: Any) -> dict[str, Any]:
    """Return the fields of a part of a pool, peaks and rates one by one."""
    values = {field.name: getattr(of, field.name) for field in fields(of) if field.name not in ("name", "between")}
    peaks = values.pop("peak_flops", {})
    rates = {
        f"{kind} {field.name}": getattr(rate, field.name)
        for kind, rate in values.pop("rates", {}).items()
        for field in fields(rate)
    }
    return values | {f"peak {dtype}": rate for dtype, rate in peaks.items()} | rates


_SUFFIXES: Mapping[str, tuple[str, Callable[[float], str]]] = MappingProxyType(
    {
        "_flops_per_s": (" arithmetic", lambda value: f"{value:.4g} FLOP/s"),
        "_bytes_per_s": (" bandwidth", lambda value: f"{format_bytes(value)}/s"),
        "_bytes": ("", format_bytes),
        "_s": ("", format_seconds),
    }
)
"""What the unit at the end of a field's name stands for: in words, and as text."""


def _words(fact: str) -> str:
    if fact == "price_per_hour":
        return "price"
    suffix = next((s for s in _SUFFIXES if fact.endswith(s)), "")
    words = (fact.removesuffix(suffix) + (_SUFFIXES[suffix][0] if suffix else "")).replace("_", " ").strip()
    return words if words != "bandwidth" else "speed"


def _text(fact: str, value: Any, currency: str) -> str:
    if value is None or value in ("", inf):
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(value)
    if fact == "price_per_hour":
        return f"{format_money(value)} {currency}/h" if value else "free"
    if fact.startswith("peak "):
        return f"{value:.4g} FLOP/s"
    suffix = next((s for s in _SUFFIXES if fact.endswith(s)), "")
    return _SUFFIXES[suffix][1](value) if suffix else plain_number(value)
