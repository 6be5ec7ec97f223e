"""Catalogues: what is read of the three formats, what is selected, and what a hostile file is told."""

import csv
import datetime as dt
import os
import time
from pathlib import Path

import pytest

from heterps_compile.cluster.link_kinds import LINK_KINDS
from heterps_compile.errors import InputError, UnknownNameError
from heterps_compile.offers import assumed, csv_rows, device_of
from heterps_compile.offers.catalogue import read_catalogue
from heterps_compile.offers.formats import OWN_COLUMNS

OWN = ",".join(OWN_COLUMNS)
ROW = "aws,us-east-1,p3.2xlarge,v100,1,8,61,16,10,,3.06,0.92,2026-11-01,a page"
MORE = (
    "aws,eu-west-1,p3.16xlarge,V100,8,64,488,16,25,150,26.44,,2026-11-01,a page\n"
    "gcp,us-central1,g2-standard-4,l4,1,4,16,,,,0.71,0.28,2026-06-01,another page\n"
    "aws,eu-west-1,c5.18xlarge,,,72,144,,25,,3.456,1.2,2019-06-11,a gist\n"
)
SKY = "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,AvailabilityZone\n"
HUNT = "instance_name,location,price,cpu,memory,gpu_count,gpu_name,gpu_memory,spot,disk_size,gpu_vendor,flags\n"


def written(folder: Path, text: str, name: str = "offers.csv") -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, "utf-8")
    return path


def test_a_row_says_what_a_machine_has_in_the_units_of_its_columns(tmp_path):
    first, second, third, fourth = read_catalogue(written(tmp_path, f"{OWN}\n{ROW}\n{MORE}")).offers
    assert (first.title, first.gpu, first.units, first.cores) == ("aws p3.2xlarge in us-east-1", "v100", 1, 8)
    assert (first.memory_bytes, first.gpu_memory_bytes) == (61 * 2**30, 16 * 2**30)
    assert (first.network_bytes_per_s, first.inner_bytes_per_s) == (1.25e9, 0)
    assert (first.price_per_hour, first.spot_per_hour, first.price_date) == (3.06, 0.92, dt.date(2026, 11, 1))
    assert (second.gpu, second.units, second.spot_per_hour, second.inner_bytes_per_s) == ("v100", 8, None, 150e9)
    assert third.gpu_memory_bytes == 24 * 2**30  # of its data sheet
    assert (fourth.gpu, fourth.gpus, fourth.units, fourth.gpu_memory_bytes) == ("", 0, 72, 0)


def test_skypilots_rows_of_zones_are_one_offer_with_the_lowest_spot_price(tmp_path):
    info = "\"{'Gpus': [{'Name': 'V100', 'MemoryInfo': {'SizeInMiB': 16384}}], 'TotalGpuMemoryInMiB': 16384}\""
    rows = (
        f"p3.2xlarge,V100,1.0,8.0,61.0,{info},3.06,0.9,us-east-1,us-east-1a\n"
        f"p3.2xlarge,V100,1.0,8.0,61.0,{info},3.06,0.95,us-east-1,us-east-1b\n"
        f"p3.2xlarge,V100,1.0,8.0,61.0,{info},3.2,,us-west-2,us-west-2a\n"
        "c5.large,,,2.0,4.0,,0.085,,us-east-1,us-east-1a\n"
        ",T4,1.0,,,T4,0.35,0.11,us-central1,us-central1-a\n"
        "TPU-VM,tpu-v2-8,1.0,,,tpu-v2-8,4.5,1.35,us-central1,us-central1-b\n"
        "p9.half,A10,0.5,4.0,30.0,,1.0,0.2,us-east-1,a\n"
        "only-spot,A100-80GB,8,96,1000,,,9.5,us-east-1,a\n"
        "free-of-both,A100,8,96,1000,,,,us-east-1,a\n"
    )
    path = written(tmp_path, SKY + rows, "aws/vms.csv")
    os.utime(path, (0, dt.datetime(2026, 10, 3, 12, tzinfo=dt.UTC).timestamp()))
    found = read_catalogue(path)
    assert [(o.provider, o.region, o.instance, o.price_per_hour, o.spot_per_hour) for o in found.offers] == [
        ("aws", "us-east-1", "p3.2xlarge", 3.06, 0.9),
        ("aws", "us-west-2", "p3.2xlarge", 3.2, None),
        ("aws", "us-east-1", "c5.large", 0.085, None),
    ]
    assert found.offers[0].gpu_memory_bytes == 16 * 2**30
    assert found.offers[0].price_date == dt.date(2026, 10, 3)  # of the file
    assert found.notes == (
        "left out: 1 row of TPUs",
        "left out: 1 row with a GPU and no machine",
        "left out: 1 row with a part of a GPU",
        "left out: 1 row without a price",
        "left out: 1 machine without a price on demand",
        "joined: 1 row of further zones of a region, whose lowest price counts",
        "networks from the built-in catalogue: p3.2xlarge",
    )


def test_a_network_that_the_built_in_catalogue_states_is_no_guess(tmp_path):
    rows = (
        "p3.8xlarge,V100,4,32,244,,12.24,,us-east-1,us-east-1a\np9.8xlarge,V100,4,32,244,,12.24,,us-east-1,us-east-1a\n"
    )
    found = read_catalogue(written(tmp_path, SKY + rows, "aws/vms.csv"))
    reached = LINK_KINDS["cloud-ethernet"].efficiency
    assert [device_of(offer).network_bytes_per_s / reached for offer in found.offers] == [1.25e9, 6.25e9]
    assert [len(assumed(offer)) for offer in found.offers] == [1, 3]
    assert any("p3.8xlarge" in note for note in found.notes)
    assert not any("p9.8xlarge" in note for note in found.notes)


def test_google_machines_cost_what_their_gpus_in_rows_of_their_own_cost_too(tmp_path):
    rows = (
        "a2-highgpu-1g,,,12.0,85.0,,0.73948,0.44371,us-central1,us-central1-a\n"
        "a2-highgpu-1g,,,12.0,85.0,,0.73948,0.44371,us-central1,us-central1-b\n"
        ",A100,1.0,,,,2.93391,0.85,us-central1,us-central1-a\n"
        ",A100,1.0,,,,2.93391,0.80,us-central1,us-central1-b\n"
        ",A100,2.0,,,,5.86782,1.70,us-central1,us-central1-a\n"
        "g2-standard-24,,,24.0,96.0,,0.9,,us-central1,us-central1-a\n"
        ",L4,2.0,,,,1.1,0.4,us-central1,us-central1-a\n"
        "a3-highgpu-8g,,,208.0,1872.0,,10,4,us-central1,us-central1-a\n"
        "n1-standard-8,,,8.0,30.0,,0.38,0.08,us-central1,us-central1-a\n"
        ",T4,1.0,,,,0.35,0.11,us-central1,us-central1-a\n"
    )
    found = read_catalogue(written(tmp_path, SKY + rows, "gcp/vms.csv"))
    assert [(o.instance, o.gpu, o.units, round(o.price_per_hour, 5), o.spot_per_hour) for o in found.offers] == [
        ("n1-standard-8", "", 8, 0.38, 0.08),
        ("a2-highgpu-1g", "a100", 1, 3.67339, pytest.approx(1.24371)),
        ("g2-standard-24", "l4", 2, 2.0, None),
    ]
    assert found.offers[1].gpu_memory_bytes == 40 * 2**30
    assert found.notes == (
        "left out: 2 rows with a GPU and no machine",
        "left out: 1 row with a machine whose GPUs have no price",
        "joined: 1 row of further zones of a region, whose lowest price counts",
        "networks from the built-in catalogue: a2-highgpu-1g",
    )


def test_gpuhunts_spot_rows_are_the_spot_price_of_the_others(tmp_path):
    rows = (
        "g2-standard-4,us-central1,0.71,4,16,1,L4,24,False,100,nvidia,\n"
        "g2-standard-4,us-central1,0.28,4,16,1,L4,24,True,100,nvidia,\n"
        "a2-ultragpu-1g,us-central1,5.07,12,170,1,A100,80,False,100,nvidia,\n"
        "n2-highcpu-2,us-central1,0.07,2,2,0,,,False,100,,\n"
        "tpu,us-central1,1.2,2,2,1,v5e,16,False,100,google,\n"
    )
    found = read_catalogue(written(tmp_path, HUNT + rows, "gcp.csv"))
    assert [(o.provider, o.instance, o.gpu, o.units, o.price_per_hour, o.spot_per_hour) for o in found.offers] == [
        ("gcp", "g2-standard-4", "l4", 1, 0.71, 0.28),
        ("gcp", "a2-ultragpu-1g", "a100-80gb", 1, 5.07, None),
        ("gcp", "n2-highcpu-2", "", 2, 0.07, None),
    ]
    assert found.notes == ("left out: 1 row of TPUs",)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("3.06", "nan", "row 2: price_usd_per_hour 'nan' is no plain number; expected a price above zero in USD"),
        ("3.06", "0", "price_usd_per_hour '0' must lie above 0"),
        ("3.06", "1e300", "at most 1e+06"),
        ("3.06", "3.06 EUR", "'3.06 EUR' is no plain number (it names EUR); expected a price above zero in USD"),
        ("3.06", "", "price_usd_per_hour is empty"),
        ("0.92", "0", "spot_usd_per_hour '0' must lie above 0"),
        (",61,", ",,", "memory_gib is empty; expected the memory of the machine in GiB"),
        (",8,61", ",0,61", "cores '0' must lie above 0"),
        (",8,61", ",7.5,61", "cores '7.5' is not whole"),
        (",1,8,", ",,8,", "gpus is empty"),
        ("v100,1,", ",1,", "there are '1' gpus, and no gpu says of which kind"),
        ("us-east-1", "us-*", "region 'us-*' has a wild card in it"),
        ("us-east-1", "us\x1b[2J", "region 'us\\\\x1b[2J' has characters that are not printable"),
        ("p3.2xlarge", "", "instance is empty"),
        ("p3.2xlarge", "x" * 300, "instance has 300 characters"),
        ("v100", "../v100", "gpu '../v100' is no kind of GPU"),
        ("2026-11-01", "yesterday", "price_date 'yesterday' is no date"),
        ("a page", "", "source is empty"),
        ("a page", "a, page", "row 2 has 15 cells"),
        ("a page", '"a page', "not a row of a CSV file"),
        ("a page", "a\0page", "line 2 has a zero byte"),
        ("a page", "x" * 70_000, "line 2 has more than 65,536 characters"),
        (ROW, f"{ROW}\n{ROW}", "row 3: aws p3.2xlarge in us-east-1 stands there a second time"),
        ("price_usd", "price_eur", "column 'price_eur_per_hour' is in EUR, and offers are priced in USD"),
        ("memory_gib,gpu", "memory,gpu", "lacks the columns memory_gib"),
        ("region", "provider", "has 2 columns 'provider'; names must differ"),
        (f"{OWN}\n{ROW}", f"{OWN},currency\n{ROW},EUR", "row 2: currency is 'EUR', and offers are priced in USD"),
        (f"{OWN}\n", "", "is no catalogue that is known" ),
        (ROW, "", "has no offer below its header"),
        (f"{OWN}\n{ROW}", "", "is empty"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_row(tmp_path, old, new, fault):
    text = f"{OWN}\n{ROW}\n"
    assert old in text
    text = text.replace(old, new, 1) if old != f"{OWN}\n" else f"{ROW}\n{ROW}\n"
    with pytest.raises(InputError) as error:
        read_catalogue(written(tmp_path, text))
    assert fault in str(error.value)
    assert str(error.value).isprintable()


def test_files_that_are_no_catalogue(tmp_path, monkeypatch):
    (tmp_path / "picture.csv").write_bytes(b"\xff\xd8\xff\xe0")
    os.mkfifo(tmp_path / "pipe.csv")  # which nobody writes to
    for path, fault in (
        (tmp_path / "nothing.csv", "No such file"),
        (tmp_path, "Is a directory"),
        (tmp_path / "picture.csv", "UTF-8"),
        (Path("/dev/null"), "device"),
        (tmp_path / "pipe.csv", "pipe"),
        ("a\0b", "name"),
    ):
        with pytest.raises(InputError, match=fault):
            read_catalogue(path)
    large = tmp_path / "large.csv"
    with large.open("wb") as file:
        file.truncate(1 << 30)  # no disk is taken
    with pytest.raises(InputError, match=r"1,024 MiB.*256"):
        read_catalogue(large)
    monkeypatch.setattr(csv_rows, "MOST_ROWS", 2)
    with pytest.raises(InputError, match=r"row 4\b.*\b2\b"):
        read_catalogue(written(tmp_path, f"{OWN}\n{ROW}\n{MORE}"))


def test_a_field_of_many_lines_is_refused_in_bounded_memory(tmp_path):
    path = tmp_path / "quoted.csv"
    path.write_text(f'{OWN}\n"' + "a,\n" * 60_000)
    with pytest.raises(InputError, match="131072"):
        read_catalogue(path)
    assert csv.field_size_limit() == 131072


@pytest.mark.slow  # 100,000 rows take seconds
def test_a_hundred_thousand_rows_are_read(tmp_path):
    rows = "\n".join(
        f"aws,us-east-{i},p3.2xlarge,v100,1,8,61,16,10,,3.06,0.92,2026-11-01,a page" for i in range(100_000)
    )
    began = time.process_time()
    assert len(read_catalogue(written(tmp_path, f"{OWN}\n{rows}\n")).offers) == 100_000
    assert time.process_time() - began < 60


def test_selecting_names_patterns_and_what_is_nowhere(tmp_path):
    found = read_catalogue(written(tmp_path, f"{OWN}\n{ROW}\n{MORE}"))

    def instances(**asked):
        return [offer.instance for offer in found.select(**asked).offers]

    assert instances(gpu=("v100", "l4")) == ["p3.2xlarge", "p3.16xlarge", "g2-standard-4"]
    assert instances(gpu=("V*",), region=("eu-*",)) == ["p3.16xlarge"]
    assert instances(gpu=("none",)) == ["c5.18xlarge"]
    assert instances(provider=("gcp",)) == ["g2-standard-4"]
    assert instances(spot=True) == ["p3.2xlarge", "g2-standard-4", "c5.18xlarge"]
    with pytest.raises(UnknownNameError, match=r"'eu-wst-1'.*'eu-west-1'"):
        found.select(region=("eu-wst-1",))
    with pytest.raises(UnknownNameError, match="'v100'"):
        found.select(gpu=("v10",))
    with pytest.raises(InputError, match=r"GPU l4.*eu-\*.*us-central1"):
        found.select(gpu=("l4",), region=("eu-*",))
    with pytest.raises(
        InputError,
        match=r"\b1\b.*us-east-1.*GPU.*--spot",
    ):
        found.select(region=("eu-*",), gpu=("v100",), spot=True)


def test_a_column_that_says_the_currency_of_other_catalogues_may_say_usd(tmp_path):
    (offer,) = read_catalogue(written(tmp_path, f"{OWN},Currency\n{ROW},usd\n")).offers
    assert offer.price_per_hour == 3.06


def test_old_prices_come_the_oldest_first(tmp_path):
    found = read_catalogue(written(tmp_path, f"{OWN}\n{ROW}\n{MORE}"))
    today = dt.date(2026, 11, 20)
    assert [offer.instance for offer in found.stale(today=today, fresh_days=90)] == ["c5.18xlarge", "g2-standard-4"]
    assert [offer.instance for offer in found.stale(today=today, fresh_days=365)] == ["c5.18xlarge"]
    assert found.stale(today=dt.date(2019, 1, 1), fresh_days=0) == ()


def test_every_price_of_the_built_in_catalogue_has_a_date_a_source_and_a_data_sheet():
    from heterps_compile.offers.as_device import device_of  # noqa: PLC0415

    found = read_catalogue()
    assert len({offer.provider for offer in found.offers}) == 3
    assert [offer.title for offer in found.offers if not offer.source.startswith("https://")] == []
    told = " ".join((Path(__file__).parents[3] / "docs/offers.md").read_text("utf-8").split())
    spots = sum(offer.spot_per_hour is not None for offer in found.offers)
    oldest = min(offer.price_date for offer in found.offers).year
    assert f"{len(found.offers)} offers of AWS, Google Cloud and Azure, {spots} with a spot price" in told
    assert f"the oldest of {oldest}" in told
    assert [o.title for o in found.offers if o.spot_per_hour is not None and o.spot_per_hour >= o.price_per_hour] == []
    assert all(
        device_of(offer).price_per_hour * offer.units == pytest.approx(offer.price_per_hour) for offer in found.offers
    )
