"""Recurrent networks.

Where PyTorch has the same layer (usual activations, no peepholes, no clipping, no lengths), that is called, with the
gates in PyTorch's order; any other is unrolled over time.

Left out: hidden sizes that differ from the weights'.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everyone calls it

from .table import op
from .traced_recurrence import layer_of

Cell = Callable[[Tensor, tuple[Tensor, ...]], tuple[Tensor, ...]]
Weights = Sequence[Tensor | None]

_ACTIVATIONS: dict[str, Callable[[Tensor, float, float], Tensor]] = {
    "relu": lambda x, a, b: torch.relu(x),
    "tanh": lambda x, a, b: torch.tanh(x),
    "sigmoid": lambda x, a, b: torch.sigmoid(x),
    "affine": lambda x, a, b: a * x + b,
    "leakyrelu": lambda x, a, b: F.leaky_relu(x, a),
    "thresholdedrelu": lambda x, a, b: F.threshold(x, a, 0.0),
    "scaledtanh": lambda x, a, b: a * torch.tanh(b * x),
    "hardsigmoid": lambda x, a, b: torch.clamp(a * x + b, 0, 1),
    "elu": lambda x, a, b: F.elu(x, a),
    "softsign": lambda x, a, b: F.softsign(x),
    "softplus": lambda x, a, b: torch.logaddexp(x, torch.zeros_like(x)),
}
_ALPHA = {"leakyrelu": 0.01, "hardsigmoid": 0.2, "elu": 1.0, "thresholdedrelu": 1.0, "affine": 1.0, "scaledtanh": 1.0}
_BETA = {"hardsigmoid": 0.5, "scaledtanh": 1.0}


class Layer:
    """Directions, lengths, layout and clipping of an RNN, GRU or LSTM."""

    def __init__(
        self, x: Tensor, direction: str, layout: int, clip: float | None, activations: Sequence[str],
        alpha: Sequence[float] | None, beta: Sequence[float] | None,
    ) -> None:  # fmt: skip
        self.x = x.transpose(0, 1) if layout else x  # (time, batch, size)
        self.layout, self.clip = layout, clip
        self.reversed = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]
        names = [name.lower() for name in activations]
        alphas, betas = list(alpha or []), list(beta or [])
        self.functions, self.unclipped = [], []
        for name in names:
            a = alphas.pop(0) if name in _ALPHA and alphas else _ALPHA.get(name, 0.0)
            b = betas.pop(0) if name in _BETA and betas else _BETA.get(name, 0.0)
            self.functions.append(self._function(name, a, b, self.clip))
            self.unclipped.append(self._function(name, a, b, None))

    @staticmethod
    def _function(name: str, a: float, b: float, limit: float | None) -> Callable[[Tensor], Tensor]:
        run = _ACTIVATIONS[name]
        if limit:
            return lambda x: run(x.clamp(-limit, limit), a, b)
        return lambda x: run(x, a, b)

    def start(self, given: Tensor | None, hidden: int) -> Tensor:
        """Return the first state, zeros if none is given."""
        if given is None:
            return self.x.new_zeros([len(self.reversed), self.x.shape[1], hidden])
        return given.transpose(0, 1) if self.layout else given

    def run(
        self, make_cell: Callable[..., Cell], weights: Weights, starts: Sequence[Tensor], lengths: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run a cell for each direction; give every step's first state and the last states."""
        steps, ends = [], []
        for i, backwards in enumerate(self.reversed):
            states = tuple(start[i] for start in starts)
            if lengths is None and isinstance(self.x.shape[0], torch.SymInt):
                y, *last = self._run_traced(i, make_cell, weights, states)
                steps.append(y.flip(0) if backwards else y)
                ends.append(tuple(last))
                continue
            cell = make_cell(i, *weights)
            made: list[Tensor] = []
            times = range(self.x.shape[0])
            for time in reversed(times) if backwards else times:
                new = cell(self.x[time], states)
                if lengths is None:
                    made.append(new[0])
                else:
                    runs = (time < lengths).unsqueeze(1)
                    made.append(torch.where(runs, new[0], torch.zeros_like(new[0])))
                    new = tuple(torch.where(runs, n, s) for n, s in zip(new, states, strict=True))
                states = new
            steps.append(torch.stack(made[::-1] if backwards else made))
            ends.append(states)
        return torch.stack(steps, 1), tuple(torch.stack(parts) for parts in zip(*ends, strict=True))

    def _run_traced(
        self, i: int, make_cell: Callable[..., Cell], weights: Weights, states: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        """Trace a loop over a free number of steps; what it reads goes in as arguments."""
        x = self.x.flip(0) if self.reversed[i] else self.x
        present = [place for place, tensor in enumerate(weights) if tensor is not None]
        limit = torch.full((), x.shape[0], dtype=torch.int64, device=x.device)

        def holds(time: Tensor, *rest: Tensor) -> Tensor:
            return time < rest[len(states) + 1]

        def run(time: Tensor, y: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
            before, (_, x, *given) = rest[: len(states)], rest[len(states) :]
            held: list[Tensor | None] = [None] * len(weights)
            for place, tensor in zip(present, given, strict=True):
                held[place] = tensor
            here = time.reshape(1)
            new = make_cell(i, *held)(x.index_select(0, here).squeeze(0), before)
            return (time + 1, y.index_copy(0, here, new[0].unsqueeze(0)), *new)

        start = (torch.zeros_like(limit), x.new_zeros([x.shape[0], *states[0].shape]), *(s.clone() for s in states))
        extra = (limit, x, *(weights[place] for place in present))
        made: tuple[Tensor, ...] = torch.ops.higher_order.while_loop(holds, run, start, extra)
        return made[1:]

    def results(self, steps: Tensor, ends: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Lay outputs out as ONNX does."""
        if not self.layout:
            return (steps, *ends)
        return (steps.permute(2, 0, 1, 3), *(end.transpose(0, 1) for end in ends))

    def steps_of(self, y: Tensor) -> Tensor:
        """Return (time, directions, batch, hidden) of what PyTorch's layers give."""
        count = len(self.reversed)
        return y.reshape(y.shape[0], y.shape[1], count, y.shape[2] // count).permute(0, 2, 1, 3)


def _parameters(w: Tensor, r: Tensor, b: Tensor | None, order: Sequence[int]) -> list[Tensor]:
    """Return the weights of PyTorch's layers, gates reordered."""
    hidden = r.shape[2]

    def gates(part: Tensor) -> Tensor:
        if list(order) == sorted(order):
            return part
        pieces = [part[i * hidden : (i + 1) * hidden] for i in order]
        return torch.cat(pieces)

    made = []
    for i in range(w.shape[0]):
        made += [gates(w[i]), gates(r[i])]
        if b is not None:
            half = b.shape[1] // 2
            made += [gates(b[i, :half]), gates(b[i, half:])]
    return made


def _is_plain(layer: Layer, names: Sequence[str], usual: Sequence[str], lengths: Tensor | None) -> bool:
    expected = list(usual) * len(layer.reversed)
    is_forward = not layer.reversed[0]
    return [n.lower() for n in names] == expected and is_forward and lengths is None and not layer.clip


def _biases(b: Tensor | None, i: int, w: Tensor) -> tuple[Tensor, Tensor]:
    size = w.shape[1]
    return (w.new_zeros(size), w.new_zeros(size)) if b is None else (b[i, :size], b[i, size:])


@op("RNN", 7)
def rnn(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    lengths: Tensor | None = None,
    start: Tensor | None = None,
    *,
    activation_alpha: list[float] | None = None,
    activation_beta: list[float] | None = None,
    activations: list[str] | None = None,
    clip: float | None = None,
    direction: str,
    hidden_size: int | None = None,
    layout: int = 0,
) -> tuple[Tensor, ...]:
    names = activations or ["Tanh"] * w.shape[0]
    layer = Layer(x, direction, layout, clip, names, activation_alpha, activation_beta)
    first = layer.start(start, r.shape[2])
    for kind in ("tanh", "relu"):
        if _is_plain(layer, names, [kind], lengths):
            weights = _parameters(w, r, b, [0])
            y, end = layer_of(f"rnn_{kind}", layer.x)(
                layer.x, first, weights, b is not None, 1, 0.0, False, w.shape[0] == 2, False
            )
            return layer.results(layer.steps_of(y), [end])

    def cell(i: int, w: Tensor, r: Tensor, b: Tensor | None) -> Cell:
        bias_w, bias_r = _biases(b, i, w)

        def step(x: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return (layer.functions[i](F.linear(x, w[i], bias_w) + F.linear(states[0], r[i], bias_r)),)

        return step

    return layer.results(*layer.run(cell, [w, r, b], [first], lengths))


@op("GRU", 7)
def gru(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    lengths: Tensor | None = None,
    start: Tensor | None = None,
    *,
    activation_alpha: list[float] | None = None,
    activation_beta: list[float] | None = None,
    activations: list[str] | None = None,
    clip: float | None = None,
    direction: str,
    hidden_size: int | None = None,
    layout: int = 0,
    linear_before_reset: int,
) -> tuple[Tensor, ...]:
    names = activations or ["Sigmoid", "Tanh"] * w.shape[0]
    layer = Layer(x, direction, layout, clip, names, activation_alpha, activation_beta)
    first = layer.start(start, r.shape[2])
    if linear_before_reset and _is_plain(layer, names, ["sigmoid", "tanh"], lengths):
        weights = _parameters(w, r, b, [1, 0, 2])
        y, end = layer_of("gru", layer.x)(layer.x, first, weights, b is not None, 1, 0.0, False, w.shape[0] == 2, False)
        return layer.results(layer.steps_of(y), [end])

    def cell(i: int, w: Tensor, r: Tensor, b: Tensor | None) -> Cell:
        bias_w, bias_r = _biases(b, i, w)
        hidden = r.shape[2]
        gate, candidate = layer.functions[2 * i], layer.functions[2 * i + 1]

        def step(x: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            (h,) = states
            of_x = F.linear(x, w[i], bias_w)
            of_h = F.linear(h, r[i, : 2 * hidden], bias_r[: 2 * hidden])
            update, reset = gate(of_x[:, : 2 * hidden] + of_h).chunk(2, 1)
            last, bias = r[i, 2 * hidden :], bias_r[2 * hidden :]
            recurrent = reset * F.linear(h, last, bias) if linear_before_reset else F.linear(reset * h, last, bias)
            new = candidate(of_x[:, 2 * hidden :] + recurrent)
            return ((1 - update) * new + update * h,)

        return step

    return layer.results(*layer.run(cell, [w, r, b], [first], lengths))


@op("LSTM", 7)
def lstm(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    lengths: Tensor | None = None,
    start_h: Tensor | None = None,
    start_c: Tensor | None = None,
    peepholes: Tensor | None = None,
    *,
    activation_alpha: list[float] | None = None,
    activation_beta: list[float] | None = None,
    activations: list[str] | None = None,
    clip: float | None = None,
    direction: str,
    hidden_size: int | None = None,
    input_forget: int,
    layout: int = 0,
) -> tuple[Tensor, ...]:
    names = activations or ["Sigmoid", "Tanh", "Tanh"] * w.shape[0]
    layer = Layer(x, direction, layout, clip, names, activation_alpha, activation_beta)
    return run_lstm(layer, names, [w, r, b, lengths, start_h, start_c, peepholes], input_forget)


def run_lstm(
    layer: Layer, names: Sequence[str], inputs: Sequence[Any], input_forget: int,
    rounded: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Run an LSTM on all inputs but x; round the states that weights multiply."""
    w, r, b, lengths, start_h, start_c, peepholes = inputs
    hidden = r.shape[2]
    first = [layer.start(start_h, hidden), layer.start(start_c, hidden)]
    usual = ["sigmoid", "tanh", "tanh"]
    if peepholes is None and not (input_forget or rounded) and _is_plain(layer, names, usual, lengths):
        weights = _parameters(w, r, b, [0, 2, 3, 1])
        y, h, c = layer_of("lstm", layer.x)(
            layer.x, first, weights, b is not None, 1, 0.0, False, w.shape[0] == 2, False
        )
        return layer.results(layer.steps_of(y), [h, c])

    def cell(i: int, w: Tensor, r: Tensor, b: Tensor | None, peepholes: Tensor | None) -> Cell:
        bias_w, bias_r = _biases(b, i, w)
        gate, candidate = layer.functions[3 * i : 3 * i + 2]
        out = layer.unclipped[3 * i + 2]  # as in ONNX Runtime, which clips what goes into gates alone
        look_i, look_o, look_f = (0, 0, 0) if peepholes is None else peepholes[i].chunk(3)

        def step(x: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            h, c = states
            seen = rounded(h) if rounded else h
            ins, outs, forgets, cells = (F.linear(x, w[i], bias_w) + F.linear(seen, r[i], bias_r)).chunk(4, 1)
            enter = gate(ins + look_i * c)
            forget = 1 - enter if input_forget else gate(forgets + look_f * c)
            new_c = forget * c + enter * candidate(cells)
            new_h = gate(outs + look_o * new_c) * out(new_c)
            return new_h, new_c

        return step

    return layer.results(*layer.run(cell, [w, r, b, peepholes], first, lengths))
