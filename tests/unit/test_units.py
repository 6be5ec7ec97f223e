"""Quantities are read with their unit or not at all."""

import pytest

from heterps_compile.errors import InputError
from heterps_compile.units import (
    counted,
    format_bytes,
    format_money,
    format_percent,
    format_rate,
    format_seconds,
    in_words,
    parse_price,
    parse_quantity,
)


@pytest.mark.parametrize(
    ("text", "dimension", "amount"),
    [
        ("16 GiB", "bytes", 16 * 2**30),
        ("16GB", "bytes", 16e9),
        ("25 Gbit/s", "bytes per second", 25e9 / 8),
        ("900 GB/s", "bytes per second", 900e9),
        ("15.7 TFLOP/s", "FLOP per second", 15.7e12),
        ("20 us", "seconds", 20e-6),
        ("1_000 B", "bytes", 1000),
        ("1e3 B", "bytes", 1000),
        ("20 µs", "seconds", 20e-6),
    ],
)
def test_a_quantity_with_its_unit(text: str, dimension: str, amount: float) -> None:
    assert parse_quantity(text, dimension) == pytest.approx(amount, rel=1e-15)


@pytest.mark.parametrize(
    ("text", "dimension", "fault"),
    [
        ("16", "bytes", "'16'"),
        (16, "bytes", "quantity"),
        ("16 Gbit", "bytes", "'Gbit'"),
        ("0 GiB", "bytes", "positive"),
        ("1e999 B", "bytes", "'1e999 B'"),
        ("3 Ms", "seconds", "'Ms'"),
        ("1__0 B", "bytes", "quantity"),
        ("٣ B", "bytes", "quantity"),
        ("1e300 B", "bytes", r"1e-15.*1e\+24"),
    ],
)
def test_anything_else_is_an_error_with_an_example(text: object, dimension: str, fault: str) -> None:
    with pytest.raises(InputError, match=fault) as caught:
        parse_quantity(text, dimension)
    assert "such as" in str(caught.value)


def test_prices() -> None:
    assert parse_price("2.42 USD/h") == (2.42, "USD")
    assert parse_price("free") == (0.0, "USD")
    for wrong in (
        "2.42",
        "0 USD/h",
        "-1 USD/h",
        "2.42 usd/h",
        "2.42 USD",
        2.42,
        None,
        "1__0 USD/h",
        "1e999 USD/h",
        "1e-300 USD/h",
    ):
        with pytest.raises(InputError, match="price"):
            parse_price(wrong)


def test_numbers_for_people() -> None:
    assert format_bytes(1.5 * 2**30) == "1.5 GiB"
    assert format_bytes(12) == "12 B"
    assert format_seconds(0.0032) == "3.2 ms"
    assert format_seconds(0) == "0 s"
    assert format_rate(12345.6) == "12,346 samples/s"
    assert format_money(0.000312) == "0.000312"
    assert format_money(2.42) == "2.42"
    assert [format_percent(p) for p in (4.84, -50.0, 3570.4)] == ["4.84 %", "-50 %", "3,570 %"]


def test_things_are_counted_in_the_plural_from_two_on() -> None:
    assert [counted(n, "micro-batch") for n in (1, 2)] == ["1 micro-batch", "2 micro-batches"]
    assert [counted(n, "layer") for n in (0, 1, 1251)] == ["0 layers", "1 layer", "1,251 layers"]


def test_things_are_joined_as_a_sentence_does() -> None:
    assert [in_words(["a", "b", "c"][:n]) for n in (1, 2, 3)] == ["a", "a and b", "a, b and c"]
