"""What an engine does beside equal numbers: values of every kind, dropout, narrow wires, who reads and who hears."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hand_made import (
    BATCH,
    MICRO_BATCHES,
    HandMade,
    engine_of,
    largest_relative_difference,
    looking_up_stages,
    plan_of,
    reader,
)
from ranks import run_ranks
from torch import Tensor
from torch.nn import functional

from heterps_compile.errors import RunError, UnknownNameError
from heterps_compile.runtime.pipeline.engine import Engine
from heterps_compile.runtime.pipeline.gradient_sums import SharedGradients
from heterps_compile.runtime.pipeline.layout import StepShape, make_layout
from heterps_compile.runtime.pipeline.rank_parts import RankParts, StepOptions
from heterps_compile.runtime.pipeline.recorder import StepResult
from heterps_compile.runtime.pipeline.world import make_group
from heterps_compile.runtime.sync.contract import Shared
from heterps_compile.runtime.sync.find import make_rule
from heterps_compile.schedule.order import Phase
from heterps_compile.sync_rules.rules import USUAL

STEPS = 3
Trained = tuple[list[float], dict[str, list[float]]]


def odd_stages() -> list[HandMade]:
    """Build three stages that exchange floats, whole numbers, truth values, None, plain numbers, an early output."""

    def first(stage: HandMade, x: Tensor, ids: Tensor) -> tuple[Any, ...]:
        hidden = torch.tanh(x @ stage.weight)
        return hidden, ids * 2, hidden > 0, None, x.shape[0], hidden.square().mean(), hidden.detach()

    def second(stage: HandMade, hidden: Tensor, ids: Tensor, nothing: None, count: int) -> tuple[Any, ...]:
        assert nothing is None
        assert type(count) is int
        return hidden.reshape(count, 4) @ stage.weight + ids.unsqueeze(1), hidden * 1.0

    def third(stage: HandMade, more: Tensor, hidden: Tensor, positive: Tensor, fixed: Tensor) -> tuple[Any, ...]:
        assert not fixed.requires_grad
        return (torch.where(positive, more, hidden) @ stage.weight + fixed,)

    return [
        HandMade("x ids", "hidden twice positive nothing count early fixed", first),
        HandMade("hidden twice nothing count", "more unused", second),
        HandMade("more hidden positive fixed", "y", third),
    ]


def odd_loss(outputs: list[Any], columns: dict[str, Tensor]) -> Tensor:
    y, early, unused = outputs
    assert unused.requires_grad
    return (y.sum(1) - columns["label"]).square().mean() + early


def dropping_stages() -> list[HandMade]:
    """Return two stages with batch norm and dropout."""

    def dropped(stage: HandMade, x: Tensor) -> tuple[Any, ...]:
        return (functional.dropout(stage.norm(x.double() @ stage.weight), 0.5),)

    # float64, since a batch norm over two samples makes much of rounding
    return [HandMade("x", "a", dropped).double(), HandMade("a", "y", dropped).double()]


def plain_loss(outputs: list[Any], columns: dict[str, Tensor]) -> Tensor:
    return (outputs[0].sum(1) - columns["label"]).square().mean()


def train(
    rank: int, stages: list[HandMade], outputs: str, widths: tuple[int, ...], loss: Any, **options: Any
) -> Trained | None:
    """Train some steps; give losses, and weights and buffers by stage and name."""
    if rank >= sum(widths):
        return None
    engine = engine_of(rank, stages, outputs, widths, loss, **options)
    own = [index for index, stage in enumerate(stages) if stage in engine._stages.values()]
    optimizer = torch.optim.SGD([p for index in own for p in stages[index].parameters()], lr=0.01)
    losses = []
    for step in range(STEPS):
        result = engine.train_step(step, reader(step, [])).loss
        optimizer.step()
        losses += [] if result is None else [result]
    engine.finish()
    return losses, {
        f"{index}.{name}": tensor.flatten().tolist()
        for index in own
        for name, tensor in stages[index].state_dict().items()
    }


WIDTHS = ((1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2))


def _odd(rank: int) -> list[Trained | None]:
    return [train(rank, odd_stages(), "y early unused", widths, odd_loss) for widths in WIDTHS]


def _dropping(rank: int) -> list[Trained | None]:
    widths = ((1, 1), (2, 1), (1, 2), (2, 2), (3, 1))
    made = [train(rank, dropping_stages(), "y", width, plain_loss) for width in widths]
    return [*made, train(rank, dropping_stages(), "y", (1, 1), plain_loss, seed=1)]


def _recomputing(rank: int) -> list[Trained | None]:
    """Train with stages that keep their activations and that compute them again, by turns."""
    dropped = [
        train(rank, dropping_stages(), "y", widths, plain_loss, recompute=recompute)
        for widths in ((1, 1), (2, 1))
        for recompute in (False, True)
    ]
    odd = [train(rank, odd_stages(), "y early unused", (1, 1, 1), odd_loss, recompute=one) for one in (False, True)]
    return [*dropped, *odd]


def _narrow(rank: int) -> list[Trained | None]:
    wires = ("float32", "float16", "bfloat16")
    return [train(rank, odd_stages(), "y early unused", (2, 1, 1), odd_loss, wire=wire) for wire in wires]


def merged(runs: list[Trained | None]) -> Trained:
    """Return losses and state over all ranks, which must agree on what several of them have."""
    losses, state = [], {}
    for run in filter(None, runs):
        losses += [run[0]] if run[0] else []
        for name, numbers in run[1].items():
            assert state.setdefault(name, numbers) == numbers
    assert all(other == losses[0] for other in losses)
    return losses[0], state


def difference(one: Trained, other: Trained) -> float:
    assert one[1].keys() == other[1].keys()
    pairs = [(one[0], other[0]), *((one[1][name], other[1][name]) for name in one[1])]
    return largest_relative_difference(pairs)


def test_values_of_every_kind_cross_whatever_the_widths(by_rank):
    one, *others = (merged([of_rank["odd"][place] for of_rank in by_rank]) for place in range(len(WIDTHS)))
    assert [difference(other, one) < 1e-6 for other in others] == [True, True, True]
    assert one[0] == pytest.approx(odd_by_hand(), rel=1e-6)


def odd_by_hand() -> list[float]:
    """Train the same stages in this process, one after the other, micro-batches in order."""
    stages = odd_stages()
    optimizer = torch.optim.SGD([p for stage in stages for p in stage.parameters()], lr=0.01)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        total = 0.0
        for i in range(MICRO_BATCHES):
            columns = reader(step, [])(i, ("*",))
            hidden, twice, positive, nothing, count, early, fixed = stages[0](columns["x"], columns["ids"])
            more, unused = stages[1](hidden, twice, nothing, count)
            (y,) = stages[2](more, hidden, positive, fixed)
            loss = odd_loss([y, early, unused], dict(columns))
            (loss / MICRO_BATCHES).backward()
            total += float(loss.detach())
        optimizer.step()
        losses.append(total / MICRO_BATCHES)
    return losses


def test_masks_of_dropout_depend_on_the_seed_and_not_on_the_widths(by_rank):
    one, *others, seeded = (merged([of_rank["dropping"][place] for of_rank in by_rank]) for place in range(6))
    assert [difference(other, one) < 1e-9 for other in others] == [True] * 4
    assert difference(seeded, one) > 1e-2


def test_stages_that_recompute_train_to_the_very_bits_of_those_that_keep_their_activations(by_rank):
    runs = [merged([of_rank["recomputing"][place] for of_rank in by_rank]) for place in range(6)]
    assert [again == kept for kept, again in zip(runs[::2], runs[1::2], strict=True)] == [True] * 3


def test_a_narrow_wire_stays_near(by_rank):
    wide, half, brain = (merged([of_rank["narrow"][place] for of_rank in by_rank]) for place in range(3))
    assert 0 < difference(half, wide) < 5e-3
    assert 0 < difference(brain, wide) < 5e-2


def test_sparse_gradients_are_summed_and_stay_sparse(by_rank):
    one, two = (merged([of_rank["sparse"][place] for of_rank in by_rank]) for place in range(2))
    assert difference(two, one) < 1e-6


def _sparse(rank: int) -> list[Trained | None]:
    made = []
    for widths in ((1, 1), (3, 1)):
        stages = looking_up_stages()
        made.append(train(rank, stages, "y", widths, plain_loss))
        assert rank >= widths[0] or stages[0].weight.grad.is_sparse
    return made


def _tied_both_ways(rank: int) -> list[list[float]]:
    """Sum a table that ranks of even numbers look up sparsely and the others multiply by, in two steps."""
    table = torch.nn.Parameter(torch.arange(8.0).reshape(4, 2))
    sums = SharedGradients(make_rule(USUAL, Shared(make_group(range(4)), rank, {"table": table}, 0.25)))
    found = []
    for step in range(2):
        sums.begin()
        if rank % 2 == 0:
            functional.embedding(torch.tensor([step, rank]), table, sparse=True).sum().backward()
        else:
            (torch.ones(1, 2) @ table.T).sum().backward()
        sums.start()
        sums.finish()
        assert table.grad is not None
        found.append(table.grad.flatten().tolist())
    return found


def test_a_tied_table_that_some_stages_look_up_sparsely_is_summed_as_dense(by_rank):
    for of_rank in by_rank:
        # two ranks add 1 everywhere; look-ups add 1 to rows 0 and 2, and 2 to the row of the step's number
        assert of_rank["tied"] == [[5.0, 5.0, 2.0, 2.0, 3.0, 3.0, 2.0, 2.0], [3.0, 3.0, 4.0, 4.0, 3.0, 3.0, 2.0, 2.0]]


class Heard:
    """A recorder and a hook that keep what they are told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def begin(self, *what: Any) -> None:
        self.told.append(("begin", *map(str, what)))

    def end(self, *what: Any) -> None:
        *place, began_s, ended_s = what
        self.told.append(("end", *map(str, place)))
        assert began_s <= ended_s

    def message(self, step: int, source: int, target: int, size_bytes: int, *times_s: float) -> None:
        self.told.append(("message", step, source, target, size_bytes))

    def waited(self, step: int, what: str, *times_s: float) -> None:
        self.told.append(("waited", what))

    def step_done(self, step: int, samples: int, result: StepResult, *times_s: float) -> None:
        self.told.append(("done", step, samples, result.loss is None))

    def before_step(self, step: int) -> None:
        self.told.append(("before", step))

    def after_backward(self, step: int) -> None:
        self.told.append(("after", step))


def _heard(rank: int) -> tuple[Any, ...]:
    heard = Heard()
    stages = dropping_stages()
    engine = engine_of(rank, stages, "y", (1, 1), plain_loss, schedule="gpipe", recorder=heard, hooks=[heard])
    asked: list[Any] = []
    engine.train_step(0, reader(0, asked))
    return heard.told, asked, engine.needs, engine.wants_targets


def test_the_recorder_hears_every_action_and_each_micro_batch_is_read_once(by_rank):
    (first, read_first, needs, wants), (second, read_second, none, targets) = (r["heard"] for r in by_rank[:2])
    assert (needs, wants, none, targets) == (("x",), False, (), True)
    assert read_first == [(i, ("x",)) for i in range(MICRO_BATCHES)]
    assert read_second == [(i, ("*",)) for i in range(MICRO_BATCHES)]
    actions = [("0", "0", str(i), phase) for phase in (Phase.FORWARD, Phase.BACKWARD) for i in range(MICRO_BATCHES)]
    assert [told[1:] for told in first if told[0] == "begin"] == actions
    assert [told[1:] for told in first if told[0] == "end"] == actions
    size = BATCH // MICRO_BATCHES * 4 * 8
    assert [told for told in second if told[0] == "message"] == [("message", 0, 0, 1, size)] * MICRO_BATCHES
    assert [told for told in first if told[0] == "message"] == [("message", 0, 1, 0, size)] * MICRO_BATCHES
    assert (first[0], first[-1], second[-1]) == (("before", 0), ("done", 0, BATCH, True), ("done", 0, BATCH, False))
    waits = {told[1] for told in first if told[0] == "waited"}
    assert waits == {"receive", "send", "reduce", "data"}
    assert first.index(("after", 0)) < first.index(("waited", "reduce"))


def faults() -> dict[str, Any]:
    """Return training that goes wrong on a single rank, and what it says."""

    def fine(stage: HandMade, x: Tensor) -> tuple[Any, ...]:
        return (x @ stage.weight,)

    def breaks(stage: HandMade, x: Tensor) -> tuple[Any, ...]:
        raise ValueError("the\x1b[31m matter")

    def counts(stage: HandMade, x: Tensor) -> tuple[Any, ...]:
        return x, x

    def no_scalar(outputs: Any, columns: Any) -> Tensor:
        return outputs[0]

    def no_tensor(outputs: Any, columns: Any) -> Any:
        return 3.0

    def no_gradient(outputs: Any, columns: Any) -> Tensor:
        return columns["label"].mean()

    where = "stage 0, replica 0 (rank 0), forward of micro-batch 0 in step 4: "
    return {
        where + "ValueError: the\\x1b[31m matter": (HandMade("x", "y", breaks), plain_loss),
        where + "it gave 2 values, its plan says 1; compile the model again": (HandMade("x", "y", counts), plain_loss),
        where + "the loss gives a tensor of shape [2, 4]; it must be one number": (HandMade("x", "y", fine), no_scalar),
        where + "the loss gives a float; it must be one number": (HandMade("x", "y", fine), no_tensor),
        where + "the loss depends on no parameter": (HandMade("x", "y", fine), no_gradient),
    }


def _faulty(rank: int) -> list[str]:
    messages = []
    for stage, loss in faults().values():
        engine = engine_of(0, [stage], "y", (1,), loss)
        with pytest.raises(RunError) as caught:
            engine.train_step(4, reader(4, []))
        messages.append(str(caught.value))
    engine = engine_of(0, [HandMade("x", "y", lambda stage, x: (x @ stage.weight,))], "y", (1,), plain_loss)
    with pytest.raises(RunError) as caught:
        engine.train_step(0, lambda i, names: {"wrong": torch.zeros(2)})
    return [*messages, str(caught.value)]


def test_what_goes_wrong_names_stage_replica_micro_batch_and_step(by_rank):
    messages = by_rank[0]["faulty"]
    assert [told.startswith(expected) for told, expected in zip(messages, faults(), strict=False)] == [True] * 5
    assert messages[5].endswith("the data has no column 'x', which the model takes; it has 'wrong'")


def test_an_engine_without_a_loss_or_with_an_unknown_wire_is_refused():
    stages = dropping_stages()
    with pytest.raises(UnknownNameError, match=r"'float8'.*known.*float32.*float16.*bfloat16"):
        engine_of(0, stages, "y", (1, 1), plain_loss, wire="float8")


def test_tied_parameters_that_nobody_placed_are_refused():
    stages = dropping_stages()
    plan = replace(plan_of(stages, "y"), replicated=("weight",))
    layout = make_layout(plan, training=True, step=StepShape(schedule="gpipe"))
    with pytest.raises(RunError, match=r"'weight'.*stages.*tied=read_tied\(folder"):
        Engine(RankParts(plan, layout, 0, {0: stages[0]}, tied={}), StepOptions(loss=plain_loss))


def _changing(rank: int) -> str:
    def counts_up(stage: HandMade, x: Tensor) -> tuple[Any, ...]:
        stage.norm.running_mean.mul_(0.5).add_(1.0)
        return (x @ stage.weight,)

    engine = engine_of(rank, [HandMade("x", "y", counts_up)], "y", (2,), plain_loss)
    with pytest.raises(RunError) as caught:
        engine.train_step(0, reader(0, []))
    return str(caught.value)


def test_a_buffer_that_replicas_cannot_share_is_refused(by_rank):
    for told in (of_rank["changing"] for of_rank in by_rank[:2]):
        assert "stage 0: a forward changes the buffer 'norm.running_mean', and not as a batch norm does" in told


def _everything(rank: int) -> dict[str, Any]:
    """Run all of it in one world: to start processes takes longer than what they do."""
    return {
        "odd": _odd(rank),
        "dropping": _dropping(rank),
        "recomputing": _recomputing(rank),
        "narrow": _narrow(rank),
        "sparse": _sparse(rank),
        "tied": _tied_both_ways(rank),
        "heard": _heard(rank) if rank < 2 else None,
        "changing": _changing(rank) if rank < 2 else None,
        "faulty": _faulty(rank) if rank == 0 else None,
    }


@pytest.fixture(scope="module")
def by_rank() -> list[dict[str, Any]]:
    return run_ranks(_everything, 4)
