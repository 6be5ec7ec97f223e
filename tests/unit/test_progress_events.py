"""A caller is told how far a compilation is, and can end it anywhere without a trace of it."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import highspy
import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import heterps_compile
from heterps_compile.errors import CancelledError, HeterpsError, InputError
from heterps_compile.frontends.torch_fx import import_torch
from heterps_compile.passes.deadline import NO_DEADLINE, now_s
from heterps_compile.passes.pipeline import DEFAULT
from heterps_compile.passes.solver import run_solver
from heterps_compile.process_state import alone
from heterps_compile.progress import Progress, check, part_of_step, stopping, tell, watching

STEPS = ["reading", *(step.name for step in DEFAULT), "verify", "done"]


@dataclass
class After:
    """A token that is set from its n-th question on."""

    questions: int
    asked: int = 0
    seen: list[str] = field(default_factory=list)

    def is_set(self) -> bool:
        self.asked += 1
        return self.asked > self.questions


@pytest.fixture(scope="module")
def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()


INPUTS = (torch.ones(4, 8),)


@pytest.fixture(scope="module")
def onnx_file(tmp_path_factory) -> Path:
    weights = [helper.make_tensor(f"w{i}", TensorProto.FLOAT, [8, 8], np.full(64, 0.1, np.float32)) for i in range(2)]
    nodes = [helper.make_node("MatMul", ["x", "w0"], ["h"]), helper.make_node("MatMul", ["h", "w1"], ["y"])]
    sides = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 8]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "two", sides[:1], sides[1:], weights)
    path = tmp_path_factory.mktemp("model") / "two.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def test_every_step_is_told_as_it_begins(onnx_file):
    told: list[Progress] = []
    compiled = heterps_compile.compile(onnx_file, baselines=("greedy",), on_progress=told.append)
    shares = [now.share for now in told]
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    assert shares == sorted(shares)
    assert list(dict.fromkeys(now.step for now in told)) == STEPS
    assert [now.done for now in told] == sorted(now.done for now in told)
    assert (told[0].done, told[-1].done, {now.total for now in told}) == (0, len(DEFAULT) + 2, {len(DEFAULT) + 2})
    assert told[0].best is None
    assert told[-1].best == pytest.approx(compiled.plan.value)
    assert all(now.bound is None or now.bound <= now.best * (1 + 1e-9) for now in told if now.best is not None)
    assert [now.elapsed_s for now in told] == sorted(now.elapsed_s for now in told)


def test_within_a_step_the_rate_is_bounded(monkeypatch):
    clock, told = [0.0], []
    monkeypatch.setattr("heterps_compile.progress.time.monotonic", lambda: clock[0])
    with watching(told.append, least_s=0.125) as watch:
        watch.begin("search", 0, 1)
        for tick in range(1024):
            clock[0] = tick / 1024
            tell(f"at {tick}", fraction=tick / 1024, best=1 / (tick + 1))
    assert len(told) == 8
    assert told[2] == Progress("search", 0, 1, "at 256", 0.25, 1 / 257, None, 0.25)


def test_a_bar_never_goes_back():
    told: list[Progress] = []
    with watching(told.append, least_s=0) as watch:
        watch.begin("search", 1, 4)
        with part_of_step(0.0, 0.5):
            tell(fraction=0.5)
            tell(fraction=0.25)
        with part_of_step(0.5, 1.0):
            tell(fraction=0.5)
        watch.begin("done", 4, 4)
    assert [now.share for now in told] == [0.25, 0.25, 0.3125, 0.3125, 0.375, 0.4375, 1.0]


def test_a_slow_function_is_called_less_often(monkeypatch):
    """What it takes counts, so that it is not called at every question."""
    clock, told = [0.0], []

    def slow(now: Progress) -> None:
        told.append(now.message)
        clock[0] += 5

    monkeypatch.setattr("heterps_compile.progress.time.monotonic", lambda: clock[0])
    with watching(slow, least_s=0.1) as watch:
        watch.begin("search", 0, 1)
        for _ in range(100):
            clock[0] += 1
            check()
    assert len(told) == 1 + 2  # of the 110 s 15


def test_the_best_falls_and_the_bound_rises():
    told: list[Progress] = []
    with watching(told.append, least_s=0):
        for best, bound in ((3.0, None), (5.0, 1.0), (2.0, 0.5)):
            tell(best=best, bound=bound)
    assert [(now.best, now.bound) for now in told] == [(3.0, None), (3.0, 1.0), (2.0, 1.0)]


@pytest.mark.parametrize("step", STEPS)
def test_what_the_callers_function_raises_reaches_the_caller(onnx_file, step):
    enough = RuntimeError(step)

    def until(now: Progress) -> None:
        if now.step == step:
            raise enough

    with pytest.raises(RuntimeError, match=step) as caught:
        heterps_compile.compile(onnx_file, method="exact", on_progress=until)
    assert caught.value is enough


@pytest.mark.parametrize("questions", [0, 1, 5, 10])
def test_a_compilation_is_cancelled_wherever_it_is(module, onnx_file, questions):
    before = {name: value.clone() for name, value in module.state_dict().items()}
    dispatch = FakeTensorMode.__torch_dispatch__
    for model, inputs, method in ((module, INPUTS, "exact"), (onnx_file, (), "rl")):
        with pytest.raises(CancelledError):
            heterps_compile.compile(model, inputs, method=method, cancel=After(questions))
    assert FakeTensorMode.__torch_dispatch__ is dispatch
    assert vars(module).keys() == vars(nn.Sequential()).keys()
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_a_cancelled_compilation_leaves_nothing_for_the_next(module):
    first = heterps_compile.compile(module, INPUTS, method="exact").plan
    with pytest.raises(CancelledError):
        heterps_compile.compile(module, INPUTS, method="exact", cancel=After(20))
    token = threading.Event()
    again = heterps_compile.compile(module, INPUTS, method="exact", cancel=token).plan
    assert (again.stages, again.value, again.bound, again.hashes) == (
        first.stages, first.value, first.bound, first.hashes,
    )  # fmt: skip
    token.set()
    with pytest.raises(HeterpsError, match="'reading'"):
        heterps_compile.compile(module, INPUTS, cancel=token)


def test_a_library_that_turns_the_cancellation_into_another_error_does_not_hide_it():
    def library() -> None:
        try:
            check()
        except CancelledError as error:
            raise InputError("cannot trace") from error

    with pytest.raises(CancelledError), watching(cancel=After(0)):
        library()


def test_what_the_callers_function_computes_is_no_part_of_a_trace(module):
    def compute(_: Progress) -> None:
        seen.append(float((torch.ones(3) * 2).sum()))

    seen: list[float] = []
    plain = import_torch(module, INPUTS)
    with watching(compute, least_s=0):
        watched = import_torch(module, INPUTS)
    assert len(seen) > 5
    assert set(seen) == {6.0}
    assert [node.op for node in watched.nodes] == [node.op for node in plain.nodes]


def test_a_function_that_compiles_in_its_turn_is_told_apart(onnx_file):
    inner: list[Progress] = []

    def nested(now: Progress) -> None:
        if now.step == "place-layers" and not inner:
            heterps_compile.compile(onnx_file, method="exact", on_progress=inner.append)

    outer = heterps_compile.compile(onnx_file, method="exact", on_progress=nested).plan
    assert inner[-1].step == "done"
    assert outer.stages


def test_a_solver_is_cancelled_while_it_runs():
    rng = np.random.default_rng(0)
    columns, rows = 200, 100
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = columns, rows
    model.col_cost_ = -rng.integers(1, 100, columns).astype(float)
    model.col_lower_, model.col_upper_ = np.zeros(columns), np.ones(columns)
    model.integrality_ = [highspy.HighsVarType.kInteger] * columns
    model.row_lower_, model.row_upper_ = np.full(rows, -np.inf), np.full(rows, 2000.0)
    model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    model.a_matrix_.start_ = np.arange(0, columns * rows + 1, columns)
    model.a_matrix_.index_ = np.tile(np.arange(columns), rows)
    model.a_matrix_.value_ = rng.integers(1, 100, columns * rows).astype(float)
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.passModel(model)
    token = After(2)  # one question before it starts, one while it runs
    with pytest.raises(CancelledError), watching(cancel=token):
        run_solver(solver, NO_DEADLINE, begun_s=now_s())
    assert token.asked > 2


class Deaf:
    """A solver that asks whether to go on once it is let."""

    def __init__(self) -> None:
        self.asked = list[Callable[[Any], object]]()
        self.begun, self.goes_on, self.was_stopped = threading.Event(), threading.Event(), threading.Event()
        self.cbMipInterrupt = self.cbSimplexInterrupt = self.cbIpmInterrupt = self

    def subscribe(self, asks: Callable[[Any], object]) -> None:
        self.asked.append(asks)

    def interrupt(self) -> None:
        self.was_stopped.set()

    def setOptionValue(self, name: str, value: float) -> None:  # noqa: N802 - as HiGHS has it
        assert (name, value) == ("time_limit", 1e9)

    def run(self) -> None:
        self.begun.set()
        assert self.goes_on.wait(60)
        for asks in self.asked:
            asks(self)


def test_who_cancels_does_not_wait_for_a_solver_that_does_not_ask():
    solver = Deaf()
    with pytest.raises(CancelledError), watching(cancel=solver.begun):
        run_solver(solver, NO_DEADLINE, begun_s=now_s())
    assert not solver.was_stopped.is_set()
    solver.goes_on.set()
    assert solver.was_stopped.wait(60)


def test_what_a_solver_raises_is_raised():
    solver = Deaf()
    solver.goes_on.set()
    solver.subscribe(lambda _event: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run_solver(solver, NO_DEADLINE, begun_s=now_s())


def test_one_long_call_of_a_library_is_stopped_from_another_thread():
    token, stopped = threading.Event(), threading.Event()

    def call() -> bool:
        token.set()
        return stopped.wait(60)

    with pytest.raises(CancelledError), watching(cancel=token), stopping(stopped.set):
        call()
    assert stopped.is_set()


def test_who_waits_for_another_thread_can_be_cancelled():
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with alone():
            held.set()
            done.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(60)
    try:
        with pytest.raises(CancelledError), watching(cancel=After(3)), alone():
            pass
    finally:
        done.set()
        holder.join()
    with alone():  # nobody waits any more
        pass
