"""heterps.toml: what it may say, and how what it may not say is refused."""

import os
import re
from pathlib import Path

import pytest

from heterps_compile.errors import InputError
from heterps_compile.options import Amount, Choice, Pairs, Pins, Sizes, Whole
from heterps_compile.plan.request import OPTIONS, make_request
from heterps_compile.review.manifest.manifest_file import read_manifest

DOCS = Path(__file__).parents[4] / "docs" / "review.md"
PLAN = '[[plan]]\nplan = "a.json"\n'


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(text: str, path: str = "heterps.toml") -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)


def test_a_plan_has_its_own_values_then_the_defaults_then_the_commands():
    write(
        '[defaults]\ntolerance = "2%"\nfail_on = "price>5%"\ncluster = "edge"\n[requests.fast]\nmin_throughput = 300\n'
        '[[plan]]\nplan = "a.json"\nmodel = "m/a.onnx"\nrequest = "fast"\ncluster = "pools/mine.toml"\n'
        '[[plan]]\nplan = "b"\ntolerance = "3%"\nbatch = 8\nshapes = { seq = 128 }\n'
        'profile = "v100=p/v.json,p/c.json"\n'
        'request = { pins = { embedding = "cpu" }, forbidden = ["fc*=cpu", "fc*=t4"], budget = "5 USD/h" }\n'
    )
    first, second = read_manifest().entries
    assert (first.plan, first.model, first.request, first.tolerance) == (
        "a.json", "m/a.onnx", {"min_throughput": 300.0}, 0.02
    )  # fmt: skip
    assert (dict(first.options), first.fail_on) == ({"cluster": "pools/mine.toml"}, "price>5%")
    assert (second.plan, second.model, second.tolerance) == ("b", None, 0.03)
    assert second.options == {
        "cluster": "edge", "batch": 8, "shapes": {"seq": 128}, "profile": "v100=p/v.json,p/c.json"
    }  # fmt: skip
    assert second.request == {
        "pins": {"embedding": "cpu"}, "forbidden": [("fc*", "cpu"), ("fc*", "t4")], "budget": "5 USD/h"
    }  # fmt: skip


def test_every_option_of_a_request_can_be_asked_for_and_is_one():
    written = {Amount: "2.5", Whole: "3", Pins: '{ "a" = "b" }', Pairs: '["a=b"]', Sizes: "{ a = 3 }"}
    texts = {"budget": '"5 USD/h"', "method": '"exact"', "mode": '"training"', "objective": '"cost"', "max_stages": "4",
             "synchronisation": '"all-reduce"'}  # fmt: skip
    for name, option in OPTIONS.items():
        choice = f'"{option.type.names[0]}"' if isinstance(option.type, Choice) else '"x"'
        write(f"{PLAN}request = {{ {name} = {texts.get(name, written.get(type(option.type), choice))} }}\n")
        (entry,) = read_manifest().entries
        assert entry.request is not None
        assert list(entry.request) == [name]
        if name != "budget":
            make_request("USD", **entry.request)


def test_paths_are_relative_to_the_file():
    write(f'{PLAN}model = "../models/a.onnx"\ncluster = "pool.toml"\n'.replace("../", ""), "ci/heterps.toml")
    (entry,) = read_manifest("ci/heterps.toml").entries
    assert (entry.name, entry.plan, entry.model, dict(entry.options)) == (
        "a.json", "ci/a.json", "ci/models/a.onnx", {"cluster": "ci/pool.toml"}
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "there is no plan; expected at least one table, under a heading [[plan]]"),
        ("[[plan]]\nmodel = 'a.onnx'\n", "plan number 1: the key plan is missing"),
        ("[[plans]]\n", "unknown key of the file: 'plans'; did you mean 'plan'?"),
        (f"{PLAN}modle = 'a'\n", "unknown key of plan 'a.json': 'modle'; did you mean 'model'?"),
        (f"{PLAN}request = {{ min_troughput = 3 }}", "request: 'min_troughput'; did you mean 'min_throughput'?"),
        (f"{PLAN}request = 'fats'\n[requests.fast]\n", "unknown request 'fats'; did you mean 'fast'?"),
        (f"[requests.fast]\nx = 1\n{PLAN}", "unknown key of [requests.fast], request: 'x'"),
        (f"{PLAN}request = {{ seed = -1 }}", "key seed: '-1' is no whole number from 0"),
        (f"{PLAN}request = {{ pins = {{ a = 3 }} }}", "key pins: {'a': 3} is no list of texts"),
        (f"{PLAN}request = 3", "key request: 3 is no table"),
        (f"{PLAN}tolerance = 2", "plan 'a.json', key tolerance: 2 is no text"),
        (f"{PLAN}tolerance = '2'", "key tolerance: '2' is no share in percent; give one such as 1%"),
        (f"{PLAN}fail_on = 'prize>5%'", "did you mean 'price'?"),
        (f"{PLAN}batch = 0", "key batch: '0' is no whole number from 1"),
        ("[[plan]]\nplan='x'\n[[plan]]\nplan='y/../x/plan.json'\n", "'y/../x/plan.json' and 'x' are one plan"),
        ("plan = 3", "there is no plan; expected"),
        ("a = [", "is not TOML: "),
        (
            f"{PLAN}<<<<<<< HEAD\nmodel = 'a'\n=======\n>>>>>>> b\n",
            "merge conflict that is not resolved: '<<<<<<< HEAD' at line 3",
        ),
    ],
)
def test_what_it_may_not_say_is_refused_by_name(text, said):
    write(text)
    with pytest.raises(InputError) as caught:
        read_manifest()
    assert said in str(caught.value)
    assert str(caught.value).startswith("heterps.toml")


@pytest.mark.parametrize("key", ["plan", "model", "cluster", "profile"])
@pytest.mark.parametrize("path", ["../x.toml", "/etc/x.toml", "link/x.toml"])
def test_no_path_leaves_the_folder_unless_one_is_named_and_never_a_plans(key, path, tmp_path):
    write(
        '[[plan]]\nplan = "a.json"\n'.replace("a.json", path) if key == "plan" else f'{PLAN}{key} = "{path}"\n',
        "in/h.toml",
    )
    os.symlink("/etc", "in/link")
    with pytest.raises(InputError, match=rf"{key}.*'{path}'"):
        read_manifest("in/h.toml")
    text = Path("in/h.toml").read_text()
    write(f'outside = ["..", "/etc"]\n{text}', "in/h.toml")
    if key == "plan":
        with pytest.raises(InputError, match="key plan"):
            read_manifest("in/h.toml")
    else:
        (entry,) = read_manifest("in/h.toml").entries
        assert Path(entry.model or "".join(entry.options.values())).name == "x.toml"


def test_a_folder_outside_that_is_none_is_refused_and_so_is_a_path_that_is_none():
    write(f'outside = ["nowhere"]\n{PLAN}')
    with pytest.raises(InputError, match="'nowhere'"):
        read_manifest()
    write('[[plan]]\nplan = "a\\u0000b"\n')
    with pytest.raises(InputError, match="path"):
        read_manifest()


def test_there_must_be_one():
    with pytest.raises(InputError, match=r"'heterps.toml'"):
        read_manifest()
    with pytest.raises(InputError, match=r"'x.toml'"):
        read_manifest("x.toml")
    Path("binary.toml").write_bytes(b"\xff")
    with pytest.raises(InputError, match=r"'binary.toml'.*UTF-8"):
        read_manifest("binary.toml")


def test_the_one_in_the_docs_is_one():
    (text,) = re.findall(r"```toml\n(.*?)```", DOCS.read_text("utf-8"), re.DOTALL)
    write(text)
    ranker, tagger = read_manifest().entries
    assert (ranker.request, tagger.options["batch"]) == ({"min_throughput": 300.0, "max_stages": 2}, 8)
