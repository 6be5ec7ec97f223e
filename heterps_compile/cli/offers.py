"""``heterps-compile offers``: what clouds rent, with prices that say when and where they were read.

Left out: reading catalogues and the looks of them (``offers/``).
"""

import datetime as dt
from typing import Any

import click

from heterps_compile.fit_lines import terminal_width
from heterps_compile.plan.command_options import CATALOGUE, OFFERS

from . import options
from .output import printing, result_stream


@click.command("offers")
@options.takes(OFFERS)
@click.pass_context
def offers(ctx: click.Context, /, **_: Any) -> None:
    """List what clouds rent: machines, prices on demand and as spot, when and where each was read.

    Without --catalogue it is the built-in one, which is small: every price in it can be traced. A FILE is a catalogue
    of SkyPilot or of gpuhunt, or one of your own; docs/offers.md says every column. Prices are in USD an hour, of the
    whole machine.

    \b
    Examples:
      heterps-compile offers
      heterps-compile offers --gpu v100,a100* --region us-* --sort unit-price
      heterps-compile offers --gpu none --provider aws --spot
      heterps-compile offers --catalogue ~/.sky/catalogs/v8/aws/vms.csv
      heterps-compile offers --gpu h100 --json | jq '.offers[0]'
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a backspace
    with options.asked_of(ctx, OFFERS, CATALOGUE) as asked:
        from heterps_compile.offers.catalogue import read_catalogue  # noqa: PLC0415 - pydantic
        from heterps_compile.offers.offer_words import offers_document, print_offers  # noqa: PLC0415 - rich

        today = dt.datetime.now(dt.UTC).date()
        catalogue = read_catalogue(asked["catalogue"]).select(**asked.some("gpu", "region", "provider", "spot"))
        told = {"by": asked["sort"], "today": today, "fresh_days": asked["fresh_days"]}
        as_json = asked["as_json"]
        with result_stream() as stream, printing("the offers"):
            if as_json:
                stream.write(offers_document(catalogue, **told) + "\n")
            else:
                from heterps_compile.console import make_console  # noqa: PLC0415 - rich

                print_offers(make_console(stream, terminal_width(stream)), catalogue, **told)
            stream.flush()
