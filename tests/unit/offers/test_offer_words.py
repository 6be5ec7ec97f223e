"""The command ``offers``: its table, its JSON, and what it says of prices that are old."""

import datetime as dt
import json

from click.testing import CliRunner

from heterps_compile.cli.main import command
from heterps_compile.offers.catalogue import read_catalogue
from heterps_compile.offers.offer_words import SORTS, notes_on, sorted_offers
from heterps_compile.plan.command_options import OFFER_SORTS

COLUMNS = (
    "provider,region,instance,gpu,gpus,cores,memory_gib,gpu_memory_gib,network_gbit_per_s,inner_gbyte_per_s,"
    "price_usd_per_hour,spot_usd_per_hour,price_date,source"
)
ROWS = (
    "aws,us-east-1,p3.2xlarge,v100,1,8,61,16,10,,3.06,0.92,2026-11-01,[bold]a page",
    "aws,us-east-1,p3.16xlarge,v100,8,64,488,16,25,150,20,,2019-11-01,[bold]a page",
    "gcp,us-central1,c3,,,44,88,,,,2,,2026-11-01,another page",
    "gcp,us-central1,odd,rtx-9000,2,4,16,24,,,1,,2026-11-01,another page",
)
TODAY = dt.date(2026, 11, 20)


def run(*words: str) -> str:
    done = CliRunner().invoke(command, ["offers", *words])
    assert done.exit_code == 0, done.output
    return done.output


def test_every_price_says_when_and_where_it_was_read(tmp_path):
    file = tmp_path / "mine.csv"
    file.write_text("\n".join((COLUMNS, *ROWS)))
    said = run("--catalogue", str(file)).splitlines()
    assert [" ".join(line.split()) for line in said[2:6]] == [
        "gcp us-central1 odd 2 rtx-9000 4 16 GiB - 1.00 - [1]",
        "gcp us-central1 c3 - 44 88 GiB - 2.00 - [1]",
        "aws us-east-1 p3.2xlarge 1 v100 8 61 GiB 1.25 GB/s 3.06 0.92 [2]",
        "aws us-east-1 p3.16xlarge 8 v100 64 488 GiB 3.12 GB/s 20.00 - [3]",
    ]
    assert said[7:10] == [
        "[1]  read 2026-11-01: another page",
        "[2]  read 2026-11-01: [bold]a page",
        "[3]  read 2019-11-01: [bold]a page",
    ]


def test_the_notes_say_what_is_old_what_lies_ahead_and_what_no_plan_can_be_made_for(tmp_path):
    file = tmp_path / "mine.csv"
    file.write_text("\n".join((COLUMNS, *ROWS)))
    old, unknown = notes_on(read_catalogue(file), today=TODAY, fresh_days=90)
    assert old.startswith("1 price of 4 is older than 90 days on 2026-11-20, the oldest of 2019-11-01;")
    assert unknown.startswith("no data sheet is known of rtx-9000, so no plan can be made for them (known: a10,")
    ahead = notes_on(read_catalogue(file), today=dt.date(2020, 1, 1), fresh_days=90)[0]
    assert ahead.startswith("3 prices of 4 lie ahead of this machine's date, 2020-01-01: aws p3.2xlarge in us-east-1,")


def test_the_document_has_every_offer_and_what_is_assumed_of_it(tmp_path):
    file = tmp_path / "mine.csv"
    file.write_text("\n".join((COLUMNS, *ROWS)))
    document = json.loads(run("--catalogue", str(file), "--json", "--sort", "unit-price", "--fresh-days", "36500"))
    assert [offer["instance"] for offer in document["offers"]] == ["c3", "odd", "p3.16xlarge", "p3.2xlarge"]
    cpu, odd, _, v100 = document["offers"]
    assert (cpu["gpu"], cpu["network_bytes_per_s"], cpu["is_stale"]) == (None, None, False)
    assert len(cpu["assumed"]) == 2
    assert (odd["has_data_sheet"], odd["assumed"]) == (False, [])
    assert (v100["price_date"], v100["spot_per_hour"], len(v100["assumed"])) == ("2026-11-01", 0.92, 1)


def test_offers_are_sorted_by_what_the_option_says():
    assert tuple(SORTS) == OFFER_SORTS
    found = read_catalogue()
    for by in OFFER_SORTS:
        keys = [SORTS[by](offer) for offer in sorted_offers(found, by)]
        assert keys == sorted(keys)
