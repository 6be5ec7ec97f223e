"""Numbers that nobody means, in every option of every command that takes one: one sentence, or a result."""

import random
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from small_inputs import write_small_inputs

from heterps_compile.cli.main import command, run
from heterps_compile.errors import InputError
from heterps_compile.options import Amount, Command, Option, Percent, Size, Sizes, Whole, Wholes
from heterps_compile.plan.calibrate_options import CALIBRATE
from heterps_compile.plan.command_options import (
    ADVISE,
    BENCH,
    CHECK,
    COMMANDS,
    COMPILE,
    DIFF,
    EXPLAIN,
    OFFERS,
    PROFILE,
    SHOW,
    SIMULATE,
)
from heterps_compile.plan.machine_options import MACHINES
from heterps_compile.plan.sync_options import SYNC
from heterps_compile.profiling import profile_model
from heterps_compile.profiling.calibration import calibrate
from heterps_compile.runtime.engines.launch_options import LAUNCH
from heterps_compile.runtime.export.export_options import EXPORT
from heterps_compile.runtime.launch.option_fields import Speeds
from heterps_compile.runtime.launch.run_options import RESIZE, RUN
from heterps_compile.tuning.tune_options import TUNE

ABSURD = ["1" + "0" * 30, "1" + "0" * 5000, "0", "-1", "nan", "inf", "-inf", "1e400", "1e308", "1e-400", "",
          "2147483647"]  # fmt: skip
NUMERIC = (Whole, Wholes, Amount, Percent, Size, Sizes, Speeds)
FORMS = {Percent: "{}%", Size: "{} MiB", Sizes: "rows={}"}
LAUNCHES = Command("launch", RUN.subjects, (*RUN.options, *LAUNCH.options))
BY_COMMAND = {one.name: one for one in (*COMMANDS, CALIBRATE, MACHINES, SYNC)} | {
    "run": RUN,
    "launch": LAUNCHES,
    "resize": RESIZE,
    "export": EXPORT,
    "tune": TUNE,
}

MODEL = ["--batch=4", "--shape=rows=2"]
START = {
    COMPILE.name: ["compile", "m.onnx", "--method=greedy", "--no-verify", "-o", "out", "--force", *MODEL],
    BENCH.name: ["bench", "m.onnx", "--methods=greedy", *MODEL],
    CHECK.name: ["check", "m.onnx", "--against=old", *MODEL],
    SHOW.name: ["show", "old"],
    SIMULATE.name: ["simulate", "old"],
    EXPLAIN.name: ["explain", "--infeasible", "--model=m.onnx", "--min-throughput=1", *MODEL],
    DIFF.name: ["diff", "old", "old"],
    OFFERS.name: ["offers"],
    ADVISE.name: ["advise", "m.onnx", "--gpu=v100", "--speed-up=2", *MODEL],
    CALIBRATE.name: ["calibrate", "--no-replicas", "--no-link"],
    MACHINES.name: ["machines", "m.onnx", "--samples=1e6", "--deadline=2h", "--gpu=a100", "--max-machines=1", *MODEL],
    TUNE.name: ["tune", "space.toml", "--model=m.onnx", "--train=none.py", "--metric=loss", "--trials=2", "-o", "s"],
    PROFILE.name: ["profile", "m.onnx", "--shape=rows=2", "--no-replicas", "--no-link"],
}
OF_A_WORKLOAD = {"accelerators": "graph.txt", "cpus": "chain.json"}


def is_number(option: Option) -> bool:
    return isinstance(option.type, NUMERIC) or option.name == "budget"


def in_the_tree(group: click.Command = command, path: str = "") -> Iterator[tuple[str, click.Option]]:
    """Yield every option that takes a value, with the words of its command."""
    for name, inner in group.commands.items() if isinstance(group, click.Group) else ():
        yield from in_the_tree(inner, f"{path} {name}".strip())
    if not isinstance(group, click.Group):
        yield from ((path, p) for p in group.params if isinstance(p, click.Option) and not p.is_flag)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with small models and a plan."""
    where = tmp_path_factory.mktemp("hostile")
    write_small_inputs(where)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(where)
        assert run(["m.onnx", "--method=greedy", "--no-verify", "-o", "old", "-q", *MODEL]) == 0
    return where


def test_every_option_of_the_tree_that_takes_a_number_is_tried():
    """What takes a value and is declared nowhere is a name."""
    undeclared = {
        (path, param.name)
        for path, param in in_the_tree()
        if path not in BY_COMMAND or param.name not in {option.name for option in BY_COMMAND[path].options}
    }
    assert undeclared == {("ops", "backend")}
    tried = {option.name: option for option in CHECK.options}
    update = BY_COMMAND.get("update")  # has options of check, and would write the plan that the others read
    assert update is not None
    assert all(option is tried[option.name] for option in update.options)
    assert {one.name for one in COMMANDS if any(map(is_number, one.options))} <= {*START, "update"}


@pytest.fixture
def try_numbers(inputs: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    """Return what tries values in an option of a command."""
    monkeypatch.chdir(inputs)

    def measure(*_args: object, **_kwargs: object) -> None:
        raise InputError("it would measure")

    monkeypatch.setattr(profile_model, "_profile_device", measure)
    monkeypatch.setattr(calibrate, "_timed", measure)

    def tried(name: str, option: Option, values: list[str]) -> None:
        words = [word for word in START[name] if not word.startswith(f"{option.word}=")]
        if option.name in OF_A_WORKLOAD:
            words = ["compile", OF_A_WORKLOAD[option.name]]
        if option.name == "budget":
            words.append("--objective=throughput")
        for value in values:
            text = FORMS.get(type(option.type), "{}").format(value) + (" USD/h" if option.name == "budget" else "")
            code = run([*words, f"{option.word}={text}"])
            err, case = capfd.readouterr().err, (option.word, value)
            assert code in {0, 1, 2}, (case, err)
            assert err.count("Error: ") == (code != 0), (case, err)
            assert "Traceback" not in err, (case, err)
            assert len(err) < 1000, case
            assert code or value not in {"-1", "nan", "inf", "-inf", "1e400", ""}, case

    return tried


@pytest.mark.parametrize("name", START)
def test_absurd_numbers_are_taken_or_told_in_one_sentence(name, try_numbers):
    """Of every option two, drawn."""
    draw = random.Random(name)  # noqa: S311 - no secret
    for option in filter(is_number, BY_COMMAND[name].options):
        try_numbers(name, option, draw.sample(ABSURD, 2))


@pytest.mark.slow  # the product of numbers and options
@pytest.mark.parametrize("name", START)
def test_every_absurd_number_is_taken_or_told_in_one_sentence(name, try_numbers):
    for option in filter(is_number, BY_COMMAND[name].options):
        try_numbers(name, option, ABSURD)


def test_an_absurd_number_of_launch_is_refused_where_it_is_read_or_when_all_options_are():
    """Those of run, with data and folder at hand, are in tests/e2e/test_run_refused_early.py."""
    numbers = [option for option in LAUNCHES.options if is_number(option)]
    assert len(numbers) > 17
    for option in numbers:
        for value in ABSURD:
            text = FORMS.get(type(option.type), "{}").format(value)
            done = CliRunner().invoke(command, ["launch", "no-such.heterps", "--train=t.py", f"{option.word}={text}"])
            assert done.exit_code in {1, 2}, (option.name, value)
            assert done.exit_code == 2 or isinstance(done.exception, Exception), (option.name, value)
            assert "Traceback" not in done.output


def test_what_does_not_fit_into_memory_is_not_begun_to_be_measured(inputs, monkeypatch, capfd):
    monkeypatch.chdir(inputs)
    monkeypatch.setattr(profile_model, "available_bytes", lambda: 10_000)
    words = ["profile", "m.onnx", "--shape=rows=2", "--no-replicas", "--no-link", "--repeats=2", "-o", "p.json"]
    assert run([*words, "--batches=4"]) == 0
    assert run([*words, "--batches=4,1000"]) == 1
    said = "Error: 'm' at a batch of 1,000 needs at least 313 KiB to be measured, and 9.77 KiB are free here; profile"
    assert said in capfd.readouterr().err
