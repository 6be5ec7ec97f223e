"""Every option of every command, with every kind of input: it is honoured, or refused by name."""

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from small_inputs import write_small_inputs
from wording import names

import heterps_compile
from heterps_compile import api
from heterps_compile.cli import options as cli_options
from heterps_compile.cli.main import command, run
from heterps_compile.errors import InputError, OptionError
from heterps_compile.options import (
    Amount,
    Asked,
    Choice,
    Command,
    CountRange,
    Flag,
    NamedTexts,
    Option,
    Pairs,
    Percent,
    Pins,
    Repeated,
    Size,
    Sizes,
    Text,
    Whole,
    Wholes,
    Words,
)
from heterps_compile.passes.pipeline import DEFAULT, pipeline_text
from heterps_compile.plan import request
from heterps_compile.plan.calibrate_options import CALIBRATE, HERE, HOSTS
from heterps_compile.plan.command_options import (
    COMMANDS,
    COMPILE,
    EXPLAIN,
    GRAPH,
    INFEASIBLE,
    LAYER,
    LAYER_OF_PLAN,
    MANIFEST,
    ONNX,
    PINS,
    PLAN,
    PLAN_WITH_MODEL,
    PLANNED_GRAPH,
    PROBLEM,
    READING,
    SCHEMA,
    SHOW,
    SPLIT_GRAPH,
    TWO_PLANS,
    WORKLOAD,
)  # fmt: skip
from heterps_compile.plan.machine_options import MACHINES
from heterps_compile.plan.reading_options import Values
from heterps_compile.plan.schema import RequestPart
from heterps_compile.plan.sync_options import SYNC
from heterps_compile.runtime.engines import launch_options
from heterps_compile.runtime.export import export_options
from heterps_compile.runtime.launch import run_options
from heterps_compile.runtime.launch.option_fields import CountOrWord, FilePath, Speeds
from heterps_compile.runtime.launch.run_options import INFERENCE, RESIZE, RUN, TRAINING, RunOptions
from heterps_compile.runtime.launch.server_options import ServerOptions
from heterps_compile.tuning.tune_options import BEGUN, RESUMED, SHOWN, TUNE
from heterps_compile.units import in_words

CLI = Path(cli_options.__file__).parent
BARE = {"model": "m.onnx", "against": "plan.json", "plan": "plan.json", "train": "train.py", "layer": "fc"}
START = {
    ("check", ONNX): ["check", "m.onnx", "--against", "plan.json"],
    ("check", PLAN): ["check", "--against", "plan.json"],
    ("check", MANIFEST): ["check", "--all"],
    ("update", ONNX): ["update", "m.onnx", "--against", "plan.json"],
    ("update", MANIFEST): ["update", "--all"],
    ("diff", TWO_PLANS): ["diff", "old.json", "new.json"],
    ("diff", MANIFEST): ["diff", "git:HEAD", "--all"],
    (COMPILE.name, ONNX): ["compile", "m.onnx"],
    (COMPILE.name, WORKLOAD): ["compile", "chain.json"],
    (COMPILE.name, SPLIT_GRAPH): ["compile", "graph.txt"],
    (COMPILE.name, PROBLEM): ["compile", "problem.json"],
    (COMPILE.name, PLANNED_GRAPH): ["compile", "graph.txt", "--objective", "throughput"],
    ("predict", PROBLEM): ["predict", "problem.json", "--plan", "given.json"],
    ("predict", GRAPH): ["predict", "graph.txt", "--plan", "given.json"],
    (SHOW.name, PLAN): ["show", "plan.json"],
    (SHOW.name, PLAN_WITH_MODEL): ["show", "plan.json", "--model", "m.onnx"],
    (SHOW.name, SCHEMA): ["show", "--schema"],
    ("simulate", PLAN): ["simulate", "plan.json"],
    ("simulate", PLAN_WITH_MODEL): ["simulate", "plan.json", "--model", "m.onnx"],
    (EXPLAIN.name, LAYER): ["explain", "fc", "--model", "m.onnx", "--plan", "plan.json"],
    (EXPLAIN.name, LAYER_OF_PLAN): ["explain", "fc", "--plan", "plan.json"],
    (EXPLAIN.name, PINS): ["explain", "--pin", "fc=v100", "--model", "m.onnx", "--plan", "plan.json"],
    (EXPLAIN.name, INFEASIBLE): ["explain", "--infeasible", "--model", "m.onnx"],
    (CALIBRATE.name, HERE): ["calibrate"],
    (CALIBRATE.name, HOSTS): ["calibrate", "--link"],
    (RUN.name, TRAINING): ["run", "m.heterps", "--train", "train.py"],
    (RUN.name, INFERENCE): ["run", "m.heterps", "--data", "random"],
    (TUNE.name, BEGUN): ["tune", "space.toml", "-o", "search"],
    (TUNE.name, RESUMED): ["tune", "-o", "search", "--resume"],
    (TUNE.name, SHOWN): ["tune", "--show", "search"],
    ("launch", TRAINING): ["launch", "m.heterps", "--train", "train.py"],
    ("launch", INFERENCE): ["launch", "m.heterps", "--data", "random"],
    **{
        ("launch", launch_options.subject(name)): ["launch", "m.heterps", "--on", name]
        for name in launch_options.STARTERS
    },
}


def written(option: Option) -> list[str]:
    """Return the option as a user would write it."""
    kind, word = option.type, option.word
    if isinstance(kind, Flag):
        return [word]
    texts: dict[type, str] = {
        Whole: "2", Wholes: "2,1", Percent: "2%", Size: "64 MiB", Speeds: "2,1;1", Sizes: "a=3", Pins: "a=b",
        Pairs: "a=b", Words: "a,b", NamedTexts: "a=b", CountRange: "1:2",
        Values: "a=2", Amount: "0.5",
    }  # fmt: skip
    if isinstance(kind, Choice):
        return [word, kind.names[-1]]
    return [word, texts.get(type(kind), "1")]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model, a workload and a PipeDream graph."""
    where = tmp_path_factory.mktemp("inputs")
    write_small_inputs(where)
    return where


@pytest.fixture
def folder(inputs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go to that folder."""
    monkeypatch.chdir(inputs)
    return inputs


def declared() -> Iterator[tuple[Command, str, Option]]:
    for one in (
        *COMMANDS,
        CALIBRATE,
        MACHINES,
        SYNC,
        RUN,
        Command("launch", RUN.subjects, RUN.options),
        launch_options.LAUNCH,
        RESIZE,
        export_options.EXPORT,
        TUNE,
    ):
        for subject in one.subjects:
            for option in one.options:
                yield one, subject, option


def dead() -> list[tuple[Command, str, Option]]:
    return [
        (one, subject, option)
        for one, subject, option in declared()
        if not one.honours(option, subject)
        and option.name not in ("schema", "infeasible", "model", "train", "all_plans", "manifest")
    ]


def test_what_means_nothing_is_refused_by_name_and_nothing_is_written(folder, capsys):
    before, wrong = sorted(folder.iterdir()), []
    for one, subject, option in dead():
        code = run([*START[one.name, subject], *written(option)])
        out, err = capsys.readouterr()
        takers = in_words([name for name in option.subjects if name in one.subjects])
        said = f"{option.word} is for {takers}, and means nothing for {subject}; leave it out"
        if (code, out, sorted(folder.iterdir())) != (2, "", before) or said not in err:
            wrong.append(f"{one.name}, {subject}, {option.word}: {code} {err}")
    assert wrong == []


def test_every_kind_of_input_of_every_command_is_tried():
    tried = {(one.name, subject) for one, subject, _ in declared() if len(one.subjects) > 1}
    assert tried == set(START)
    assert len(dead()) > 80


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "m", "--train", "t.py", "--every", "5"], "give --checkpoint DIR too, or leave --every out"),
        (["run", "m", "--train", "t.py", "--keep", "3"], "--keep means nothing without --checkpoint"),
        (["run", "m", "--train", "t.py", "--resume"], "--resume means nothing without --checkpoint"),
        (["run", "m", "--train", "t.py", "--staleness", "0"], "--staleness means nothing without --parameter-servers"),
        (["run", "m", "--train", "t.py", "--server-learning-rate", "0.01"], "rate means nothing without"),
        (["run", "m", "--train", "t.py", "--server-memory", "1 MiB"], "--server-memory means nothing without"),
        (["run", "m", "--train", "t.py", "--parameter-servers", "0", "--staleness", "1"], "--staleness means nothing"),
        (
            ["run", "m", "--train", "t.py", "--parameter-servers", "1", "--server-directory", "d"],
            "--server-directory means nothing without --server-memory",
        ),
        (["run", "m", "--data", "random", "--output-format", "npz"], "--output-format means nothing without --output"),
        (["run", "m", "--data", "random", "--steps", "5", "--epochs", "1"], "--steps and --epochs contradict"),
        (["m.onnx", "--stablehlo"], "--stablehlo means nothing without --backend"),
        (["m.onnx", "--stablehlo", "--backend", "torch"], "--stablehlo is for the backend jax, not for 'torch'"),
        (["show", "plan.json", "-q", "--json"], "-q and --json contradict each other"),
        (["show", "plan.json", "-q", "-v"], "-q and -v contradict each other"),
        (["show", "plan.json", "--json", "-v"], "-v and --json contradict each other"),
        (["chain.json", "--force"], "--force means nothing without -o DIR"),
        (["chain.json", "--objective", "cost"], "--objective cost means nothing for a workload file"),
        (["graph.txt", "--accelerators", "2", "--objective", "latency"], "nothing for a PipeDream graph with an --obj"),
    ],
)  # fmt: skip
def test_what_means_nothing_without_another_or_beside_it_is_refused(words, said, folder, capsys):
    assert run(words) == 2
    assert said in capsys.readouterr().err


# ---- and what is not refused is honoured

LIVE = {
    WORKLOAD: {
        "output": ["-o", "out"], "force": ["-o", "out", "--force"], "objective": ["--objective", "max-load"],
        "seed": ["--seed", "3"], "time_limit": ["--time-limit", "5"],
        "accelerators": ["--accelerators", "1"], "cpus": ["--cpus", "2"],
        "as_json": ["--json"], "quiet": ["-q"], "verbose": ["-v"],
    },
    SPLIT_GRAPH: {
        "output": ["-o", "out"], "force": ["-o", "out", "--force"], "objective": ["--objective", "max-load"],
        "mode": ["--mode", "training"], "seed": ["--seed", "3"],
        "time_limit": ["--time-limit", "5"],
        "accelerators": ["--accelerators", "1"], "as_json": ["--json"], "quiet": ["-q"], "verbose": ["-v"],
    },
}  # fmt: skip
SAME = {"objective", "time_limit"}
"""What is asked for already where it is left out, or bounds what is soon done."""


@pytest.mark.parametrize("subject", LIVE)
def test_what_is_not_refused_for_a_workload_changes_what_comes_out(subject, folder, tmp_path, monkeypatch, capsys):
    honoured = {option.name for option in COMPILE.options if COMPILE.honours(option, subject)}
    assert set(LIVE[subject]) == honoured
    path, always = {WORKLOAD: ("chain.json", []), SPLIT_GRAPH: ("graph.txt", ["--accelerators", "2"])}[subject]

    def result(name: str, words: list[str]) -> tuple[str, dict[str, str]]:
        here = tmp_path / subject / name
        here.mkdir(parents=True)
        monkeypatch.chdir(here)
        if name == "force":
            (here / "out").mkdir()
            (here / "out" / "mine.txt").write_text("mine")
            assert run([str(folder / path), *always, "-o", "out"]) == 1  # without it
            capsys.readouterr()
        given = [] if name == "accelerators" else always
        form = [] if name in ("as_json", "quiet", "verbose", "as text") else ["--json"]
        assert run([str(folder / path), *given, *words, *form]) == 0
        out = re.sub(r'"(search_s|total_s)": [^,}]*|in [0-9.e-]+ s', "", capsys.readouterr().out)
        return out, {p.name: p.read_text() for p in here.rglob("*") if p.is_file()}

    plain, as_text = result("plain", []), result("as text", [])
    for name, words in LIVE[subject].items():
        beside = as_text if name in ("as_json", "quiet", "verbose") else plain
        assert (result(name, words) == beside) == (name in SAME), name


REQUESTED = {
    "objective": "throughput", "min_throughput": 2.0, "budget": "9 USD/h", "mode": "training", "method": "heuristic",
    "min_stages": 2, "max_stages": 1, "provisioner": "newton", "synchronisation": "parameter-server", "allow": "any",
    "tables": "held", "pins": {"fc1": "v100"}, "forbidden": [("fc1", "v100")], "seed": 3, "time_limit": 7.0,
}  # fmt: skip
BESIDE = {"budget": {"objective": "throughput"}, "provisioner": {"min_throughput": 2.0},
          "synchronisation": {"mode": "training"},
          "allow": {"mode": "training", "synchronisation": "auto"}}  # fmt: skip


def test_an_option_of_the_request_stands_in_the_request():
    for name, value in REQUESTED.items():
        beside = BESIDE.get(name, {})
        plain = request.make_request("USD", **beside)
        asked = request.make_request("USD", **beside, **{name: value})
        changed = {f.name for f in fields(plain) if getattr(plain, f.name) != getattr(asked, f.name)}
        assert changed == {{"budget": "budget_per_hour", "time_limit": "time_limit_s"}.get(name, name)}


def test_every_option_of_compile_reaches_the_plan_of_a_model(folder, tmp_path):
    quick = {"method": "greedy", "verify": False, "batch": 4, "shapes": {"rows": 2}}
    plain = heterps_compile.compile(folder / "m.onnx", **quick).plan
    plain_path = str(tmp_path / "old")
    heterps_compile.compile(folder / "m.onnx", **quick).save(plain_path)
    profile = tmp_path / "p.json"
    words = ["--batches", "4", "--repeats", "2", "--no-replicas", "--no-link", "--shape", "rows=2", "-o", str(profile)]
    assert run(["profile", str(folder / "m.onnx"), *words]) == 0

    def changed(**options: Any) -> set[str]:
        plan = heterps_compile.compile(folder / "m.onnx", **(quick | options)).plan
        names = {f.name for f in fields(plan)} - {"search_s", "total_s"}
        return {name for name in names if getattr(plan, name) != getattr(plain, name)}

    assert "batch" in changed(batch=8)
    assert "bindings" in changed(shapes={"rows": 3})
    assert "cluster" in changed(cluster="edge")
    assert "backend" in changed(backend="torch")
    assert "hashes" in changed(profile=f"cpu-core={profile}")
    assert changed(verify=True) == {"verification"} | (changed(verify=True) & {"notes"})
    assert not changed(warm_start=plain_path, baselines=("gpu-only",)) - {"found_by", "notes", "evaluations"}
    assert {"method", "notes"} <= changed(passes=EVERY_PASS.replace("layers,fuse", "layers{method=gpu-only},fuse"))
    assert not changed(passes=EVERY_PASS)
    with pytest.raises(InputError, match="'cpu-core'"):
        changed(warm_start=PLAN_OF_ANOTHER)
    for name in set(REQUESTED) - set(BESIDE):
        if name not in ("objective", "max_stages"):
            assert "request" in changed(**{name: REQUESTED[name]}), name


EVERY_PASS = pipeline_text(DEFAULT)
PLAN_OF_ANOTHER = str(Path(__file__).parents[2] / "golden" / "plan" / "plan.json")


@pytest.mark.parametrize("name", ["example_kwargs", "dynamic_shapes"])
def test_what_python_gives_for_another_kind_of_model_is_refused(name, folder):
    value = {"example_kwargs": {"x": 1}, "dynamic_shapes": {"x": {}}}[name]
    said = f"{name}.*PyTorch.*ONNX"
    with pytest.raises(OptionError, match=said):
        heterps_compile.compile(folder / "m.onnx", **{name: value})
    with pytest.raises(InputError, match="operations"):
        heterps_compile.compile(folder / "chain.json")


@pytest.mark.parametrize("words", [["bench"], ["check", "--against", PLAN_OF_ANOTHER], ["profile"]])
def test_a_workload_where_a_model_belongs_is_told(words, folder, capsys):
    not_judged = 2 if words[0] == "check" else 1
    assert run([words[0], str(folder / "chain.json"), *words[1:]]) == not_judged
    assert names(capsys.readouterr().err, "chain.json", "workload file")


# ---- and none can be accepted otherwise


def test_an_option_that_a_command_does_not_read_ends_it():
    @click.command("c")
    @cli_options.takes(COMPILE)
    @click.pass_context
    def forgetful(ctx: click.Context, /, **_: Any) -> None:
        with cli_options.asked_of(ctx, COMPILE, ONNX) as asked:
            assert asked["seed"] == 1

    done = CliRunner().invoke(forgetful, ["--seed", "1", "--batch", "2"])
    assert isinstance(done.exception, AssertionError)
    assert "compile read none of ['batch']" in str(done.exception)
    assert CliRunner().invoke(forgetful, ["--seed", "1"]).exception is None


def test_what_is_not_declared_for_an_input_cannot_be_read():
    asked = Asked(COMPILE, {option.name: None for option in COMPILE.options}, (), WORKLOAD)
    with pytest.raises(AssertionError, match="declared"):
        asked["budget"]


def test_commands_have_no_option_but_the_declared_ones():
    undeclared = {"clusters.py", "ops.py", "main.py"}
    with_their_own = {
        path.name for path in CLI.glob("*.py") if re.search(r"@click\.option|click\.option\(", path.read_text())
    }
    assert with_their_own <= undeclared | {"options.py"}
    for one in (*COMMANDS, CALIBRATE, MACHINES, SYNC, RUN, RESIZE, TUNE):
        assert made(one.name) == {option.name for option in one.options} - OF_EVERY_COMMAND
    assert (
        made("launch") == {option.name for option in (*RUN.options, *launch_options.LAUNCH.options)} - OF_EVERY_COMMAND
    )


OF_EVERY_COMMAND = {"quiet", "help_all"}


def made(name: str) -> set[str | None]:
    options = {param.name for param in command.commands[name].params if isinstance(param, click.Option)}
    return options - OF_EVERY_COMMAND


def test_the_defaults_of_python_are_those_declared():
    def defaults(function: Any) -> dict[str, Any]:
        parameters = inspect.signature(function).parameters
        return {name: p.default for name, p in parameters.items() if p.default is not p.empty}

    def same(found: dict[str, Any], one: Command, *but: str) -> None:
        of_python = {name: value or None for name, value in found.items()}
        of_command = {option.name: option.default or None for option in one.options}
        shared = (set(of_python) & set(of_command)) - set(but)
        assert {name: of_python[name] for name in shared} == {name: of_command[name] for name in shared}

    same(defaults(heterps_compile.compile), COMPILE)
    same(defaults(api.open_draft), COMPILE)
    assert {option.name for option in READING.options} <= set(inspect.signature(api.read_model).parameters)
    run_defaults = RunOptions(directory="m", data="random").by_name
    assert run_defaults | {"data": ""} == {option.name: option.default for option in RUN.options}
    assert len(run_defaults) == len(fields(RunOptions)) - 2 + len(fields(ServerOptions))


def test_compile_takes_every_option_of_a_request_as_it_is_declared():
    taken = inspect.signature(heterps_compile.compile).parameters
    for name, option in request.OPTIONS.items():
        assert name in taken, name
        assert (taken[name].default or None) == (option.default or None), name
        assert re.search(rf"^ +{name}: ", heterps_compile.compile.__doc__, re.MULTILINE), name
    assert request.make_request("USD") == request.Request()
    assert request.make_request("USD", **{name: o.default for name, o in request.OPTIONS.items()}) == request.Request()


def test_what_a_request_asks_for_asks_for_it_again():
    for name, value in REQUESTED.items():
        made = request.make_request("USD", **BESIDE.get(name, {}), **{name: value})
        assert request.make_request("USD", **made.asked()) == made


def test_a_request_has_no_other_options():
    with pytest.raises(TypeError, match=r"'min_stage'.*min_throughput"):
        request.make_request("USD", min_stage=2)


def test_the_request_part_of_a_plan_has_the_fields_of_a_request():
    assert list(RequestPart.model_fields) == [field.name for field in fields(request.Request)]


def test_every_type_of_option_has_its_sample():
    kinds = {type(option.type) for _, _, option in declared()}
    assert kinds <= {
        Whole,
        Amount,
        CountOrWord,
        FilePath,
        CountRange,
        Wholes,
        Percent,
        Size,
        Speeds,
        Sizes,
        Values,
        Pins,
        Pairs,
        Words,
        Choice,
        Flag,
        Text,
        Repeated,
        NamedTexts,
        CountRange,
    }
    assert ast.parse(Path(cli_options.__file__).read_text())


# ---- of a run: every option has a place that reads it besides its own declaration

LAUNCH = Path(run_options.__file__).parent
SERVERS = ("server_optimizer", "server_learning_rate", "server_memory", "server_directory", "staleness")
READ_AS = {"hang_after": "hang_after_s", "parameter_servers": "count", "server_memory": "memory_bytes"}
"""What the code of a run calls an option, where its field has another name."""


def test_every_option_of_a_run_is_read_where_it_runs():
    folders = (LAUNCH, *(LAUNCH.parent / name for name in ("checkpoint", "engines", "validation")))
    files = [path for folder in folders for path in folder.glob("*.py")]
    files = [path for path in files if path.name not in {"run_options.py", "run_api.py"}]
    of_servers = (LAUNCH / "server_rank.py").read_text()
    of_runs = "\n".join(path.read_text() for path in [*files, CLI / "run.py"])
    unread = []
    for name in (option.name for option in RUN.options):
        asks = rf"\b(?:options|made|servers)\.{READ_AS.get(name, name.removeprefix('server_'))}\b"
        if not re.search(asks, of_servers if name in SERVERS else of_runs):
            unread.append(name)
    assert unread == []
