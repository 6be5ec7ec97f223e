r"""``shadow``: every replica steps on its own gradients, and a thread beside it brings their weights together.

Zheng et al., "ShadowSync: Performing Synchronization in the Background for Highly Scalable Distributed Training", arXiv
2003.03477. The thread has a process group of its own. Every so many steps it is handed a copy of the weights, unless it
still works on the one before, which then comes as soon as it is done::

    training   | step | step | copy | step | step | step | + move | step | ...
    thread     |             `------> sum over replicas ---'

What it finds is a move of the weights, ``pull (target - copy)``, which is added between two steps: no step waits for
it, and none that was made meanwhile is lost. With m the mean of the replicas' copies, weighted by their shares of the
micro-batches (``contract.py``), and N replicas::

    average    target m, pull 1
    easgd      target c, pull 0.9 / N;   the centre c <- c + 0.9 (m - c)         Zhang et al., arXiv 1412.6651
    bmuf       target W, pull 1;         W <- W + v,  v <- (1 - 1/N) v + m - W    Chen and Huo, ICASSP 2016

Before a validation or a checkpoint, and at the end, all threads come to rest: there replicas wait for each other. Both
are of the mean of the weights. What a move is added to depends on when it comes, so that two runs differ.

The losses of steps are summed beside them too (``pipeline/batch_loss.py``).

Left out: running statistics, weights of samples (``sample_weight()``) and the skipped steps of float16, for which
replicas wait for each other in every step whatever the rule; a limit on how far replicas may be apart, of which the gap
between them is told instead.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from heterps_compile.errors import InputError, RunError
from heterps_compile.sync_rules import shadow as rules
from heterps_compile.sync_rules.rule import SyncRule

from .capabilities import SHADOW, Capabilities
from .collective import Collective
from .contract import WEIGHT, Flat, Rule, Shared, flats_of, put, put_own, refuse_residuals

_ELASTICITY = 0.9
CENTRE, VELOCITY = "centre", "velocity"


class Shadow(Rule):
    """Steps alone, and averages weights beside the training."""

    can: ClassVar[Capabilities] = SHADOW

    def __init__(self, shared: Shared, asked: SyncRule) -> None:
        assert isinstance(asked, rules.Shadow)  # noqa: S101 - of that name
        super().__init__(shared, asked)
        self._asked = asked
        assert shared.more_groups is not None, "a thread has a group of its own"  # noqa: S101
        self._group, self._control = shared.more_groups()
        self._moves = Moves(asked.rule, shared)
        self._changed = threading.Condition()
        self._is_due = self._is_resting = self._is_stopping = False
        self._copy: list[Flat] | None = None
        self._move: list[Tensor] | None = None
        self._fault: BaseException | None = None
        self._thread: threading.Thread | None = None

    def after_backward(self, flats: Sequence[Flat], scale: float) -> None:
        """Make means over the samples of this rank of its gradients; scaled ones stay scaled."""
        for flat in flats:
            flat.tensor.div_(self.shared.share)

    def before_step(self, step: int) -> None:
        """Start the thread before the first step."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"shadow of {self.shared.where}", daemon=True)
            self._thread.start()

    def after_step(self, step: int, *, is_skipped: bool) -> None:
        """Add the last move; hand over a copy where due."""
        self._is_due |= (step + 1) % self._asked.every == 0
        with self._changed:
            self._raise_fault()
            self._add_move()
            if self._is_due and self._copy is None:
                self._is_due = False
                self._copy = flats_of(self.shared.parameters)
                self._changed.notify_all()

    def gap(self) -> float | None:
        """Return how far replicas were apart when they were last looked at; None where they were not."""
        return self._moves.gap

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """Let replicas hold the mean of their weights while a block runs."""
        self._rest()
        own = flats_of(self.shared.parameters)
        put(self.shared.parameters, self._moves.mean_of(flats_of(self.shared.parameters), self.shared.group))
        try:
            yield
        finally:
            put(self.shared.parameters, own)

    def close(self) -> None:
        """End the thread, once those of all replicas are at rest."""
        self._is_stopping = True
        self._rest()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def state(self) -> dict[str, Tensor]:
        """Return this rank's weights and the state of moves."""
        self._rest()
        own = {f"{WEIGHT}:{name}": p.detach().clone() for name, p in self.shared.parameters.items()}
        return own | self._moves.state()

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on with the weights of this rank, where the checkpoint has them."""
        refuse_residuals(self.asked.name, self.shared.where, state)
        put_own(self.shared.parameters, state)
        self._moves.load_state(state)

    def _rest(self) -> None:
        """Wait until the threads of all replicas are at rest, and add what they have found."""
        if self._thread is None:
            return
        with self._changed:
            self._is_resting = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._is_resting or self._fault is not None)
            self._raise_fault()

    def _add_move(self) -> None:
        if self._move is not None:
            now = flats_of(self.shared.parameters)
            for flat, move in zip(now, self._move, strict=True):
                flat.tensor.add_(move)
            put(self.shared.parameters, now)
            self._move = None

    def _raise_fault(self) -> None:
        if self._fault is not None:
            raise RunError(f"replicas of {self.shared.where} do not agree any more: {self._fault}") from self._fault

    def _run(self) -> None:
        """Be the thread."""
        try:
            while self._round():
                pass
        except BaseException as error:  # noqa: BLE001 - told by the training at its next step
            with self._changed:
                self._fault = error
                self._changed.notify_all()

    def _round(self) -> bool:
        """Take part in one sum, or come to rest where all replicas want to; return whether the thread goes on.

        A replica that wants to rest takes part with the weights that it waits with, until all others want to as well.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._copy is not None or self._is_resting)
            rests = self._is_resting
            if rests:
                self._add_move()
                self._copy = flats_of(self.shared.parameters)
            assert self._copy is not None  # noqa: S101 - awaited
            copy = self._copy
        resting = torch.tensor([int(rests)])
        self._control.sum(resting).wait()
        if int(resting) == self.shared.count:
            with self._changed:
                self._copy, self._is_resting = None, False
                self._changed.notify_all()
                return not self._is_stopping
        move = self._moves.of(copy, self._group, self._control)
        with self._changed:
            self._move, self._copy = move, None
            self._changed.notify_all()
        return True


@dataclass(frozen=True, slots=True)
class BlockMomentum:
    """BMUF: the global model, which goes on in the direction of the last blocks.

    Attributes:
        weights: The global model.
        velocity: Its last move.
    """

    weights: Tensor
    velocity: Tensor

    @classmethod
    def beginning(cls, weights: Tensor) -> "BlockMomentum":
        """Return the state before the first block."""
        return cls(weights.clone(), torch.zeros_like(weights))

    def after_block(self, mean: Tensor, momentum: float, rate: float = 1.0) -> "BlockMomentum":
        """Return the state after a block at whose end the replicas' mean was ``mean``.

        With momentum 0 and rate 1 the global model is the mean. Where every block moves the mean by d from the global
        model, the latter moves by ``rate d / (1 - momentum)`` in the end: with a momentum of ``1 - 1 / replicas``, the
        usual choice, by the sum of the replicas' moves.

        Raises:
            InputError: The momentum is not at least 0 and below 1, or the rate not above 0.
        """
        if not 0 <= momentum < 1 or not rate > 0:
            raise InputError(
                f"block momentum needs a momentum from 0 to below 1 and a rate above 0, not {momentum:g} and {rate:g}"
            )
        velocity = momentum * self.velocity + rate * (mean - self.weights)
        return BlockMomentum(self.weights + velocity, velocity)


class Moves:
    """Moves of a replica's weights, one a sum.

    Attributes:
        gap: Root mean square distance of replicas from their mean, over the length of the mean, as last seen.
    """

    def __init__(self, rule: str, shared: Shared) -> None:
        self.gap: float | None = None
        self._rule, self._shared = rule, shared
        self._known: dict[str, Tensor] = {}
        self._blocks: list[BlockMomentum] | None = None

    def mean_of(self, copy: Sequence[Flat], group: Collective) -> list[Flat]:
        """Return the mean of the replicas' copies; they are used up."""
        works = [group.sum(flat.tensor.mul_(self._shared.share)) for flat in copy]
        for work in works:
            work.wait()
        return list(copy)

    def of(self, copy: Sequence[Flat], group: Collective, control: Collective) -> list[Tensor]:
        """Return the move of this replica, whose weights are a copy."""
        own = [flat.tensor.clone() for flat in copy]
        means = self.mean_of(copy, group)
        self.gap = self._gap(own, means, control)
        if self._rule == "average":
            return [mean.tensor - mine for mean, mine in zip(means, own, strict=True)]
        if self._blocks is None:
            self._blocks = self._beginning(means)
        if self._rule == "bmuf":
            momentum = 1 - 1 / self._shared.count
            pairs = zip(self._blocks, means, strict=True)
            self._blocks = [block.after_block(mean.tensor, momentum) for block, mean in pairs]
            return [block.weights - mine for block, mine in zip(self._blocks, own, strict=True)]
        pull = _ELASTICITY / self._shared.count
        moves = [pull * (block.weights - mine) for block, mine in zip(self._blocks, own, strict=True)]
        for block, mean in zip(self._blocks, means, strict=True):
            block.weights.add_(mean.tensor - block.weights, alpha=_ELASTICITY)
        return moves

    def _beginning(self, means: Sequence[Flat]) -> list[BlockMomentum]:
        """Begin at the checkpoint or at the mean."""
        found = []
        for mean in means:
            of_kind = {
                kind: {name: self._known[f"{kind}:{name}"] for name in mean.names if f"{kind}:{name}" in self._known}
                for kind in (CENTRE, VELOCITY)
            }
            centre = mean.of(of_kind[CENTRE]) if of_kind[CENTRE] else mean.tensor.clone()
            found.append(BlockMomentum(centre, mean.of(of_kind[VELOCITY])))
        self._known = {}
        return found

    def _gap(self, own: Sequence[Tensor], means: Sequence[Flat], control: Collective) -> float:
        square = sum(float((mine - mean.tensor).double().square().sum()) for mine, mean in zip(own, means, strict=True))
        length = sum(float(mean.tensor.double().square().sum()) for mean in means)
        total = torch.tensor([square / self._shared.count], dtype=torch.float64)
        control.sum(total).wait()
        return float(total.sqrt()) / length**0.5 if length > 0 else 0.0

    def state(self) -> dict[str, Tensor]:
        """Return the state of moves by kind and name."""
        found: dict[str, Tensor] = dict(self._known)
        for flat, block in zip(flats_of(self._shared.parameters), self._blocks or (), strict=bool(self._blocks)):
            found |= {f"{CENTRE}:{name}": part.clone() for name, part in flat.by_name(block.weights).items()}
            if self._rule == "bmuf":
                found |= {f"{VELOCITY}:{name}": part.clone() for name, part in flat.by_name(block.velocity).items()}
        return found

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take that back before the first step."""
        self._known = {key: tensor for key, tensor in state.items() if key.partition(":")[0] in (CENTRE, VELOCITY)}
