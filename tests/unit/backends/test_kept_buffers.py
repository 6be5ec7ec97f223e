"""What a model changes in itself when it runs is carried from call to call by every backend, or refused by name."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import heterps_compile
from heterps_compile.backends.find import find_backend
from heterps_compile.backends.jax.export import export_stablehlo
from heterps_compile.errors import BackendError, InputError, VerificationError
from heterps_compile.frontends.torch_fx import import_torch
from heterps_compile.ir.graph import Graph

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:onnxscript"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
]
F64 = torch.float64
BATCH = torch.linspace(-1, 1, 48, dtype=F64).reshape(6, 8)


class Counts(nn.Module):
    """A buffer as a whole, and one that is not saved."""

    calls: Tensor
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(8, dtype=F64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.mean = 0.5 * self.mean + x.mean(0)
        return x + self.mean * self.calls


class Views(nn.Module):
    """Parts of a buffer, by index, by view and detached."""

    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.zeros(3, 8, dtype=F64))

    def forward(self, x: Tensor) -> Tensor:
        self.table[0] += x[0]
        self.table.view(-1)[3:5].add_(1)
        self.table.detach().t()[2].mul_(0.5)
        return x + self.table.sum(0)


class Cache(nn.Module):
    """A ring of rows, and the place of the next."""

    rows: Tensor
    place: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(4, 8, dtype=F64))
        self.register_buffer("place", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.rows.index_copy_(0, self.place, x.mean(0, keepdim=True))
        self.place.add_(1).remainder_(4)
        return x + self.rows.sum(0)


class Twice(nn.Module):
    """One tensor under two names."""

    written: Tensor
    read: Tensor

    def __init__(self) -> None:
        super().__init__()
        once = torch.zeros(8, dtype=F64)
        self.register_buffer("written", once)
        self.register_buffer("read", once)

    def forward(self, x: Tensor) -> Tensor:
        self.written.add_(x[1])
        return x + self.read


class Attribute(nn.Module):
    """A tensor that is no buffer, changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.total = torch.zeros(8, dtype=F64)

    def forward(self, x: Tensor) -> Tensor:
        self.total.add_(x.abs().mean(0))
        return x + self.total


class Last(nn.Module):
    """A buffer that is written and read by nothing."""

    last: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(8, dtype=F64))

    def forward(self, x: Tensor) -> Tensor:
        self.last.copy_(x[0])
        return x * 2


class Weight(nn.Module):
    """A weight that shrinks."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8, dtype=F64))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.weight.mul_(0.5)
        return x * self.weight


KINDS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "counts": (Counts, "calls"),
    "views": (Views, "table"),
    "cache": (Cache, "rows"),
    "twice": (Twice, "written"),
    "attribute": (Attribute, "total"),
    "weight": (Weight, "weight"),
    "norm": (lambda: nn.BatchNorm1d(8, dtype=F64), "num_batches_tracked"),
}


def everything() -> nn.Module:
    """Return a model with all kinds in a row, in two stages or more; the norm reads the others' results."""
    torch.manual_seed(0)
    parts = [part for make, _ in KINDS.values() for part in (make(), nn.Linear(8, 8, dtype=F64))]
    return nn.Sequential(nn.Linear(8, 8, dtype=F64), *parts).train()


def graph_of(model: nn.Module) -> Graph:
    return import_torch(model, (BATCH,))


def numbers(value: Any) -> Any:
    return np.asarray(value.detach() if isinstance(value, Tensor) else value).copy()


@pytest.mark.slow  # torch.export takes seconds
@pytest.mark.parametrize("backend", ["torch", "jax", "cpu=torch,gpu=jax"])
def test_three_calls_in_a_row_are_those_of_the_module(tmp_path: Path, backend: str) -> None:
    model = everything()
    by_itself = copy.deepcopy(model)
    wanted = [numbers(by_itself(BATCH)) for _ in range(3)]
    compiled = heterps_compile.compile(
        model, (BATCH,), backend=backend, min_stages=2, method="greedy", pins={"linear_2": "v100"}, verify=False
    )
    compiled.save(tmp_path / "saved")
    loaded = heterps_compile.load(tmp_path / "saved")
    assert {stage.backend for stage in compiled.plan.stages} == {
        part.partition("=")[2] or part for part in backend.split(",")
    }
    for run in (compiled.run, loaded.run):
        for want in wanted:
            np.testing.assert_allclose(numbers(run(BATCH)), want, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_onnx_runtime_refuses_what_it_would_forget_by_name(kind: str) -> None:
    make, name = KINDS[kind]
    with pytest.raises(BackendError, match=f"'{name}'"):
        find_backend("onnxruntime").unsupported(graph_of(make().train()))


def test_a_buffer_that_nothing_reads_is_kept() -> None:
    compiled = heterps_compile.compile(Last().eval(), (BATCH,), backend="jax", method="greedy", verify=False)
    compiled.run(BATCH)
    np.testing.assert_array_equal(compiled.stages[0].arrays["last"], BATCH[0])


@pytest.mark.slow  # torch.export takes seconds
def test_rows_that_are_scaled_again_are_the_same_rows() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 8, max_norm=0.5, dtype=F64), nn.Linear(8, 8, dtype=F64)).eval()
    ids = torch.tensor([1, 8, 1])
    verified = heterps_compile.compile(copy.deepcopy(model), (ids,), backend="onnxruntime", method="greedy")
    assert verified.plan.verification is not None
    wanted = numbers(copy.deepcopy(model)(ids))
    for backend in ("onnxruntime", "jax"):
        compiled = heterps_compile.compile(copy.deepcopy(model), (ids,), backend=backend, method="greedy", verify=False)
        for _ in range(2):
            np.testing.assert_allclose(numbers(compiled.run(ids)), wanted, rtol=0, atol=1e-6)


def test_verification_puts_buffers_back_and_the_function_of_a_jax_stage_is_pure() -> None:
    compiled = heterps_compile.compile(Counts().eval(), (BATCH,), backend="jax", method="greedy")
    (stage,) = compiled.stages
    before = stage.params
    stage(BATCH)
    assert int(before["calls"]) == 0
    assert int(stage.params["calls"]) == 1
    assert int(stage.step(before, BATCH.numpy())[1]["calls"]) == 1
    assert int(stage.params["calls"]) == 1
    with pytest.raises(BackendError, match=r"'calls'.*'mean'.*StableHLO"):
        export_stablehlo(stage, [BATCH.numpy()])


class Remembers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls, self.last, self.seen = 0, torch.zeros(8, dtype=F64), [1]

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.last = x.mean(0)
        self.new = x
        self.seen.append(2)
        return x * self.calls


def test_attributes_that_a_forward_changes_are_told_and_put_back() -> None:
    model = Remembers()
    last = model.last
    graph = graph_of(model)
    assert graph.source.attributes == ("calls", "last", "seen", "new")
    assert (model.calls, model.seen, hasattr(model, "new")) == (0, [1], False)
    assert model.last is last
    notes = [note for note in graph.source.notes if "an attribute and no buffer" in note]
    assert len(notes) == 4
    assert notes[0].startswith("the forward of Remembers changes 'calls'")


def test_an_attribute_that_is_a_tensor_is_not_changed_by_reading_the_model() -> None:
    model = Attribute()
    graph_of(model)
    assert not model.total.any()


class Overlapping(nn.Module):
    whole: Tensor
    row: Tensor

    def __init__(self) -> None:
        super().__init__()
        whole = torch.zeros(2, 8, dtype=F64)
        self.register_buffer("whole", whole)
        self.register_buffer("row", whole[1])

    def forward(self, x: Tensor) -> Tensor:
        self.whole.add_(1.0)
        return x + self.row


def test_buffers_that_share_a_part_of_their_memory_are_refused() -> None:
    with pytest.raises(InputError, match=r"'row'.*'whole'.*Overlapping"):
        graph_of(Overlapping())


def test_a_plan_says_where_replicas_keep_buffers_of_their_own() -> None:
    model = nn.Sequential(nn.Linear(8, 8, dtype=F64), Counts()).eval()
    compiled = heterps_compile.compile(model, (BATCH,), max_stages=1, min_throughput=2e7, method="exact")
    replicas = compiled.plan.stages[0].replicas
    assert replicas > 1
    assert any(
        f"stage 0 changes '1.calls' when it runs, and its {replicas} replicas" in note for note in compiled.plan.notes
    )


class TiedRows(nn.Module):
    """Rows that are scaled when they are looked up, and read as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(9, 8, max_norm=0.5, dtype=F64)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.rows(ids) @ self.rows.weight.T
        return found


def test_rows_that_something_else_reads_are_not_scaled_anew_by_onnx_runtime() -> None:
    graph = import_torch(TiedRows().eval(), (torch.tensor([1, 8, 1]),))
    with pytest.raises(BackendError, match=r"'rows\.weight'"):
        find_backend("onnxruntime").unsupported(graph)


def test_a_buffer_of_two_names_is_kept_under_both_and_rounding_is_no_fault() -> None:
    model = nn.Sequential(Twice(), nn.BatchNorm1d(8, dtype=F64), nn.BatchNorm1d(8, dtype=F64)).train()
    compiled = heterps_compile.compile(model, (BATCH,), backend="jax", method="greedy")
    assert not any("rounding alone" in note for note in compiled.plan.notes)  # the second norm's mean is 1e-17


def test_what_no_stage_keeps_is_refused_by_name_and_not_taken_for_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heterps_compile.verification.calls.kept_by_stages", lambda stages, names: {})
    with pytest.raises(BackendError, match=r"'last'.*stage"):
        heterps_compile.compile(Last().eval(), (BATCH,), backend="torch", method="greedy")


class Given(nn.Module):
    """A buffer that is changed, and is a result."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8, dtype=F64)
        self.register_buffer("count", torch.zeros((), dtype=F64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.count += 1
        return self.first(x), self.count


def test_a_changed_buffer_that_is_a_result_is_compared_as_it_was_when_it_was_given() -> None:
    compiled = heterps_compile.compile(Given().train(), (BATCH,), backend="jax", mode="training", method="greedy")
    assert [int(compiled.run(BATCH)[1]) for _ in range(2)] == [1, 2]


class Listed(nn.Module):
    """A list that grows."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8, dtype=F64)
        self.seen: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(1)
        made: Tensor = self.first(x) * len(self.seen)
        return made


def test_a_list_that_a_forward_changes_is_named_and_is_not_to_be_reported() -> None:
    with pytest.raises(VerificationError, match=r"'seen'.*buffer.*register_buffer"):
        heterps_compile.compile(Listed().eval(), (BATCH,), backend="torch", method="greedy")
