"""Zero-bubble trains to the very bits of 1F1B, and of a plain loop, whatever the stages are."""

from collections.abc import Callable
from types import MappingProxyType
from typing import Any
from weakref import finalize

import torch
from hand_made import MICRO_BATCHES, engine_of, reader
from ranks import run_ranks
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional

from heterps_compile.runtime.pipeline.split_backward import backward_of_inputs

STEPS, WIDTH = 2, 4


class _Kept(list[Tensor]):
    """What autograd keeps of a forward, so that it is known when it lets go."""


class Net(nn.Module):
    """A stage of several modules, whose random weights are the same on every rank."""

    def __init__(self, inputs: str, outputs: str, function: Callable[..., tuple[Any, ...]], **parts: Any) -> None:
        super().__init__()
        self.inputs, self.outputs, self.function = tuple(inputs.split()), tuple(outputs.split()), function
        for number, (name, make) in enumerate(parts.items()):
            torch.manual_seed(number)
            setattr(self, name, make())

    def forward(self, *values: Any) -> tuple[Any, ...]:
        return self.function(self, *values)


def linear() -> nn.Module:
    return nn.Linear(WIDTH, WIDTH)


def vector() -> nn.Parameter:
    return nn.Parameter(torch.randn(WIDTH))


def like_the_batch() -> nn.Parameter:
    return nn.Parameter(torch.randn(2, WIDTH))


def table(**options: Any) -> Callable[[], nn.Module]:
    return lambda: nn.Embedding(4, WIDTH, **options)


def first() -> Net:
    return Net("x", "a", lambda net, x: (net.linear(x),), linear=linear)


def last(inputs: str = "b", function: Callable[..., Tensor] = lambda b: b) -> Net:
    """Return the last stage: a Linear of a function of what enters."""
    return Net(inputs, "y", lambda net, *values: (net.linear(function(*values)),), linear=linear)


def between(function: Callable[..., tuple[Any, ...]], inputs: str = "a", **parts: Any) -> Callable[[], list[Net]]:
    """Return what makes three stages of which the one in the middle is of these parts."""
    return lambda: [first(), Net(inputs, "b", function, **parts), last()]


def _conv(net: Any, a: Tensor) -> tuple[Any, ...]:
    image = net.conv(a.view(2, 1, 2, 2))
    return (functional.relu(net.norm(image)).mean(1).reshape(2, WIDTH),)


def _drops(net: Any, a: Tensor) -> tuple[Any, ...]:
    return (functional.dropout(net.norm(net.linear(a)), 0.5),)


def _many_uses(net: Any, a: Tensor) -> tuple[Any, ...]:
    for _ in range(5):
        a = torch.tanh(net.linear(a))
    return (a,)


def _twice(net: Any, a: Tensor) -> tuple[Any, ...]:
    """Use a weight in two places, of which each has a bias of its own."""
    made = torch.tanh(net.linear(a))
    return (functional.linear(made, net.linear.weight, net.alone),)


def _views(net: Any, a: Tensor) -> tuple[Any, ...]:
    return (net.linear(a).view(2, 2, 2).transpose(1, 2).expand(2, 2, 2).flatten(1).view(2, WIDTH),)


def _with_sum(net: Any, a: Tensor) -> tuple[Any, ...]:
    """Give a result to which weights lead around what entered: one alone, one besides a way through it."""
    return a @ net.linear.weight, net.linear.weight.sum(0) * net.alone.exp()


def _looks_up(net: Any, *values: Tensor) -> tuple[Any, ...]:
    return (net.table(values[-1]),)


NETS: dict[str, Callable[[], list[Net]]] = {
    "linear, norm, dropout": between(_drops, linear=linear, norm=lambda: nn.LayerNorm(WIDTH)),
    "convolution": between(_conv, conv=lambda: nn.Conv2d(1, 3, 3, padding=1), norm=lambda: nn.BatchNorm2d(3)),
    "transformer": between(
        lambda net, a: (net.block(a.unsqueeze(0))[0],),
        block=lambda: nn.TransformerEncoderLayer(WIDTH, 2, 8, dropout=0.0, batch_first=True),
    ),
    "tied head": between(lambda net, a, ids: ((a + net.table(ids)) @ net.table.weight,), "a ids", table=table()),
    "sparse table": between(lambda net, a, ids: (a * net.table(ids),), "a ids", table=table(sparse=True)),
    "nothing entered": lambda: [first(), Net("ids", "b", _looks_up, table=table()), last("a b", torch.add)],
    "unused": between(_looks_up, "a ids", table=table()),
    "a weight five times": between(_many_uses, linear=linear),
    "a weight and two biases": between(_twice, linear=linear, alone=vector),
    "equal gradients": between(lambda net, a: (a + net.one + net.other,), one=like_the_batch, other=like_the_batch),
    "around": lambda: [first(), Net("a", "b c", _with_sum, linear=linear, alone=vector), last("b c", torch.mul)],
    "views": between(_views, linear=linear),
    "skip": lambda: [first(), Net("a", "b", _many_uses, linear=linear), last("a b", torch.add)],
}


def loss(outputs: list[Any], columns: dict[str, Tensor]) -> Tensor:
    return (outputs[0].sum(1) - columns["label"]).square().mean()


def trained(rank: int, name: str, **options: Any) -> dict[str, list[float]] | None:
    """Train a pipeline some steps; return the state of this rank's stage."""
    stages: list[Any] = list(NETS[name]())
    widths = options.pop("widths", (1, 1, 1))
    if rank >= sum(widths):
        return None
    engine = engine_of(rank, stages, "y", widths, loss, **options)
    own = next(iter(engine._stages))
    optimizer = torch.optim.SGD(stages[own].parameters(), lr=0.01)
    for step in range(STEPS):
        engine.train_step(step, reader(step, []))
        optimizer.step()
    engine.finish()
    return {f"{own}.{key}": tensor.flatten().tolist() for key, tensor in stages[own].state_dict().items()}


OPTIONS = MappingProxyType({
    "plain": {},
    "bf16": {"precision": "bf16"},
    "clipped": {"clip_norm": 0.01},
    "replicas": {"widths": (1, 2, 1)},
    "first replicas": {"widths": (2, 1, 1)},
})  # fmt: skip


def _runs(rank: int) -> dict[str, Any]:
    names = [(name, "plain") for name in NETS] + [("transformer", key) for key in OPTIONS if key != "plain"]
    runs = {
        f"{name}, {key}": [trained(rank, name, schedule=each, **OPTIONS[key]) for each in ("1f1b", "zero-bubble")]
        for name, key in names
    }
    alone = [name for name in NETS if "dropout" not in name] if rank == 0 else []
    return {"runs": runs, "by hand": {name: by_hand(name) for name in alone}}


def test_zero_bubble_trains_to_the_very_bits_of_1f1b_and_of_a_plain_loop():
    by_rank = run_ranks(_runs, 4)
    assert not {key for of_rank in by_rank for key, (one, other) in of_rank["runs"].items() if one != other}
    for name, state in by_rank[0]["by hand"].items():
        pieces = [of_rank["runs"][f"{name}, plain"][1] for of_rank in by_rank[:3]]
        assert {key: value for piece in pieces for key, value in piece.items()} == state, name


def by_hand(name: str) -> dict[str, list[float]]:
    """Train the same stages in this process, one after the other, micro-batches in order."""
    stages = NETS[name]()
    optimizer = torch.optim.SGD([p for stage in stages for p in stage.parameters()], lr=0.01)
    for step in range(STEPS):
        optimizer.zero_grad()
        for i in range(MICRO_BATCHES):
            values = dict(reader(step, [])(i, ("*",)))
            for stage in stages:
                values |= zip(stage.outputs, stage(*(values[key] for key in stage.inputs)), strict=True)
            (loss([values["y"]], values) / MICRO_BATCHES).backward()
        optimizer.step()
    return {
        f"{index}.{key}": tensor.flatten().tolist()
        for index, stage in enumerate(stages)
        for key, tensor in stage.state_dict().items()
    }


def test_activations_are_held_until_the_gradients_of_weights():
    """Of two layers the second part needs what entered each; all of it is let go with the last reference."""
    left: list[int] = []

    def keep(tensor: Tensor) -> _Kept:
        kept = _Kept([tensor.detach()])
        left.append(id(kept))
        finalize(kept, left.remove, id(kept))
        return kept

    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    entered = torch.randn(2, 4, requires_grad=True)
    with saved_tensors_hooks(keep, lambda kept: kept[0]):
        made = net(entered)
    of_forward = len(left)
    late = backward_of_inputs([made], [torch.ones_like(made)], [entered])
    assert len(left) == of_forward
    del made
    late.backward()
    assert len(left) == of_forward
    del late
    assert not left
