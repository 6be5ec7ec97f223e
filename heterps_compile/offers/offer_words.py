"""Offers, printed for people and for programs.

Left out: reading and selecting them (``catalogue.py``).
"""

import datetime as dt
import json
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from heterps_compile.console import add_numbers, add_text, note_text, plain_table
from heterps_compile.escape import printable
from heterps_compile.units import counted, format_bytes, format_count, format_money

from .as_device import assumed, known_gpus
from .catalogue import Catalogue
from .offer import CURRENCY, Offer

FORMAT_VERSION = 1
_MOST_SHOWN = 100
_WIDE = 100  # columns from which on memory and network have columns of their own

SORTS: Mapping[str, Callable[[Offer], Any]] = {
    "price": lambda offer: offer.price_per_hour,
    "unit-price": lambda offer: offer.price_per_hour / offer.units,
    "spot": lambda offer: float("inf") if offer.spot_per_hour is None else offer.spot_per_hour,
    "gpu": lambda offer: (offer.gpu, offer.gpus, offer.price_per_hour),
    "region": lambda offer: (offer.provider, offer.region, offer.price_per_hour),
    "date": lambda offer: offer.price_date,
}
"""What offers may be sorted by."""


def sorted_offers(catalogue: Catalogue, by: str) -> list[Offer]:
    """Return the offers in an order of :data:`SORTS`; those that are equal in the order of their names."""
    return sorted(catalogue.offers, key=lambda offer: (SORTS[by](offer), offer.provider, offer.region, offer.instance))


def print_offers(console: Console, catalogue: Catalogue, *, by: str, today: dt.date, fresh_days: int) -> None:
    """Print the offers, where their prices are from, and what is to be known of them."""
    offers = sorted_offers(catalogue, by)
    is_wide = console.width >= _WIDE
    table = plain_table()
    add_text(table, "where", "instance")
    add_text(table, "GPUs", no_wrap=True)
    add_numbers(table, "cores", *(("memory", "network") if is_wide else ()), f"{CURRENCY}/h", "spot", "from")
    read = [(offer.price_date, offer.source) for offer in offers[:_MOST_SHOWN]]
    sources = list(dict.fromkeys(read))
    for offer in offers[:_MOST_SHOWN]:
        network = f"{format_count(offer.network_bytes_per_s)}B/s" if offer.network_bytes_per_s else "-"
        cells = (
            f"{printable(offer.provider)} {printable(offer.region)}",
            printable(offer.instance),
            f"{offer.gpus} {printable(offer.gpu)}" if offer.gpu else "-",
            f"{offer.cores:,}",
            *((format_bytes(offer.memory_bytes), network) if is_wide else ()),
            format_money(offer.price_per_hour),
            "-" if offer.spot_per_hour is None else format_money(offer.spot_per_hour),
            f"[{sources.index((offer.price_date, offer.source)) + 1}]",
        )
        table.add_row(*map(Text, cells))
    console.print(table)
    if len(offers) > _MOST_SHOWN:
        console.print(Text(f"… {len(offers) - _MOST_SHOWN:,} more offers; --json has all"))
    console.print()
    for number, (date, source) in enumerate(sources, 1):
        console.print(Text(f"[{number}]  read {date}: {printable(source)}"))
    for note in notes_on(catalogue, today=today, fresh_days=fresh_days):
        console.print(note_text(note))


def notes_on(catalogue: Catalogue, *, today: dt.date, fresh_days: int) -> list[str]:
    """Return what is to be known of the offers: what was left out, old prices, GPUs that no plan can be made for."""
    notes = list(catalogue.notes)
    if old := catalogue.stale(today=today, fresh_days=fresh_days):
        verb = "is" if len(old) == 1 else "are"
        notes.append(
            f"{counted(len(old), 'price')} of {len(catalogue.offers):,} {verb} older than {counted(fresh_days, 'day')} "
            f"on {today}, the oldest of {old[0].price_date}; ask the provider before money depends on them"
        )
    if ahead := [offer for offer in catalogue.offers if (offer.price_date - today).days > 1]:
        verb = "lies" if len(ahead) == 1 else "lie"
        notes.append(
            f"{counted(len(ahead), 'price')} of {len(catalogue.offers):,} {verb} ahead of this machine's date, {today}"
            f": {ahead[0].title}, read {ahead[0].price_date}"
        )
    known = known_gpus()
    unknown = sorted({offer.gpu for offer in catalogue.offers if offer.gpu and not _has_sheet(offer.gpu, known)})
    if unknown:
        named = ", ".join(map(printable, unknown[:6])) + (f" and {len(unknown) - 6} more" if len(unknown) > 6 else "")
        notes.append(f"no data sheet is known of {named}, so no plan can be made for them (known: {', '.join(known)})")
    return notes


def _has_sheet(gpu: str, known: tuple[str, ...]) -> bool:
    return any(gpu == name or (gpu.startswith(f"{name}-") and gpu.endswith("gb")) for name in known)


def offers_document(catalogue: Catalogue, *, by: str, today: dt.date, fresh_days: int) -> str:
    """Return the offers as a JSON document; its keys are a promise."""
    old = {id(offer) for offer in catalogue.stale(today=today, fresh_days=fresh_days)}
    known = known_gpus()
    return json.dumps(
        {
            "format_version": FORMAT_VERSION,
            "catalogue": catalogue.source,
            "currency": CURRENCY,
            "offers": [
                _record(offer, is_stale=id(offer) in old, has_sheet=not offer.gpu or _has_sheet(offer.gpu, known))
                for offer in sorted_offers(catalogue, by)
            ],
            "notes": notes_on(catalogue, today=today, fresh_days=fresh_days),
        },
        indent=2,
        allow_nan=False,
    )


def _record(offer: Offer, *, is_stale: bool, has_sheet: bool) -> dict[str, Any]:
    return {
        "provider": offer.provider,
        "region": offer.region,
        "instance": offer.instance,
        "gpu": offer.gpu or None,
        "gpus": offer.gpus,
        "cores": offer.cores,
        "memory_bytes": offer.memory_bytes,
        "gpu_memory_bytes": offer.gpu_memory_bytes or None,
        "network_bytes_per_s": offer.network_bytes_per_s or None,
        "inner_bytes_per_s": offer.inner_bytes_per_s or None,
        "price_per_hour": offer.price_per_hour,
        "spot_per_hour": offer.spot_per_hour,
        "price_date": offer.price_date.isoformat(),
        "source": offer.source,
        "is_stale": is_stale,
        "has_data_sheet": has_sheet,
        "assumed": list(assumed(offer)) if has_sheet else [],
    }
