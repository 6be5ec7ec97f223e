"""A catalogue of offers: the built-in one, or a file's; what of it is asked for; whose prices are old.

The built-in one is ``snapshot.csv``, prices that were read once, each with its date and source. Prices change: the
age of those that are used is told.

Left out: formats of files (``formats.py``), fetching anything.
"""

import datetime as dt
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from pathlib import Path

from heterps_compile.errors import InputError, UnknownNameError
from heterps_compile.escape import printable, short
from heterps_compile.units import counted

from .csv_rows import Row, parse_rows, read_rows
from .formats import File, Found, LeftOut, SpotRow, format_of
from .offer import CURRENCY, Offer
from .priced_apart import GpuRow, HostRow, join

BUILT_IN = "built-in catalogue"
NO_GPU = "none"
"""What selects machines without GPUs."""

_SHOWN = 6


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Offers, and where they are from.

    Attributes:
        offers: In the order of the file.
        source: What messages call it.
        notes: What of the file is no offer, or joined, in sentences.
    """

    offers: tuple[Offer, ...]
    source: str
    notes: tuple[str, ...] = ()

    def select(
        self,
        *,
        gpu: Sequence[str] = (),
        region: Sequence[str] = (),
        provider: Sequence[str] = (),
        spot: bool = False,
    ) -> "Catalogue":
        """Return the offers that are asked for.

        Args:
            gpu: Kinds of GPUs, names or patterns such as ``"a100*"``, any of which counts; ``"none"`` for machines
                without any; all where none is given.
            region: Regions likewise.
            provider: Providers likewise.
            spot: Keep those that are sold as transient machines too.

        Raises:
            UnknownNameError: where a name is nobody's; has the nearest.
            InputError: where every name is somebody's and no offer has them all.
        """
        asked = {"GPU": tuple(name.lower() for name in gpu), "region": tuple(region), "provider": tuple(provider)}
        chosen = self.offers
        for what, patterns in asked.items():
            for pattern in patterns:
                if not any(fnmatchcase(_name_of(offer, what), pattern) for offer in self.offers):
                    names = sorted({_name_of(offer, what) for offer in self.offers})
                    raise UnknownNameError(f"{what} of the {self.source}", pattern, names)
            if patterns:
                kept = tuple(o for o in chosen if any(fnmatchcase(_name_of(o, what), pattern) for pattern in patterns))
                if not kept:
                    others = _few(sorted({_name_of(offer, what) for offer in chosen}))
                    raise InputError(
                        f"no offer of the {self.source} is what is asked for: "
                        f"{_words(asked)} are nowhere together; without {what}, there is {others}"
                    )
                chosen = kept
        if spot:
            sold = tuple(offer for offer in chosen if offer.spot_per_hour is not None)
            if not sold:
                raise InputError(
                    f"of what is asked for ({counted(len(chosen), 'offer')}), nothing in the {self.source} has a spot "
                    f"price; {self._sold_elsewhere(asked)}leave --spot out"
                )
            chosen = sold
        return replace(self, offers=chosen)

    def _sold_elsewhere(self, asked: Mapping[str, tuple[str, ...]]) -> str:
        """Return which other regions, GPUs or providers have transient machines with all else as asked, as advice."""
        found = []
        for what in reversed(list(asked)):
            others = {name: patterns for name, patterns in asked.items() if name != what and patterns}
            if not asked[what]:
                continue
            names = {
                _name_of(offer, what)
                for offer in self.offers
                if offer.spot_per_hour is not None
                and all(any(fnmatchcase(_name_of(offer, name), p) for p in others[name]) for name in others)
            }
            if names:
                found.append(f"{what} {_few(sorted(names))}")
        return f"with all else as asked, {' or '.join(found)} would have one: ask for that, or " if found else ""

    def stale(self, *, today: dt.date, fresh_days: int) -> tuple[Offer, ...]:
        """Return the offers whose prices were read more than so many days ago, the oldest first."""
        old = (offer for offer in self.offers if (today - offer.price_date).days > fresh_days)
        return tuple(sorted(old, key=lambda offer: offer.price_date))


def read_catalogue(path: str | Path | None = None) -> Catalogue:
    """Read a catalogue.

    Args:
        path: A CSV file of this package's own format, of SkyPilot's or of gpuhunt's; the built-in one where none is
            named.

    Raises:
        InputError: in one sentence, with the row, what stands there and what was expected.
    """
    if path is None:
        return _built_in()
    where = printable(repr(str(path)))
    file = Path(path)
    return _with_known_networks(_read(read_rows(file, where), where, lambda: _file(file)))


@cache
def _built_in() -> Catalogue:
    text = resources.files("heterps_compile.offers").joinpath("snapshot.csv")
    with text.open(encoding="utf-8") as file:
        return _read(parse_rows(file, BUILT_IN), BUILT_IN, lambda: File("", dt.date.min, BUILT_IN))


def _with_known_networks(read: Catalogue) -> Catalogue:
    """Take known networks of the same instances from the built-in catalogue."""
    known = {(offer.provider, offer.instance): offer for offer in _built_in().offers if offer.network_bytes_per_s}
    pairs = [(o, None if o.network_bytes_per_s else known.get((o.provider, o.instance))) for o in read.offers]
    joined = dict.fromkeys(offer.instance for offer, same in pairs if same is not None)
    notes = (f"networks from the {BUILT_IN}: {_few(joined)}",) if joined else ()
    offers = tuple(offer if same is None else _with_network(offer, same) for offer, same in pairs)
    return replace(read, offers=offers, notes=(*read.notes, *notes))


def _with_network(offer: Offer, same: Offer) -> Offer:
    inner = offer.inner_bytes_per_s or same.inner_bytes_per_s
    return replace(offer, network_bytes_per_s=same.network_bytes_per_s, inner_bytes_per_s=inner)


def _file(path: Path) -> File:
    """Return what a file's name says: SkyPilot has a folder a provider, gpuhunt a file a provider."""
    folder = path.resolve().parent.name
    provider = folder if path.stem in ("vms", "catalog") and folder else path.stem
    if not provider.isprintable() or not provider:
        raise InputError(f"the file {short(str(path))} is of no provider: name it after one, such as aws.csv")
    return File(provider, dt.datetime.fromtimestamp(path.stat().st_mtime, dt.UTC).date(), printable(path.name))


def _read(rows: Iterator[Row], where: str, file_of: Callable[[], File]) -> Catalogue:
    gathered = _Gathered()
    format_ = file = None
    for row in rows:
        if format_ is None or file is None:
            format_, file = format_of(row.cells, where), file_of()
        _check_currency(row)
        found = format_.read(row, file)
        if isinstance(found, Offer) and not format_.joins_rows and _key(found) in gathered.offers:
            raise row.wrong(f"{found.title} stands there a second time; keep one row of it")
        gathered.add(found)
    offers, notes = gathered.result()
    if not offers:
        raise InputError(f"{where} has no offer{': ' + '; '.join(notes) if notes else ' below its header'}")
    return Catalogue(offers, where, notes)


def _check_currency(row: Row) -> None:
    """Refuse a row that says in a column of its own that its prices are in another currency."""
    for column, cell in row.cells.items():
        if column.lower() in ("currency", "price_currency") and cell.upper() not in ("", CURRENCY):
            raise row.wrong(
                f"{printable(column)} is {short(cell)}, and offers are priced in {CURRENCY}; convert its prices"
            )


_Key = tuple[str, str, str, str, int]


class _Gathered:
    """What the rows of a file have together; rows of one machine are one offer with the lowest prices."""

    def __init__(self) -> None:
        self.offers: dict[_Key, Offer] = {}
        self._spots: dict[_Key, float] = {}
        self._left_out: Counter[str] = Counter()
        self._hosts: list[HostRow] = []
        self._gpus: list[GpuRow] = []
        self._joined = 0

    def add(self, found: Found) -> None:
        """Take what a row is."""
        match found:
            case LeftOut(reason):
                self._left_out[reason] += 1
            case HostRow():
                self._hosts.append(found)
            case GpuRow():
                self._gpus.append(found)
            case SpotRow(offer):
                self._add_spot(offer)
            case Offer():
                self._add_spot(found)
                earlier = self.offers.get(_key(found))
                self._joined += earlier is not None
                if earlier is None or found.price_per_hour < earlier.price_per_hour:
                    self.offers[_key(found)] = found

    def _add_spot(self, offer: Offer) -> None:
        if offer.spot_per_hour is not None:
            self._spots[_key(offer)] = min(offer.spot_per_hour, self._spots.get(_key(offer), offer.spot_per_hour))

    def result(self) -> tuple[tuple[Offer, ...], tuple[str, ...]]:
        """Return the offers, and what was left out or joined."""
        machines, hosts_alone, gpus_alone = join(self._hosts, self._gpus)
        for offer in machines:
            self.add(offer)
        self._left_out["with a machine whose GPUs have no price"] += hosts_alone
        self._left_out["with a GPU and no machine"] += gpus_alone
        notes = [f"left out: {counted(count, 'row')} {why}" for why, count in sorted(self._left_out.items()) if count]
        only_spot = len(self._spots.keys() - self.offers.keys())
        if only_spot:
            notes.append(f"left out: {counted(only_spot, 'machine')} without a price on demand")
        if self._joined:
            notes.append(
                f"joined: {counted(self._joined, 'row')} of further zones of a region, whose lowest price counts"
            )
        offers = (replace(offer, spot_per_hour=self._spots.get(key)) for key, offer in self.offers.items())
        return tuple(offers), tuple(notes)


def _key(offer: Offer) -> _Key:
    return offer.provider, offer.region, offer.instance, offer.gpu, offer.gpus


def _name_of(offer: Offer, what: str) -> str:
    return {"GPU": offer.gpu or NO_GPU, "region": offer.region, "provider": offer.provider}[what]


def _words(asked: Mapping[str, tuple[str, ...]]) -> str:
    return ", ".join(f"{what} {_few(names)}" for what, names in asked.items() if names)


def _few(names: Iterable[str]) -> str:
    """Return a few of many names, escaped for a message."""
    told = [printable(name) for name in names]
    more = f" and {len(told) - _SHOWN} more" if len(told) > _SHOWN else ""
    return ", ".join(told[:_SHOWN]) + more
