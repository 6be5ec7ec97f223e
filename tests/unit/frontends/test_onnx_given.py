"""Values of inputs that a user gives decide shapes and are what stages are verified with."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from staged_onnx import BACKEND, parse

import heterps_compile
from heterps_compile.cli.main import run
from heterps_compile.errors import (
    BackendError,
    GraphError,
    HeterpsError,
    InputError,
    PlanError,
    StalePlanError,
    UnknownNameError,
)
from heterps_compile.frontends.input_files import read_values
from heterps_compile.frontends.onnx import import_onnx
from heterps_compile.plan.file import from_json
from heterps_compile.review.update import compile_as_planned

SIZED = parse("g (float[8] x, int64[2] size) => (y) { r = Reshape(x, size) y = Relu(r) }")
RATED = parse(
    """g (float[N, T] x, int64 rate) => (y) <int64 fast = {16000}> {
        is_fast = Equal(rate, fast)
        y = If(is_fast) <
            then_branch = a () => (p) { p = Relu(x) },
            else_branch = b () => (q) { s = Constant<value = int64[2] {-1, 3}>() q = Reshape(x, s) }
        >
    }"""
)


def test_a_value_gives_the_shape_that_depends_on_it() -> None:
    graph = import_onnx(SIZED, given={"size": [2, 4]})
    assert graph.shape("y") == (2, 4)
    assert BACKEND.example_inputs(graph, 3)["size"].tolist() == [2, 4]


def test_without_it_the_message_has_the_input_and_the_option() -> None:
    with pytest.raises(GraphError, match=r"'size'.*--input size="):
        import_onnx(SIZED)


def test_where_drawn_values_make_the_whole_model_fail_the_message_has_them_too() -> None:
    model = parse("g (int64[2] i, float[4] x) => (y) <int64 k = {7}> { j = Mul(i, k) y = Gather(x, j) }")
    with pytest.raises(BackendError, match=r"Gather.*'i'.*--input i="):
        heterps_compile.compile(model, method="greedy")
    made = heterps_compile.compile(model, {"i": 0}, method="greedy")
    assert made.plan.verification is not None


def test_an_array_gives_numbers_to_free_dimensions_and_is_cut_for_a_smaller_batch() -> None:
    model = parse("g (float[N, T] x, int64[N] length) => (y) { c = Cast<to = 1>(length) u = Unsqueeze(c, a) "
                  "y = Mul(x, u) }".replace("{ c", "<int64[1] a = {1}> { c"))  # fmt: skip
    graph = import_onnx(model, given={"length": np.array([3, 5, 7])}, shapes={"T": 9})
    assert dict(graph.bindings) == {"N": 3, "T": 9}
    with pytest.raises(InputError, match=r"'length'.*\[3\].*\[8\]"):
        import_onnx(model, batch=8, given={"length": np.array([3, 5, 7])})
    filled = import_onnx(model, batch=4, given={"length": 6})
    assert BACKEND.example_inputs(filled, 0)["length"].tolist() == [6, 6, 6, 6]


def test_a_constant_that_an_input_is_compared_with_is_drawn_for_it() -> None:
    assert BACKEND.example_inputs(import_onnx(RATED), 0)["rate"] == 16000
    graph = import_onnx(RATED, given={"rate": 8000})
    assert (graph.bindings["N"] * graph.bindings["T"] % 3, BACKEND.example_inputs(graph, 1)["rate"]) == (0, 8000)


@pytest.mark.parametrize(
    ("given", "error", "told"),
    [
        ({"sise": 1}, UnknownNameError, "size"),
        ({"size": [[1]]}, InputError, "2 dimensions.*1"),
        ({"size": [1, 2, 3]}, InputError, r"\[3\].*\[2\]"),
        ({"size": [1.5, 2]}, InputError, "1.5.*int64"),
        ({"size": [[1], [2, 3]]}, InputError, "size"),
        ({"size": ["a", "b"]}, InputError, "size.*int64"),
        (([2, 4],), InputError, "tuple.*mapping"),
    ],
)
def test_what_does_not_fit_is_refused(given: object, error: type[HeterpsError], told: str) -> None:
    with pytest.raises(error, match=told):
        heterps_compile.compile(SIZED, given)  # type: ignore[arg-type]


def test_a_file_of_arrays_is_read_without_running_it(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return Path.touch, (tmp_path / "ran",)

    good, bad = (str(tmp_path / f"{name}.npz") for name in ("good", "bad"))
    np.savez(good, size=np.array([2, 4]))
    np.savez(bad, size=np.array([Evil()], object))
    assert read_values(good, {"x": 1})["size"].tolist() == [2, 4]
    for path in (bad, str(tmp_path / "none.npz"), str(tmp_path)):
        with pytest.raises(InputError, match="Fix"):
            read_values(path, {})
    assert not (tmp_path / "ran").exists()


def test_the_plan_has_small_values_and_asks_for_large_ones_again(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(RATED, "rated.onnx")
    np.savez("x.npz", x=np.ones((4, 30), np.float32))
    command = ["rated.onnx", "-o", "out", "--input", "rate=8000", "--inputs", "x.npz", "--method", "greedy"]
    assert run(command) == 0
    part = json.loads(Path("out/plan.json").read_text())["model"]
    assert part["values"]["rate"]["elements"] == [8000]
    assert (part["values"]["x"]["shape"], part["values"]["x"]["elements"]) == ([4, 30], [])
    assert (part["bindings"], "defaults" in part) == ({"N": 4, "T": 30}, False)
    assert run(["check", "rated.onnx", "--against", "out"]) == 0
    plan = from_json(Path("out/plan.json").read_text(), "plan.json")
    with pytest.raises(StalePlanError, match=r"'x'.*--inputs"):
        compile_as_planned("rated.onnx", plan)
    again = compile_as_planned("rated.onnx", plan, given=read_values("x.npz", {})).plan
    assert (again.input_values, dict(again.bindings)) == (plan.input_values, dict(plan.bindings))


def test_defaults_are_printed_recorded_and_kept(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(parse("g (float[N, T] x) => (y) <int64[3] s = {0, 7, 11}> { r = Reshape(x, s) y = Relu(r) }"), "m.onnx")
    assert run(["m.onnx", "-o", "out", "--method", "greedy"]) == 0
    first = " ".join(capsys.readouterr().out.split()[:100])
    assert "defaults N = 32 (--batch), T = 77 (--shape T=...; 128 was not accepted)" in first
    written = Path("out/plan.json").read_text()
    assert json.loads(written)["model"]["defaults"] == {
        "N": {"why": "default", "same_as": ""},
        "T": {"why": "nearest", "same_as": ""},
    }
    for wrong in (written.replace('"N": {"why"', '"M": {"why"'), written.replace('"same_as": ""', '"same_as": "T"', 1)):
        with pytest.raises(PlanError, match=r"model\.defaults"):
            from_json(wrong, "plan.json")
    monkeypatch.setattr("heterps_compile.frontends.onnx_free_dims.Trials", None)  # nothing is tried again
    assert run(["check", "m.onnx", "--against", "out"]) == 0
    assert run(["check", "m.onnx", "--against", "out", "--batch", "8"]) in (0, 1)
    plan = from_json(written, "plan.json")
    assert compile_as_planned("m.onnx", plan).plan.bindings["T"].why == "nearest"  # type: ignore[attr-defined]
    assert run(["show", "out"]) == 0
    assert "defaults N = 32 (--batch)" in " ".join(capsys.readouterr().out.split())
