"""``run()`` from Python: what it refuses before anything starts."""

import inspect

import pytest

from heterps_compile.errors import InputError, UnknownNameError
from heterps_compile.options import Amount, Flag, Size, Text, Whole
from heterps_compile.runtime.launch import run_options
from heterps_compile.runtime.launch.option_fields import FilePath
from heterps_compile.runtime.launch.run_api import RunKeywords, make_options, run
from heterps_compile.runtime.launch.run_options import RUN, options_from_json
from heterps_compile.runtime.launch.server_options import ServerOptions
from heterps_compile.runtime.launch.training_file import Training

TRAINING = Training(loss=lambda outputs, batch: outputs, optimizer=lambda parameters: None)


def test_functions_do_not_travel_to_other_processes():
    with pytest.raises(InputError, match="Training"):
        run("model.heterps", train=TRAINING, data="random", steps=1)


def test_an_option_that_nobody_knows_is_told():
    with pytest.raises(UnknownNameError, match=r"'setps'.*'steps'"):
        run("model.heterps", data="random", setps=1)


def test_paths_are_absolute_and_lists_become_tuples(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lists = {"replicas": [2, 1], "speeds": [[1.0, 2.0], [1.0]]}
    options = make_options("m", train="t.py", data="d.tsv", checkpoint=tmp_path / "ck", **lists)
    assert options_from_json(options.to_json()).checkpoint == str(tmp_path / "ck")
    assert options.directory == str(tmp_path / "m")
    assert options.train == str(tmp_path / "t.py")
    assert (options.replicas, options.speeds) == ((2, 1), ((1.0, 2.0), (1.0,)))


def test_a_folder_that_is_not_there_is_told(tmp_path):
    with pytest.raises(InputError):
        run(tmp_path / "nowhere", data="random", steps=1)


@pytest.mark.parametrize("option", RUN.options, ids=lambda option: option.name)
def test_an_option_goes_by_the_name_that_it_is_declared_under(option):
    """In Python as on the command line; what another needs is given too."""
    samples = {
        str: "x", int: 3, float: 0.5, bool: True, "replicas": (2, 1), "speeds": ((1.0, 2.0),), "wire": "float16",
        "precision": "bf16", "server_optimizer": "adam", "output_format": "npz", "train": "/t.py", "data": "/d.tsv",
        "keep_best": "loss", "ema": 0.5, "sync": "topk(density=0.1)", "grow_tables": ("x",),
    }  # fmt: skip
    kinds = {Whole: int, Amount: float, Size: int, Flag: bool, Text: str, FilePath: str}
    one = {each.name: samples.get(each.name, samples.get(kinds.get(type(each.type)))) for each in RUN.options}
    is_training = not option.subjects or run_options.TRAINING in option.subjects
    words = {"train": "/t.py" if is_training else None, "data": "/d.tsv", option.name: one[option.name]}
    words |= {name: one[name] for name in option.needs}
    made = make_options("m", **words)
    assert made.by_name[option.name] == one[option.name]
    assert options_from_json(made.to_json()) == made


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"replicas": 2}, "--replicas is 2"),
        ({"replicas": "21"}, "--replicas is '21'"),
        ({"replicas": [1, [2]]}, "--replicas is "),
        ({"speeds": [1.0, 2.0]}, "--speeds is "),
        ({"speeds": None}, "--speeds is None"),
        ({"schedule": 3}, "--schedule is 3"),
        ({"precision": 16}, "--precision is 16.*fp32"),
        ({"quiet": "no"}, "-q is 'no'"),
        ({"seed": None}, "--seed is None"),
        ({"sync": ["topk"]}, "--sync is "),
        ({"checkpoint": 3}, "--checkpoint is 3"),
        ({"checkpoint": "ck", "keep_best": True}, "--keep-best is True"),
        ({"parameter_servers": 1, "grow_tables": "ids"}, "--grow-tables is 'ids'"),
        ({"parameter_servers": 1, "grow_tables": [3]}, "--grow-tables is 3"),
    ],
)
def test_a_value_of_another_type_is_refused_before_anything_starts(options, said):
    with pytest.raises(InputError, match=said):
        make_options("m", train="t.py", data="d.tsv", **options)


def test_type_checkers_know_every_option():
    own = set(inspect.signature(run).parameters) - {"directory", "options"}
    assert own | set(RunKeywords.__annotations__) == {option.name for option in RUN.options}


def test_an_option_may_go_by_its_field_too():
    options = {"train": "t.py", "data": "random", "hang_after_s": 5.0, "servers": ServerOptions(count=2)}
    assert make_options("m", **options) == make_options(
        "m", train="t.py", data="random", hang_after=5.0, parameter_servers=2
    )
