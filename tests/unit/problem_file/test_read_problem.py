"""A problem file may come from a stranger: it is read strictly, and every fault is one sentence."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from heterps_compile.errors import HeterpsError, InputError
from heterps_compile.problem_file.problem_laws import LAWS
from heterps_compile.problem_file.read_problem import FORMAT, make_given, read_problem

ESC = "\x1b[31m"


def document(**changes: Any) -> dict[str, Any]:
    times = {"device": "gpu", "samples": [1, 8], "forward_s": [0.001, 0.004], "backward_s": [0.002, 0.008]}
    return {
        "format": FORMAT,
        "version": 1,
        "name": "two",
        "layers": [
            {"name": "embed", "parameter_bytes": 100, "times": [copy.deepcopy(times)]},
            {"name": "head", "times": [copy.deepcopy(times)]},
        ],
        "edges": [{"from": "embed", "to": ["head"], "bytes_per_sample": 8}],
        "pool": {"device": [{"name": "gpu", "kind": "gpu", "network_bandwidth": "1 GB/s"}]},
        "batch": 64,
        **changes,
    }


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "problem.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_times_between_sizes_lie_on_a_line_and_beyond_them_the_line_goes_on() -> None:
    times = make_given(document(), "it").layers[0].by_group["gpu", 1]
    assert times.forward_time_s(8) == 0.004
    assert times.forward_time_s(4.5) == pytest.approx(0.0025)
    assert times.forward_time_s(15) == pytest.approx(0.007)


def test_one_size_is_taken_to_be_in_proportion() -> None:
    given = document()
    given["layers"][0]["times"][0] |= {"samples": [4], "forward_s": [0.004], "backward_s": [0.008]}
    assert make_given(given, "it").layers[0].times[0].forward_time_s(1) == pytest.approx(0.001)


def test_a_unit_of_a_group_holds_its_part_unless_it_is_said() -> None:
    given = document()
    given["layers"][0]["times"][0]["tensor_parallel"] = 4
    assert make_given(given, "it").layers[0].times[0].parameter_bytes == 25
    given["layers"][0]["times"][0]["parameter_bytes"] = 30
    assert make_given(given, "it").layers[0].times[0].parameter_bytes == 30


def test_without_backwards_a_problem_is_of_inference() -> None:
    given = document()
    for layer in given["layers"]:
        del layer["times"][0]["backward_s"]
    problem = make_given(given, "it")
    assert not problem.training
    assert problem.held_per_parameter == 1
    with pytest.raises(InputError, match=r"backward_s.*'gpu'"):
        make_given({**given, "request": {"mode": "training"}}, "it")


def _with_times(**changes: Any) -> dict[str, Any]:
    given = document()
    given["layers"][0]["times"][0] |= changes
    return given


_OF_NOBODY = [{"from": "embed", "to": ["nobody"], "bytes_per_sample": 1}]
_BACKWARD = [{"from": "head", "to": ["embed"], "bytes_per_sample": 1}]
_ITSELF = [{"from": "head", "to": ["head"], "bytes_per_sample": 1}]

WRONG: list[tuple[dict[str, Any], str]] = [
    (document(layers=[]), "it has no layers"),
    (document(layers=[document()["layers"][0]] * 2), r"\b2\b.*'embed'"),
    (_with_times(forward_s=[-1.0, 2.0]), "greater than or equal to 0"),
    (_with_times(forward_s=[1e300, 2.0]), "less"),
    (_with_times(forward_s=["1", 2.0]), "valid"),
    (_with_times(forward_s=[True, 2.0]), "valid"),
    (_with_times(forward_s=[1.0]), r"forward_s.*\b1\b.*\b2\b"),
    (_with_times(samples=[8, 1]), "samples.*ascend"),
    (_with_times(samples=[0, 1]), "greater than or equal to 1"),
    (_with_times(samples=[], forward_s=[], backward_s=[]), "given"),
    (_with_times(tensor_parallel=5000), "1,024"),
    (_with_times(device="tpu"), "'tpu'"),
    (_with_times(device=f"{ESC}x"), r"\\x1b"),
    (document(edges=_OF_NOBODY), "'nobody'"),
    (document(edges=_BACKWARD), "backward"),
    (document(edges=_ITSELF), "backward"),
    (document(pool="/etc/passwd"), "expected.*name"),
    (document(pool={"device": []}), "device"),
    (document(pool={"device": [{"name": "gpu"}]}), "missing"),
    (document(request={"speed": 1}), "'speed'"),
    (document(request={"min_throughput": -1}), r"\b0\b.*more"),
    (document(request={"mode": ["training"]}), "mode"),
    (document(request={"method": {}}), "text"),
    (document(batch=0), "greater than or equal to 1"),
    (document(batch_of="everybody"), "'step'.*'replica'"),
    (document(lairs=[]), "lairs"),
    (document(version=2), r"version 2\b"),
    (document(transfers=[{"between": ["gpu", "gpu"], "sizes_bytes": [2, 1], "times_s": [1, 1]}]), "ascend"),
    (document(all_reduces=[{"device": "gpu", "units": 2, "sizes_bytes": [1], "times_s": []}]), "both"),
]


WRONG += [
    (_with_times(compute_parallel=number), "compute_parallel") for number in (-0.1, 1.5, 1e308, "0.5", [0.5], True)
]
WRONG += [(_with_times(compute_parallel=number), "is no number") for number in (float("inf"), float("nan"))]
WRONG += [(document(batch_of="replica", layers=_with_times(compute_parallel=0.5)["layers"]), "divided")]


@pytest.mark.parametrize(("given", "words"), WRONG)
def test_what_is_wrong_is_one_sentence(tmp_path: Path, given: dict[str, Any], words: str) -> None:
    with pytest.raises(HeterpsError, match=words) as caught:
        read_problem(written(tmp_path, json.dumps(given)))
    assert "\n" not in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 700


HOSTILE: list[tuple[bytes, str]] = [
    (b"", "JSON"),
    (b"\xff\xfe", "UTF-8"),
    (b"[" * 200_000, "brackets"),
    (b'{"batch": ' + b"9" * 5000 + b"}", "long"),
    (b'{"batch": NaN}', "NaN"),
    (b'{"batch": 1, "batch": 2}', "'batch'"),
    (b"[]", "'format'"),
    (b"<<<<<<< HEAD\n{}\n", "conflict"),
]


@pytest.mark.parametrize(("text", "words"), HOSTILE)
def test_what_is_no_problem_file_is_one_sentence(tmp_path: Path, text: bytes, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_problem(written(tmp_path, text))


def test_a_file_too_large_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    path = tmp_path / "problem.json"
    with path.open("wb") as file:
        file.truncate(1 << 30)  # sparse: no block of it is written
    with pytest.raises(InputError, match="256 MiB"):
        read_problem(path)


def test_a_million_layers_are_refused() -> None:
    with pytest.raises(InputError, match="100000"):
        make_given(document(layers=[0] * 1_000_000, edges=[]), "it")


@pytest.mark.parametrize("name", ["no-such-file", "with\x00zero", "."])
def test_what_cannot_be_opened_is_one_sentence(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError):
        read_problem(f"{tmp_path}/{name}")


def test_laws_are_a_list() -> None:
    assert len(LAWS) == len({words for words, _ in LAWS}) >= 8
