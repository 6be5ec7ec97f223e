"""A policy that draws a plan layer after layer, to hold against the shipped one, which draws all of it at once.

It has the shipped policy's encoder. At every layer it goes on with the stage or begins one on any type, and sees what
it chose before::

    encoded layer and type [L, T] --+
    same type as the stage's? ------+
    bytes over the link between ----+--> hidden --> go on | begin on type 1 | ... | begin on type T
    units of the type used ---------+
    length, number of stages -------+

``tools/train_on_open.py --network layerwise`` trains it, ``tools/bench_best.py --layerwise FILE`` measures it. It is no
part of the package: see docs/search.md for what came of it.

Left out: the memory of stages, which only evaluation knows.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from open_features import open_features, policy_of_more
from torch import Tensor, nn
from torch.nn import functional

from heterps_compile.cost.problem import Problem
from heterps_compile.cost.segments import crossing_bytes, problem_tables
from heterps_compile.passes.placement.learned.forward import network_input
from heterps_compile.passes.placement.learned.policy import Policy
from heterps_compile.passes.placement.local.sampling import stage_rules

STATE = 6  # numbers of a choice that hang on what was chosen before
_FORBIDDEN = -1e9


@dataclass(frozen=True, slots=True, eq=False)
class Context:
    """What a problem at a throughput is to the drawing; a plan's row says which throughput it aims at.

    Attributes:
        units: [B, L + 1, T], units busy with the layers before a position.
        limits: [T].
        talk: [B, L, T, T], of a cut before a layer from one type to another, as a feature.
        may_begin: [L].
        banned: [L, T].
        fewest, most: Stages.
    """

    units: np.ndarray
    limits: np.ndarray
    talk: np.ndarray
    may_begin: np.ndarray
    banned: np.ndarray
    fewest: int
    most: int

    @classmethod
    def of(cls, problem: Problem, throughputs: list[float]) -> "Context":
        tables, rules, batch_s = problem_tables(problem), stage_rules(problem), problem.batch / np.array(throughputs)
        busy = np.maximum(tables.compute_s * problem.alpha, tables.data_s * problem.beta)
        busy = np.where(tables.usable, busy, 0.0)
        units = np.concatenate([np.zeros((1, problem.type_count)), np.cumsum(busy, 0)]) / batch_s[:, None, None]
        price = problem.price_per_hour
        model = np.where(tables.usable, price * busy, np.inf).min(1)
        model = np.where(np.isfinite(model), model, 0.0).sum() / batch_s + 1e-12
        links = problem.link_seconds_per_byte
        if links is None:
            links = np.maximum(problem.seconds_per_byte[:, None], problem.seconds_per_byte)
        paid = links * (price[:, None] + price) * 0.5 / (batch_s * model)[:, None, None]
        talk = np.sqrt(10 * crossing_bytes(problem)[None, :-1, None, None] * paid[:, None])
        return cls(
            units,
            np.maximum(problem.max_units, 1).astype(np.float64),
            np.minimum(talk, 4).astype(np.float32),
            rules.may_begin,
            np.diff(rules.banned, axis=0) > 0,
            rules.fewest,
            rules.most,
        )


class History:
    """N plans as far as they are drawn."""

    def __init__(self, context: Context, goal: np.ndarray) -> None:
        """Take the row of every plan's throughput in the context."""
        rows, types = len(goal), len(context.limits)
        self.context, self.goal = context, goal
        self.type, self.begin = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        self.stages, self.used = np.zeros(rows, np.int64), np.zeros((rows, types))

    def state(self, layer: int) -> np.ndarray:
        """Return [N, T, STATE] for the choice at a layer."""
        context, every = self.context, np.arange(len(self.goal))
        units, types = context.units, len(context.limits)
        busy = units[self.goal, layer, self.type] - units[self.goal, self.begin, self.type]
        used = self.used.copy()
        used[every, self.type] += np.ceil(busy - 1e-9)
        state = np.zeros((len(every), types, STATE), np.float32)
        state[every, self.type, 0] = 1.0
        state[..., 1] = context.talk[self.goal, layer, self.type]
        state[..., 2] = np.minimum(used / context.limits, 2)
        state[..., 3] = np.log(np.clip(busy, 1e-3, 1e3))[:, None] / 4
        state[..., 4] = np.minimum(self.stages / context.fewest, 2)[:, None]
        state[..., 5] = np.log1p(layer - self.begin)[:, None] / 4
        if layer == 0:
            state[:] = 0.0
        return state

    def choose(self, layer: int, choice: np.ndarray) -> None:
        """Go on where the choice is T, else begin a stage on that type."""
        begins = choice < len(self.context.limits)
        row = np.flatnonzero(begins)
        if layer:
            units, goal, type_ = self.context.units, self.goal[row], self.type[row]
            busy = units[goal, layer, type_] - units[goal, self.begin[row], type_]
            self.used[row, type_] += np.ceil(busy - 1e-9)
        self.type[row], self.begin[row] = choice[row], layer
        self.stages[row] += 1

    def allowed(self, layer: int) -> np.ndarray:
        """Return [N, T + 1], what may be chosen."""
        context = self.context
        types = len(context.limits)
        allowed = np.zeros((len(self.goal), types + 1), np.bool_)
        usable = ~context.banned[layer]
        here, stays = bool(context.may_begin[layer]), usable[self.type] & (layer > 0)
        short = context.fewest - self.stages >= context.may_begin[layer:].sum()
        allowed[:, :types] = usable & (here & (self.stages < context.most))[:, None]
        allowed[:, types] = stays & ~(short & here)
        stuck = ~allowed.any(1)  # a type that cannot run the layer, where no stage may begin
        allowed[stuck, types if layer else slice(0, types)] = True
        return allowed


def choices_of(types: np.ndarray, begins: np.ndarray, type_count: int) -> np.ndarray:
    """Return [L], what led to a plan."""
    return np.where(begins, types, type_count)


class LayerwisePolicy(nn.Module):
    """See the module's docstring; begins with the weights of another policy's encoder."""

    def __init__(self, start: Policy) -> None:
        super().__init__()
        self.encoder = start
        width = start.score.in_features
        self.history = nn.Linear(STATE, width)
        self.go_on = nn.Linear(width, 1)

    def encoded(self, features: Tensor) -> Tensor:
        """Return [L, B, T, H]: what does not hang on choices."""
        along, others = self.encoder.encode(features)
        return self.encoder.keep(along) + self.encoder.compare_again(others)[:, :, None]

    def logits(self, encoded: Tensor, state: Tensor, type_: Tensor) -> Tensor:
        """Return [..., T + 1] of choices, from [..., T, H], [..., T, STATE] and [...], the type of the stage so far."""
        hidden = torch.tanh(encoded + self.history(state))
        begin = self.encoder.score(hidden)[..., 0]
        index = type_[..., None, None].expand(*type_.shape, 1, hidden.shape[-1])
        return torch.cat([begin, self.go_on(hidden.gather(-2, index)[..., 0, :])], -1)


def taught(problem: Problem, throughput: float, types: np.ndarray, begins: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return what a plan teaches: states [L, T, STATE], types of stages so far [L], choices [L], allowed [L, T + 1]."""
    history = History(Context.of(problem, [throughput]), np.zeros(1, np.int64))
    choices = choices_of(types, begins, problem.type_count)
    states, befores, alloweds = [], [], []
    for layer, choice in enumerate(choices):
        states.append(history.state(layer)[0])
        befores.append(history.type[0])
        allowed = history.allowed(layer)[0]
        allowed[choice] = True
        alloweds.append(allowed)
        history.choose(layer, choices[layer : layer + 1])
    return np.stack(states), np.array(befores), choices, np.stack(alloweds)


def surprise(policy: LayerwisePolicy, features: Tensor, lessons: list[tuple[np.ndarray, ...]]) -> Tensor:
    """Return the mean negative log-likelihood of plans; features [L, B, T, F]."""
    state, before, choice, allowed = (torch.from_numpy(np.stack(part, axis=1)) for part in zip(*lessons, strict=True))
    logits = policy.logits(policy.encoded(features), state, before)
    logits = logits.masked_fill(~allowed, _FORBIDDEN)
    return functional.cross_entropy(logits.flatten(0, 1), choice.flatten(), reduction="sum") / len(lessons)


def draw_layerwise(
    policy: LayerwisePolicy, problem: Problem, throughputs: list[float], count: int, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return types [N, L] and begins [N, L] of so many plans for each of some throughputs, drawn together."""
    goal = np.repeat(np.arange(len(throughputs)), count)
    history = History(Context.of(problem, throughputs), goal)
    with torch.no_grad():
        encoded = policy.encoded(torch.from_numpy(network_input(problem, throughputs, open_features))).numpy()
    weights = {name: weight.numpy() for name, weight in policy.state_dict().items()}
    score, go_on = ((weights[f"{name}.weight"][0], weights[f"{name}.bias"][0]) for name in ("encoder.score", "go_on"))
    types, begins = (
        np.empty((len(goal), problem.layer_count), np.int64),
        np.empty((len(goal), problem.layer_count), bool),
    )
    every = np.arange(len(goal))
    for layer in range(problem.layer_count):
        told = history.state(layer) @ weights["history.weight"].T + weights["history.bias"]
        hidden = np.tanh(encoded[layer, goal] + told)
        logits = np.concatenate(
            [hidden @ score[0] + score[1], (hidden[every, history.type] @ go_on[0] + go_on[1])[:, None]], axis=1
        )
        noisy = logits + generator.gumbel(size=logits.shape)
        choice = np.where(history.allowed(layer), noisy, -np.inf).argmax(1)
        history.choose(layer, choice)
        types[:, layer], begins[:, layer] = history.type, choice < problem.type_count
    begins[:, 0] = True
    return types, begins


def load_layerwise(path: Path) -> LayerwisePolicy:
    """Return a policy with the weights that training wrote."""
    policy = LayerwisePolicy(policy_of_more())
    with np.load(path, allow_pickle=False) as arrays:
        policy.load_state_dict({name: torch.from_numpy(arrays[name].astype(np.float32)) for name in arrays.files})
    return policy
