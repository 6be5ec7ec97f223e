"""Plans at dimensions, names, pools and numbers of today: ``check --batch``, ``show --model``, ``simulate --model``."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from onnx_files import click_model, save
from profiles import PROFILE
from wording import names

import heterps_compile.cluster
from heterps_compile.cli.main import run
from heterps_compile.cost.profile_file import to_json as profile_to_json

POOLS = Path(heterps_compile.cluster.__file__).parent / "pools"
POOL = "my-pool.toml"


class Done(NamedTuple):
    returncode: int
    out: str
    err: str


Command = Callable[..., Done]


@pytest.fixture
def heterps(tmp_path, monkeypatch, capsys) -> Command:
    """Return the command, in a folder with a model whose batch is open, and a plan of it at a batch of 64."""
    monkeypatch.chdir(tmp_path)

    def command(*words: str) -> Done:
        return Done(run(words), *capsys.readouterr())

    save(click_model(), Path("click.onnx"))
    words = ["--batch", "64", "--min-stages", "2", "--method", "exact", "--no-verify", "-q", "-o", "out"]
    assert command("click.onnx", *words).returncode == 0
    return command


def with_batch_called(symbol: str) -> None:
    model = click_model()
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[0].dim_param = symbol
    save(model, Path("click.onnx"))


def test_a_plan_is_checked_at_its_own_batch_and_at_another(heterps):
    assert heterps("check", "click.onnx", "--against", "out").returncode == 0
    done = heterps("check", "click.onnx", "--against", "out", "--batch", "128", "--format", "json")
    document = json.loads(done.out)
    assert document["fault"] is None
    assert "options" in document["changed_hashes"]
    assert {"name": "batch", "old": 64, "new": 128} in document["changes"]["settings"]


def test_a_model_whose_batch_has_a_new_name_is_checked_when_told_what_it_is(heterps):
    with_batch_called("samples")
    done = heterps("check", "click.onnx", "--against", "out")
    assert done.returncode == 1
    assert names(done.err, "--batch N", "--shape NAME=N")
    for words in (["--batch", "64"], ["--shape", "samples=64"]):
        done = heterps("check", "click.onnx", "--against", "out", *words)
        assert (done.returncode, done.err) == (0, ""), done.out


def test_todays_plan_of_the_same_model_and_pool_is_the_plan(heterps):
    done = heterps("show", "out", "--model", "click.onnx", "--json")
    Path("today.json").write_text(done.out)
    assert heterps("diff", "out", "today.json").out == "The plans are the same.\n"


def write_dearer_pool() -> None:
    """Write a pool of one's own that has today's prices, which are others."""
    text = (POOLS / "heterps-paper.toml").read_text()
    dearer, count = re.subn(r'^(price\s*=\s*")[\d.]+', r"\g<1>9.5", text, flags=re.MULTILINE)
    assert count
    Path(POOL).write_text(dearer)


@pytest.mark.parametrize(
    "words",
    [
        ["show", "out", "--model", "click.onnx"],
        ["explain", "fc1", "--model", "click.onnx", "--plan", "out"],
        ["simulate", "out"],
        ["simulate", "out", "--model", "click.onnx"],
    ],
)
def test_a_plan_of_another_pool_is_refused_by_name_of_its_hash_unless_that_is_allowed(heterps, words):
    write_dearer_pool()
    assert heterps(*words).returncode == 0
    done = heterps(*words, "--cluster", POOL)
    assert done.returncode == 1
    assert names(done.err, "Error: ", "cluster", "--allow-stale")
    assert heterps(*words, "--cluster", POOL, "--allow-stale").returncode == 0


def test_a_plan_of_a_profile_is_that_of_today_with_the_same_profile_alone(heterps):
    Path("profile.json").write_text(profile_to_json(PROFILE))
    given = ["--profile", "cpu-core=profile.json"]
    words = ["--batch", "64", "--min-stages", "2", "--method", "exact", "--no-verify", "-q", "--force", "-o", "out"]
    assert heterps("click.onnx", *words, *given).returncode == 0
    Path("today.json").write_text(heterps("show", "out", "--model", "click.onnx", "--json", *given).out)
    assert heterps("diff", "out", "today.json").out == "The plans are the same.\n"
    assert names(heterps("show", "out", "--model", "click.onnx").err, "profile")
    assert "the profile changed (by hash)" in heterps("check", "click.onnx", "--against", "out").out
    plan = Path("out/plan.json").read_text()
    assert heterps("check", "click.onnx", "--against", "out", "--update", *given).out.startswith("The plan holds")
    assert Path("out/plan.json").read_text() == plan


def test_a_plan_knows_what_its_micro_batches_take_and_an_older_one_says_that_it_does_not(heterps):
    def notes(plan: str, *words: str) -> list[str]:
        return json.loads(heterps("simulate", plan, "--json", *words).out)["notes"]

    counted = notes("out", "--model", "click.onnx")
    assert notes("out") == counted
    older = json.loads(Path("out/plan.json").read_text())
    for stage in older["estimates"]["stages"]:
        del stage["times"]
    del older["estimates"]["one_batch_alone"]
    Path("older.json").write_text(json.dumps(older))
    assert len(notes("older.json")) == len(counted) + 1
    assert notes("older.json", "--model", "click.onnx") == counted
