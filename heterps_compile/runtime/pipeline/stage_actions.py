"""The forwards and backwards of one stage on one rank: what they receive, what they run, what they send.

::

    forward of a micro-batch                        backward of it
      receive from the stages before                  receive gradients from the stages after
      run the stage (and the loss, at the last)       run autograd
      send to the stages after                        send gradients to the stages before

Where the schedule has gradients of weights in actions of their own, the backward computes those of what it received
alone (``split_backward.py``), and keeps what the others need.

Which value comes from where is the same in every step, so it is worked out once; in a step, values have places instead
of names. A micro-batch runs in a piece of the autograd graph of its own: what enters are leaves, which collect the
gradients that go back.

Left out: the order of actions (``engine.py``), how messages travel (``exchange.py``).
"""

import hashlib
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from heterps_compile.errors import RunError
from heterps_compile.escape import printable
from heterps_compile.runtime.signature import Signature
from heterps_compile.schedule.order import Phase

from .autocast import Autocast
from .batch_loss import BatchLoss
from .exchange import Exchange, Receive, Send
from .rank_parts import ReadMicroBatch
from .read_stage import RunnableStage
from .recorder import Recorder, listener

if TYPE_CHECKING:
    from .loss_scale import LossScale
    from .running_statistics import RunningStatistics
    from .split_backward import LateWeights

_FORWARD, _BACKWARD, _WEIGHT = Phase.FORWARD, Phase.BACKWARD, Phase.WEIGHT
_Pick = Callable[[Sequence[Any]], Sequence[Any]]


class MicroBatchData:
    """The data of a step's micro-batches: each is read once, and dropped after its last reader on this rank."""

    def __init__(self, wanted: Sequence[str], readers: int, device: torch.device) -> None:
        """Prepare.

        Args:
            wanted: Names to read.
            readers: Stages of this rank that read them.
            device: Where they are put.
        """
        self._wanted, self._readers, self._device = tuple(wanted), readers, device
        self._is_on_cpu = device.type == "cpu"
        self._is_as_read = self._is_on_cpu and readers == 1
        self._held: dict[int, tuple[Mapping[str, Any], int]] = {}

    def peek(self, micro_batch: int, read: ReadMicroBatch) -> Mapping[str, Any]:
        """Return the data of a micro-batch, which its readers get later."""
        found = read(micro_batch, self._wanted)
        data = found if self._is_on_cpu else self._on_device(found)
        self._held[micro_batch] = (data, self._readers)
        return data

    def take(self, micro_batch: int, read: ReadMicroBatch) -> Mapping[str, Any]:
        """Return the data of a micro-batch to one of its readers."""
        if self._is_as_read and not self._held:
            return read(micro_batch, self._wanted)
        data, left = self._held.pop(micro_batch, (None, self._readers))
        if data is None:
            found = read(micro_batch, self._wanted)
            data = found if self._is_on_cpu else self._on_device(found)
        if left > 1:
            self._held[micro_batch] = (data, left - 1)
        return data

    def _on_device(self, found: Mapping[str, Any]) -> dict[str, Any]:
        return {name: v.to(self._device) if isinstance(v, Tensor) else v for name, v in found.items()}


@dataclass(frozen=True, slots=True)
class Setting:
    """What all stages of a rank have in common.

    Attributes:
        exchange: The messages of the rank.
        data: Of the micro-batches.
        micro_batches: In a step.
        signature: What makes of graph outputs what the model returns.
        outputs: Names of the graph outputs.
        loss: Of the batch; None in inference, and where it is not computed.
        seed: Of random ops.
        device: Where the rank computes.
        recorder: Is told what happens.
        autocast: The precision of the forwards.
        loss_scale: Of the losses; None where they are not scaled.
    """

    exchange: Exchange
    data: MicroBatchData
    micro_batches: int
    signature: Signature
    outputs: tuple[str, ...]
    loss: BatchLoss | None
    seed: int
    device: torch.device
    recorder: Recorder
    autocast: Autocast
    loss_scale: "LossScale | None" = None


@dataclass(frozen=True, slots=True)
class _Messages:
    """The messages of one micro-batch.

    Attributes:
        values_in: What waits for the values of every route before, and how many there are.
        values_out: What sends the values of every route after, their names, and what picks them of those made.
        gradients_in: What waits for gradients of them.
        gradients_out: What sends gradients of the values of every route before, and the names of these.
    """

    values_in: Sequence[tuple[Receive, int]]
    values_out: Sequence[tuple[Send, Sequence[str], _Pick]]
    gradients_in: Sequence[tuple[Receive, _Pick]]
    gradients_out: Sequence[tuple[Send, Sequence[str]]]


_Forward = tuple[list[list[Any]], Sequence[Any], Tensor | None]
"""What a forward leaves: the leaves that came along every route, what it made, its loss if it has one.

Of what a stage made that recomputes, the places in autograd's graph are left, not the values.
"""

Recompute = Callable[..., tuple[Any, ...]]
"""Runs a stage so that its backward runs it again (``backends.contract.Backend.recomputing``)."""


class StageActions:
    """The actions of one stage on one rank.

    Attributes:
        index: Of the stage.
        is_last: Whether it is the last one.
    """

    def __init__(
        self,
        index: int,
        stage: RunnableStage,
        setting: Setting,
        *,
        reads: Sequence[str],
        is_last: bool,
        statistics: "RunningStatistics | None",
        recompute: Recompute | None = None,
        splits: bool = False,
    ) -> None:
        """Work out what goes where.

        Args:
            index: Of the stage.
            stage: What runs.
            setting: What it has in common with others.
            reads: The graph inputs that it takes, or gives as graph outputs.
            is_last: Whether graph outputs, and the loss, are its.
            statistics: Its running statistics, where they are shared.
            recompute: Runs it so that its backward runs it again; None where it keeps its activations.
            splits: Whether the gradients of its weights are actions of their own.
        """
        self.index, self._stage, self._setting = index, stage, setting
        self._run = _run_alone if statistics is None else statistics.run
        self._begin, self._end = listener(setting.recorder, "begin"), listener(setting.recorder, "end")
        self._waited = listener(setting.recorder, "waited")
        self._call: Callable[..., Sequence[Any]] = stage if recompute is None else recompute
        self._keeps_outputs = recompute is None or is_last
        self._reads, self.is_last = tuple(reads), is_last
        self._reads_data = bool(reads) or (is_last and setting.loss is not None)
        self._take_data = setting.data.take
        self._autocast, self._entering = setting.autocast.context, setting.autocast.entering
        self._kept: dict[int, _Forward] = {}
        self._split: Callable[..., LateWeights] | None = None
        self._late: dict[int, LateWeights] = {}
        if splits:
            from .split_backward import backward_of_inputs  # noqa: PLC0415 - under few schedules

            self._split = backward_of_inputs
        before, after = setting.exchange.into[index], setting.exchange.out_of[index]
        arriving = [*self._reads, *(name for route in before for name in route.values)]
        self._take = _picker(arriving, stage.inputs)
        self._give_outputs = _picker([*arriving, *stage.outputs], setting.outputs) if is_last else None
        gives = [_picker(stage.outputs, route.values) for route in after]
        receive, send = setting.exchange.receive, setting.exchange.send
        self._messages = [
            _Messages(
                [(receive(route, i, _FORWARD), len(route.values)) for route in before],
                [(send(r, i, _FORWARD), r.values, give) for r, give in zip(after, gives, strict=True)],
                [(receive(r, i, _BACKWARD), give) for r, give in zip(after, gives, strict=True)],
                [(send(route, i, _BACKWARD), route.values) for route in before],
            )
            for i in range(setting.micro_batches)
        ]

    def infer(self, step: int, micro_batch: int, read: ReadMicroBatch) -> dict[str, Any]:
        """Run the forward of a micro-batch and send what it makes; the last stage gives the graph outputs."""
        _, made, _ = self._forward(step, micro_batch, read)
        return dict(zip(self._setting.outputs, made, strict=True)) if self.is_last else {}

    def forward(self, step: int, micro_batch: int, read: ReadMicroBatch) -> None:
        """Run the forward of a micro-batch, send what it makes and keep it for the backward."""
        arrived, made, loss = self._forward(step, micro_batch, read)
        if not self._keeps_outputs:
            made = [_edge(value) for value in made]
        self._kept[micro_batch] = arrived, made, loss

    def _forward(self, step: int, micro_batch: int, read: ReadMicroBatch) -> _Forward:
        messages, data = self._messages[micro_batch], None
        values: list[Any] = []
        if self._reads_data:
            began_s = perf_counter()
            data = self._take_data(micro_batch, read)
            if self._waited is not None:
                self._waited(step, "data", began_s, perf_counter())
            if self._reads:
                values += _columns(data, self._reads)
        arrived = []
        for receive, count in messages.values_in:
            received = receive(step, count)
            arrived.append(received)
            values += self._entering(received)
        if self._begin is not None:
            self._begin(step, self.index, micro_batch, _FORWARD)
        began_s = perf_counter()
        _seed_forward(self._setting.seed, step, micro_batch, self.index, self._setting.device)
        loss = None
        with self._autocast():
            made = self._run(micro_batch, partial(self._call, *self._take(values)))
            if len(made) != len(self._stage.outputs):
                said = len(self._stage.outputs)
                raise RunError(f"it gave {len(made)} values, its plan says {said}; compile the model again")
            if self._give_outputs is not None:
                made = self._give_outputs([*values, *made])
                loss = self._loss_of(micro_batch, made, data)
        if self._end is not None:
            self._end(step, self.index, micro_batch, _FORWARD, began_s, perf_counter())
        for send, names, give in messages.values_out:
            send(names, give(made))
        return arrived, made, loss

    def _loss_of(self, micro_batch: int, outputs: Sequence[Any], data: Mapping[str, Any] | None) -> Tensor | None:
        setting = self._setting
        if setting.loss is None or data is None:
            return None
        result = setting.signature.assemble(dict(zip(setting.outputs, outputs, strict=True)))
        return setting.loss.of(micro_batch, result, data)

    def backward(self, step: int, micro_batch: int) -> None:
        """Run the backward of a micro-batch and send the gradients of what it received.

        Gradients gather in the parameters; a step's loss is the mean over its batch.
        """
        messages = self._messages[micro_batch]
        arrived, made, loss = self._kept.pop(micro_batch)
        roots: list[Tensor | GradientEdge] = []
        seeds: list[Tensor] = []
        for receive, give in messages.gradients_in:
            sent = [value for value in give(made) if _takes_gradient(value)]
            if sent:
                for place, gradient in enumerate(receive(step, len(sent))):
                    if gradient is not None:
                        roots.append(sent[place])
                        seeds.append(gradient)
        if self._begin is not None:
            self._begin(step, self.index, micro_batch, _BACKWARD)
        began_s = perf_counter()
        if loss is not None:
            roots.append(loss)
            seeds.append(self._seed_of(loss, self._setting.loss))
        if roots and self._split is None:
            torch.autograd.backward(roots, seeds)  # type: ignore[arg-type]  # which takes both kinds in one list
        elif roots and self._split is not None:
            entered = [v for received in arrived for v in received if isinstance(v, Tensor) and v.requires_grad]
            self._late[micro_batch] = self._split(roots, seeds, entered)
        if self._end is not None:
            self._end(step, self.index, micro_batch, _BACKWARD, began_s, perf_counter())
        for place, (send, names) in enumerate(messages.gradients_out):
            received = arrived[place]
            gradients = [value.grad for value in received if isinstance(value, Tensor) and value.requires_grad]
            if gradients:
                send(names if len(gradients) == len(names) else _differentiable(received, names), gradients)

    def weights(self, step: int, micro_batch: int) -> None:
        """Compute the gradients of weights that the backward of a micro-batch left."""
        if self._begin is not None:
            self._begin(step, self.index, micro_batch, _WEIGHT)
        began_s = perf_counter()
        if micro_batch in self._late:  # unless no gradient came
            self._late.pop(micro_batch).backward()
        if self._end is not None:
            self._end(step, self.index, micro_batch, _WEIGHT, began_s, perf_counter())

    def _seed_of(self, loss: Tensor, of_batch: BatchLoss | None) -> Tensor:
        """Return the gradient that the backward of a loss begins with."""
        assert of_batch is not None, "it gave the loss"  # noqa: S101 - see _loss_of
        divisor, scale = of_batch.divisor, self._setting.loss_scale
        return torch.full_like(loss, 1 / divisor) if scale is None else scale.seed(loss, divisor)


def _run_alone(micro_batch: int, forward: Callable[[], Any]) -> Any:
    """Run a forward that changes nothing which replicas share."""
    return forward()


def _picker(names: Sequence[str], wanted: Sequence[str]) -> _Pick:
    """Return what picks the wanted of values that have these names."""
    if tuple(names) == tuple(wanted):
        return tuple
    places = [names.index(name) for name in wanted]
    if len(places) > 1:
        return itemgetter(*places)
    return lambda values: [values[place] for place in places]


def _edge(value: Any) -> GradientEdge | None:
    """Return where the gradient of a value goes, without the value; None where it has none."""
    return get_gradient_edge(value) if _takes_gradient(value) else None


def _takes_gradient(value: Any) -> bool:
    return isinstance(value, GradientEdge) or (isinstance(value, Tensor) and value.requires_grad)


def _columns(data: Mapping[str, Any], names: Sequence[str]) -> list[Any]:
    try:
        return [data[name] for name in names]
    except KeyError:
        missing = next((name for name in names if name not in data), None)
        if missing is None:
            raise
        shown = ", ".join(printable(repr(column)) for column in data) or "nothing"
        said = f"the data has no column {printable(missing)!r}, which the model takes; it has {shown}"
        raise RunError(said) from None


def _differentiable(values: Sequence[Any], names: Sequence[str]) -> list[str]:
    """Return the names of the values for which gradients go back."""
    return [n for value, n in zip(values, names, strict=True) if isinstance(value, Tensor) and value.requires_grad]


def _seed_forward(seed: int, step: int, micro_batch: int, stage: int, device: torch.device) -> None:
    """Seed the random numbers of a forward, so that they depend neither on the schedule nor on replicas."""
    digest = hashlib.blake2b(struct.pack("<4q", seed, step, micro_batch, stage), digest_size=8).digest()
    number = int.from_bytes(digest, "little") >> 1
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(number)
