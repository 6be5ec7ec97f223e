"""The command around a stand-in for the library: what reaches the library, what is printed, how a run ends."""

import json
import os
import sys
from dataclasses import dataclass, replace
from types import ModuleType

import pytest
from drafts import COSTS, DRAFT, LAYERS, renamed
from plans import PLAN, with_stage, write_two_stages
from wording import names

from heterps_compile import __version__
from heterps_compile.cli.main import run
from heterps_compile.errors import InfeasibleError
from heterps_compile.ir.layers import LayerGraph
from heterps_compile.passes.fuse_stages import FuseStages
from heterps_compile.passes.group_layers import GroupLayers
from heterps_compile.plan.folder import write_folder
from heterps_compile.plan.plan import Plan
from heterps_compile.plan.total_columns import Summary
from heterps_compile.progress import Progress

STEPS = (GroupLayers(), FuseStages())


@dataclass(frozen=True)
class Compiled:
    plan: Plan = PLAN
    layers: LayerGraph = LAYERS
    costs: tuple = COSTS

    @property
    def summary(self) -> Summary:
        return Summary(self.plan)

    def save(self, directory, *, force=False, stablehlo=False):
        assert not stablehlo
        return replace(self, plan=write_folder(directory, self.plan, write_two_stages, force=force))


class Library(ModuleType):
    """Stands in for ``heterps_compile.api``: remembers how it was called and gives a fixed plan."""

    def __init__(self):
        super().__init__("heterps_compile.api")
        self.calls: list[tuple[str, dict]] = []
        self.result = Compiled()
        self.failure: BaseException | None = None

    def compile(self, model, *, on_progress, observer, **options):
        self.calls.append((model, options))
        print("a library's chatter")
        on_progress(Progress("reading", 0, 2))
        for step in STEPS:
            observer(step, DRAFT)
        if self.failure is not None:
            raise self.failure
        return self.result


@pytest.fixture
def library(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    stand_in = Library()
    monkeypatch.setitem(sys.modules, "heterps_compile.api", stand_in)
    return stand_in


DEFAULTS = {
    "cluster": "heterps-paper",
    "objective": "cost",
    "min_throughput": None,
    "budget": None,
    "batch": None,
    "shapes": {},
    "mode": "inference",
    "mixed_stages": False,
    "reading": None,
    "precision": "fp32",
    "optimizer": "adam",
    "recompute": "auto",
    "method": "best",
    "backend": None,
    "min_stages": 1,
    "max_stages": None,
    "provisioner": "exact",
    "synchronisation": "all-reduce",
    "allow": "exact",
    "tables": "auto",
    "pins": {},
    "forbidden": (),
    "warm_start": None,
    "profile": None,
    "passes": None,
    "seed": 0,
    "time_limit": None,
    "verify": True,
    "must_save": True,
    "baselines": (),
    "example_inputs": {},
}


def test_every_option_reaches_the_library(library):
    words = (
        "model.onnx -o out --force --cluster edge --objective throughput --min-throughput 1e3 --budget 5 --batch 64 "
        "--shape seq=128 --shape h=2 --input rate=16000 --input size=[2,4] "
        "--mode training --reading steady-state --precision bf16 --optimizer sgd "
        "--recompute always --method exact --backend torch "
        "--mixed-stages --min-stages 2 "
        "--max-stages 5 --provisioner newton --sync parameter-server --allow bounded --tables held "
        "--pin emb*=cpu --pin fc=v100 "
        "--forbid a=b --forbid a=c --warm-start old --profile cpu=times.json --seed 9 --time-limit 2.5 "
        "--no-verify --passes group-layers"
    )
    assert run(words.split()) == 0
    assert library.calls[0][1] == {
        "cluster": "edge",
        "objective": "throughput",
        "min_throughput": 1000.0,
        "budget": "5",
        "batch": 64,
        "shapes": {"seq": 128, "h": 2},
        "mode": "training",
        "mixed_stages": True,
        "reading": "steady-state",
        "precision": "bf16",
        "optimizer": "sgd",
        "recompute": "always",
        "method": "exact",
        "backend": "torch",
        "min_stages": 2,
        "max_stages": 5,
        "provisioner": "newton",
        "synchronisation": "parameter-server",
        "allow": "bounded",
        "tables": "held",
        "pins": {"emb*": "cpu", "fc": "v100"},
        "forbidden": [("a", "b"), ("a", "c")],
        "warm_start": "old",
        "profile": "cpu=times.json",
        "passes": "group-layers",
        "seed": 9,
        "time_limit": 2.5,
        "verify": False,
        "must_save": True,
        "baselines": (),
        "example_inputs": {"rate": 16000, "size": [2, 4]},
    }


@pytest.mark.parametrize("words", [["model.onnx"], ["compile", "model.onnx"], ["--seed", "0", "model.onnx"]])
def test_the_word_compile_may_be_left_out(library, words):
    assert run(words) == 0
    assert library.calls == [("model.onnx", DEFAULTS)]


def test_a_model_may_be_called_like_a_command(library):
    assert run(["compile", "clusters"]) == 0
    assert library.calls[0][0] == "clusters"


def test_the_json_document_stands_alone_on_stdout(library, capsys):
    assert run(["model.onnx", "--json", "--print-after", "group-layers", "-o", "out"]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert document["stages"][1]["artifact"] == "stage_1.onnx"
    assert document["directory"] == "out"
    assert document["total_s"] > 0
    assert "after group-layers" in err


def test_an_unknown_pass_is_an_error_before_the_work(library, capsys):
    assert run(["model.onnx", "--print-after", "group-layer"]) == 1
    assert names(capsys.readouterr().err, "'group-layer'", "'group-layers'?")
    assert library.calls == []


def test_names_reach_the_terminal_harmless(library, capsys):
    evil = "\x1b[2J[red]\n"
    library.result = Compiled(with_stage(PLAN, 0, layers=(evil,)), renamed(evil).layers)
    assert run(["model.onnx"]) == 0
    out = capsys.readouterr().out
    assert r"\x1b[2J[red]\n" in out
    assert "\x1b" not in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "Usage: heterps-compile"),
        (["--frobnicate", "m.onnx"], "No such option"),
        (["a.onnx", "b.onnx"], "unexpected extra argument"),
        (["-v"], "Missing argument 'MODEL.onnx'"),
        (["m.onnx", "-q", "-v"], "-q and -v contradict each other"),
        (["m.onnx", "--min-stages", "3", "--max-stages", "2"], "--min-stages 3 is more than --max-stages 2"),
        (["m.onnx", "--batch", "0"], "'0' is no whole number from 1 to 2147483647"),
        (["m.onnx", "--shape", "seq"], "'seq' is not NAME=N"),
        (["m.onnx", "--shape", "a=1", "--shape", "a=2"], "'--shape': 'a' is given twice"),
        (["m.onnx", "--pin", "cpu"], "'cpu' is not PATTERN=DEVICE"),
        (["m.onnx", "--mode", "train"], "'train' is not one of 'inference', 'training'"),
        (["m.onnx", "--time-limit", "0"], "'0' must be above zero"),
        (["clusters", "shew"], "No such command 'shew'"),
    ],
)
def test_wrong_usage_ends_with_2_and_writes_nothing(library, capsys, words, said):
    assert run(words) == 2
    out, err = capsys.readouterr()
    assert said in err
    assert out == ""
    assert library.calls == []
    assert os.listdir() == []


def test_an_error_is_one_line_and_ends_with_1(library, capsys):
    library.failure = InfeasibleError("layer 'a\x1b[31m' blocks:\n  at most 3 samples/s\n")
    assert run(["model.onnx"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "a library's chatter\nError: layer 'a\\x1b[31m' blocks: at most 3 samples/s\n"
    assert os.listdir() == []


def test_ctrl_c_ends_with_130_and_writes_nothing(library, capsys):
    library.failure = KeyboardInterrupt()
    assert run(["model.onnx"]) == 130
    assert capsys.readouterr().err.endswith("Interrupted.\n")
    assert os.listdir() == []


def test_a_bug_shows_its_traceback_and_asks_for_a_report(library, capsys):
    library.failure = ZeroDivisionError("of \x1b[31m by zero")
    assert run(["model.onnx"]) == 1
    err = capsys.readouterr().err
    assert "Traceback (most recent call last):" in err
    assert "ZeroDivisionError: of \\x1b[31m by zero\n" in err
    assert f"This is a bug in heterps-compile {__version__}. Please report it" in err
    assert "\x1b" not in err


@pytest.mark.parametrize(
    ("prepare", "words", "said"),
    [
        (lambda: os.mkdir("out") or open("out/file", "w").close(), ["-o", "out"], "was not written by heterps-compile"),
        (lambda: open("out", "w").close(), ["-o", "out", "--force"], "is a file; name a folder"),
        (lambda: None, ["-o", "."], "cannot be replaced as a whole, it is or holds the current folder"),
        (lambda: None, ["-o", ""], "cannot be replaced as a whole, it is or holds the current folder"),
        (lambda: None, ["-o", "/proc/nothing"], "cannot write the folder '/proc/nothing'"),
    ],
)
def test_an_output_that_cannot_be_is_told_before_the_work(library, capsys, prepare, words, said):
    prepare()
    before = os.listdir()
    assert run(["model.onnx", *words]) == 1
    assert said in capsys.readouterr().err
    assert library.calls == []
    assert os.listdir() == before


@pytest.mark.parametrize("words", [["out/model.onnx"], ["model.onnx", "--cluster", "out/pool.toml"]])
def test_an_input_in_the_output_folder_is_never_deleted(library, capsys, words):
    os.mkdir("out")
    for name in ("out/model.onnx", "out/pool.toml"):
        open(name, "w").close()
    assert run([*words, "-o", "out", "--force"]) == 1
    assert names(capsys.readouterr().err, "'out'")
    assert sorted(os.listdir("out")) == ["model.onnx", "pool.toml"]


@pytest.mark.parametrize("words", [["compile", "-h"], ["model.onnx", "--help"], ["clusters", "--help"]])
def test_every_command_has_help_with_examples(capsys, words):
    assert run(words) == 0
    assert "Examples:\n    heterps-compile" in capsys.readouterr().out


def test_the_version_is_the_package_s(capsys):
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"heterps-compile {__version__}\n"


def test_passes_are_shown_and_handed_on(library, capsys):
    steps = (
        "group-layers,annotate-intensity,pose-problem,place-layers,fuse-stages,provision,choose-rules,choose-schedule,"
        "emit-stages"
    )
    assert run(["compile", "no.onnx", "--passes", "?"]) == 0
    assert capsys.readouterr().out == f"{steps}\n"
    assert not library.calls
    assert run(["compile", "m.onnx", "--passes", steps, "--print-after", "fuse-stages"]) == 0
    assert library.calls[0][1]["passes"] == steps
    assert "after fuse-stages" in capsys.readouterr().out
    assert (
        run(["compile", "m.onnx", "--passes", "group-layers,fuse-stages"]) == 0
    )  # compile() refuses it, not the command
    assert run(["compile", "m.onnx", "--passes", "fuse-stage", "--print-after", "fuse-stages"]) == 1
    assert names(capsys.readouterr().err, "'fuse-stage'", "'fuse-stages'?")
