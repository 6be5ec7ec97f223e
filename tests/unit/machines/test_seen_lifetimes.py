"""Lifetimes that a user saw: the law of every kind, in place of the built-in one, and what is no such file."""

import numpy as np
import pytest

from heterps_compile.errors import InputError
from heterps_compile.machines.goal import USUAL_LIFETIME, Transience
from heterps_compile.machines.seen_lifetimes import read_lifetimes
from heterps_compile.transient.lifetime import Weibull


def file_of(tmp_path, text):
    path = tmp_path / "seen.csv"
    path.write_text(text, "utf-8")
    return path


def drawn_rows(law, gpu, count, until_h, seed):
    lives = law.sample(np.random.default_rng(seed), count)
    return "".join(f"{gpu},{min(life, until_h):.6f},{'yes' if life <= until_h else 'no'}\n" for life in lives.tolist())


def test_every_kind_has_the_weibull_that_its_machines_were_drawn_from(tmp_path):
    laws = {"v100": Weibull(0.6, 20.0), "t4": Weibull(1.4, 8.0)}
    rows = "".join(drawn_rows(law, gpu, 2000, 24.0, seed) for seed, (gpu, law) in enumerate(laws.items()))
    found = read_lifetimes(file_of(tmp_path, f"gpu,hours,ended\n{rows}"))
    assert [each.gpu for each in found] == ["v100", "t4"]
    for each in found:
        law = laws[each.gpu]
        assert each.law.shape == pytest.approx(law.shape, rel=0.12)
        assert each.law.scale_hours == pytest.approx(law.scale_hours, rel=0.12)
    transience = Transience(seen=found)
    assert transience.lifetime_of("t4") is found[1].law
    assert transience.lifetime_of("a100") is USUAL_LIFETIME
    assert transience.notes[0].startswith("machines with v100 are taken to live ")
    assert "by the Weibull of 2,000 machines in " in transience.notes[0]
    assert transience.notes[0].endswith("h (90 % intervals)")
    assert transience.notes[2].startswith("transient machines of other kinds are taken to live 2.4 d in the median")


def test_few_machines_say_how_little_they_say(tmp_path):
    rows = "gpu,hours,ended\nnone,1,yes\nnone,2,yes\nnone,30,yes\nnone,24,no\n"
    (found,) = read_lifetimes(file_of(tmp_path, rows))
    assert found.gpu == ""
    assert "machines with virtual CPUs " in found.words
    assert "of 4 machines" in found.words
    assert "3 of which were lost" in found.words


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gpu,hours,ended\n", "--lifetimes"),
        ("", "empty"),
        ("gpu,hours\nv100,3\n", "'gpu', 'hours'.*ended"),
        ("gpu,hours,ended,zone\nv100,3,yes,a\n", "lifetimes.*hours"),
        ("gpu,hours,ended\nv100,-3,yes\n", r"row 2\b.*hours '-3'.*age.*hours"),
        ("gpu,hours,ended\nv100,0,yes\n", r"row 2\b.*hours '0'.*\b0\b"),
        ("gpu,hours,ended\nv100,nan,yes\n", r"row 2\b.*hours 'nan'"),
        ("gpu,hours,ended\nv100,inf,no\n", r"row 2\b.*hours 'inf'"),
        ("gpu,hours,ended\nv100,1e9,no\n", r"row 2\b.*hours '1e9'.*1e\+06"),
        ("gpu,hours,ended\nv100,3 h,no\n", r"row 2\b.*hours '3 h'"),
        ("gpu,hours,ended\nv100,3,maybe\n", r"row 2\b.*'maybe'"),
        ("gpu,hours,ended\nv100,3,\n", r"row 2\b.*''"),
        ("gpu,hours,ended\nv9000,3,yes\n", r"row 2\b.*'v9000'"),
        ("gpu,hours,ended\nv100,3,yes\nv100,5,yes\nv100,9,no\n", r"\b3\b.*v100.*\b2\b.*\b2\b"),
        ("gpu,hours,ended\nv100,3,yes\nv100,3,yes\nv100,3,yes\n", r"\b3\b.*\b1\b age.*\b3\b"),
        ("gpu,hours,ended\nv100,3,yes\nt4,5,yes\nv100,4,yes\nv100,9,yes\n", r"\b1\b.*t4.*\b1\b"),
    ],
)
def test_what_is_no_file_of_lifetimes_is_refused(tmp_path, text, said):
    with pytest.raises(InputError, match=said):
        read_lifetimes(file_of(tmp_path, text))


def test_a_file_of_a_billion_rows_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "seen.csv"
    with path.open("wb") as file:
        file.write(b"gpu,hours,ended\n")
        file.truncate(9_000_000_000)  # sparse
    with pytest.raises(InputError, match=r"seen\.csv'.*\b9\b GB.*\b16\b MiB"):
        read_lifetimes(path)
    rows = "".join("v100,3,no\n" for _ in range(100_001))
    with pytest.raises(InputError, match=r"row 100002.*100,000"):
        read_lifetimes(file_of(tmp_path, f"gpu,hours,ended\n{rows}"))
    with pytest.raises(InputError, match="read"):
        read_lifetimes(tmp_path / "none.csv")
