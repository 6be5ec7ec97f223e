"""Run one rank of a pipeline: its actions in the order of the schedule, what they receive and what they send.

::

    forward of a micro-batch                        backward of it
      receive from the stages before                  receive gradients from the stages after
      run the stage (and the loss, at the last)       run autograd
      send to the stages after                        send gradients to the stages before

At the end of a training step gradients and running statistics are summed over the ranks that share them
(``gradients.py``, ``statistics.py``), so that every stage is what it would be in one process that runs the
micro-batches in order; where it is asked for, the gradients of the whole model are then clipped (``clip.py``).
Schedule, replicas and processes change nothing but the order of sums.

Left out: processes and process groups (``launch/``), the optimiser, reading data.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from heterps_compile.errors import HeterpsError, RunError, UnknownNameError
from heterps_compile.escape import printable
from heterps_compile.plan.plan import Plan
from heterps_compile.runtime.signature import signature_of_plan
from heterps_compile.schedule.order import Phase

from .clip import GradientClip
from .contract import EVERYTHING, Loss, ReadMicroBatch, StepHook
from .exchange import Exchange
from .layout import Layout
from .message import WIRES
from .record import Recorder, Recorders
from .routes import make_routes
from .shared import share_state
from .stages import RunnableStage, Tied
from .step import Kept, MicroBatchData, backward, differentiable, gradients_of, seed_forward


class Engine:
    """One rank of a pipeline.

    Attributes:
        needs: Graph inputs that this rank reads.
        wants_targets: Whether it computes the loss, for which it reads everything.
    """

    needs: tuple[str, ...]
    wants_targets: bool

    def __init__(
        self,
        plan: Plan,
        layout: Layout,
        rank: int,
        stages: Mapping[int, RunnableStage],
        *,
        tied: Tied,
        loss: Loss | None = None,
        wire: str = "float32",
        seed: int = 0,
        device: torch.device | None = None,
        recorder: Recorder | None = None,
        hooks: Sequence[StepHook] = (),
        exact_sums: bool = False,
        clip_norm: float | None = None,
    ) -> None:
        """Prepare a rank; ``torch.distributed`` is initialised, and every rank of the pipeline does the same.

        Args:
            plan: The plan.
            layout: What every rank does.
            rank: This one.
            stages: Those of ``layout.stages_of(rank)``, by index.
            tied: Parameters that several stages hold: ``stages.read_tied(folder, plan)``.
            loss: Of a micro-batch; needed to train.
            wire: What float32 values are sent as: ``"float32"``, ``"float16"`` or ``"bfloat16"``.
            seed: Of dropout and other random ops.
            device: Where this rank computes; None for the CPU.
            recorder: Is told what happens.
            hooks: Take part in every training step.
            exact_sums: Add up gradients in the order of one process, for its very bits; slower.
            clip_norm: Of the gradients of the whole model, at most; None for any.

        Raises:
            RunError: where there is no loss to train with, or the plan ties parameters that ``tied`` does not have.
        """
        if wire not in WIRES:
            raise UnknownNameError("data type on the wire", wire, WIRES)
        self._layout, self._rank, self._stages, self._seed = layout, rank, dict(stages), seed
        self._device = device or torch.device("cpu")
        self._recorder: Recorder = recorder or Recorders()
        self._hooks = tuple(hooks)
        self._actions = tuple((layout.stage_of(a), a.micro_batch, a.phase) for a in layout.actions(rank))
        self._last = layout.stage_count - 1
        self._loss = loss if layout.training else None
        self._signature = signature_of_plan(plan)
        self._outputs = plan.graph_outputs
        inputs = set(plan.graph_inputs)
        self._reads = {
            index: tuple(dict.fromkeys(name for name in self._wanted(index, stage) if name in inputs))
            for index, stage in self._stages.items()
        }
        self.needs = tuple(dict.fromkeys(name for names in self._reads.values() for name in names))
        self.wants_targets = layout.training and self._last in self._stages
        if self.wants_targets and loss is None:
            raise RunError("there is no loss to train with; give one (--train FILE)")
        readers = sum(bool(names) or self._has_loss(index) for index, names in self._reads.items())
        self._data = MicroBatchData(EVERYTHING if self.wants_targets else self.needs, readers, self._device)
        self._kept: dict[tuple[int, int], Kept] = {}
        self._state = (
            share_state(plan, layout, rank, self._stages, tied, exact_sums=exact_sums) if layout.training else None
        )
        routes = make_routes(plan.stages, plan.graph_outputs)
        self._clip: GradientClip | None = None
        if self._state is not None and clip_norm is not None:
            held, counted = self._state.parameters(), self._state.counted
            self._clip = GradientClip(clip_norm, held, counted, layout.world_size, rank)
        self._exchange = Exchange(layout, rank, routes, wire=wire, device=self._device, recorder=self._recorder)
        ends = {(stage, phase): place for place, (stage, _, phase) in enumerate(self._actions)}
        self._ends = {place: ended for ended, place in ends.items()}

    def train_step(self, step: int, read: ReadMicroBatch) -> float | None:
        """Run forwards and backwards of one step and sum the gradients; the caller steps the optimiser.

        Args:
            step: Its number, from which random numbers are seeded.
            read: Reads the data of a micro-batch.

        Returns:
            The mean loss over the micro-batches on the ranks of the last stage, None on others.

        Raises:
            RunError: naming stage, replica, step and micro-batch.
        """
        assert self._state is not None, "the layout is one of inference"  # noqa: S101 - a bug of the caller
        began_s = time.perf_counter()
        for hook in self._hooks:
            hook.before_step(step)
        self._exchange.begin()
        self._state.begin()
        losses: list[Tensor] = []
        for place, (stage, micro_batch, phase) in enumerate(self._actions):
            try:
                if phase is Phase.FORWARD:
                    kept = self._forward(step, stage, micro_batch, read)
                    self._kept[stage, micro_batch] = kept
                    if kept.loss is not None:
                        losses.append(kept.loss.detach())
                else:
                    self._backward(step, stage, micro_batch)
                    self._state.keep(stage, micro_batch)
            except Exception as error:
                raise self._named(error, step, stage, micro_batch, phase) from error
            self._exchange.look_ahead(place + 1)
            if place in self._ends:
                self._ended(*self._ends[place])
        for hook in self._hooks:
            hook.after_backward(step)
        loss, norm = self._sum_up(step, losses)
        self._recorder.step_done(step, self._layout.batch, loss, began_s, time.perf_counter(), norm)
        return loss

    def infer(self, step: int, read: ReadMicroBatch) -> dict[int, dict[str, Any]]:
        """Run the forwards of one step. Stages go on to the next step while later ones still work on this one.

        Args:
            step: Its number, from which random numbers are seeded.
            read: Reads the data of a micro-batch.

        Returns:
            On a rank of the last stage the graph outputs of its micro-batches, by micro-batch and name; else empty.

        Raises:
            RunError: naming stage, replica, step and micro-batch.
        """
        assert self._state is None, "the layout is one of training"  # noqa: S101 - a bug of the caller
        began_s = time.perf_counter()
        results = {}
        self._flush(step)  # of the step before: whoever was to receive has had the time
        self._exchange.begin()
        with torch.no_grad():
            for place, (stage, micro_batch, phase) in enumerate(self._actions):
                try:
                    kept = self._forward(step, stage, micro_batch, read)
                except Exception as error:
                    raise self._named(error, step, stage, micro_batch, phase) from error
                self._exchange.look_ahead(place + 1)
                if stage == self._last:
                    results[micro_batch] = {name: kept.made[name] for name in self._outputs}
        self._recorder.step_done(step, self._layout.batch, None, began_s, time.perf_counter())
        return results

    def finish(self) -> None:
        """Wait until what was sent has arrived, and leave the other ranks; call it before leaving the process group."""
        self._exchange.close()

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """Give the parameters of this rank's stages by their names in the model, each once."""
        found: dict[str, nn.Parameter] = {}
        seen: set[int] = set()
        for name, tensor in self._state_dict():
            if isinstance(tensor, nn.Parameter) and id(tensor) not in seen:
                found[name] = tensor
                seen.add(id(tensor))
        return found

    def named_buffers(self) -> dict[str, Tensor]:
        """Give the buffers of this rank's stages that are part of the model's state, by their names in the model."""
        return {name: tensor for name, tensor in self._state_dict() if not isinstance(tensor, nn.Parameter)}

    def _state_dict(self) -> Iterator[tuple[str, Tensor]]:
        for stage in self._stages.values():
            if isinstance(stage, nn.Module):
                yield from stage.state_dict(keep_vars=True).items()  # not named_parameters(): it knows one name of many

    def _wanted(self, index: int, stage: RunnableStage) -> tuple[str, ...]:
        return (*stage.inputs, *self._outputs) if index == self._last else stage.inputs

    def _has_loss(self, stage: int) -> bool:
        return self.wants_targets and stage == self._last

    def _forward(self, step: int, stage: int, micro_batch: int, read: ReadMicroBatch) -> Kept:
        """Run the forward of a micro-batch and send what it makes."""
        runs = self._stages[stage]
        values: dict[str, Any] = {}
        data: Mapping[str, Any] = {}
        if self._reads[stage] or self._has_loss(stage):
            began_s = time.perf_counter()
            data = self._data.take(micro_batch, read)
            self._recorder.waited(step, "data", began_s, time.perf_counter())
            values.update((name, _column(data, name)) for name in self._reads[stage])
        arrived = tuple(
            (route, self._exchange.receive(step, route, micro_batch)) for route in self._exchange.into[stage]
        )
        for route, received in arrived:
            values.update(zip(route.values, received, strict=True))
        self._recorder.begin(step, stage, micro_batch, Phase.FORWARD)
        began_s = time.perf_counter()
        seed_forward(self._seed, step, micro_batch, stage, self._device)
        taken = [values[name] for name in runs.inputs]
        statistics = None if self._state is None else self._state.statistics.get(stage)
        made = runs(*taken) if statistics is None else statistics.run(micro_batch, partial(runs, *taken))
        if len(made) != len(runs.outputs):
            raise RunError(f"it gave {len(made)} values, its plan says {len(runs.outputs)}; compile the model again")
        values.update(zip(runs.outputs, made, strict=True))
        loss = self._loss_of(values, data) if self._has_loss(stage) else None
        self._recorder.end(step, stage, micro_batch, Phase.FORWARD, began_s, time.perf_counter())
        for route in self._exchange.out_of[stage]:
            self._exchange.send(route, micro_batch, route.values, [values[name] for name in route.values])
        wanted = self._outputs if stage == self._last else runs.outputs
        return Kept(arrived, {name: values[name] for name in wanted}, loss)

    def _loss_of(self, values: Mapping[str, Any], data: Mapping[str, Any]) -> Tensor:
        assert self._loss is not None  # noqa: S101 - __init__ has checked it; this tells the type checker
        result = self._signature.assemble({name: values[name] for name in self._outputs})
        loss = self._loss(result, data)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            shown = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
            raise RunError(f"the loss gives {shown}; it must be one number as a tensor, the mean over the micro-batch")
        if not loss.requires_grad:
            raise RunError("the loss depends on no parameter, so that there is nothing to train; compute it with torch")
        return loss.reshape(())

    def _backward(self, step: int, stage: int, micro_batch: int) -> None:
        """Run the backward of a micro-batch and send the gradients of what it received."""
        kept = self._kept.pop((stage, micro_batch))
        gradients: dict[str, Tensor] = {}
        for route in self._exchange.out_of[stage]:
            names = differentiable([kept.made[name] for name in route.values], route.values)
            if names:
                received = self._exchange.receive_back(step, route, micro_batch, len(names))
                for name, gradient in zip(names, received, strict=True):
                    if gradient is not None:
                        gradients[name] = gradient if name not in gradients else gradients[name] + gradient
        self._recorder.begin(step, stage, micro_batch, Phase.BACKWARD)
        began_s = time.perf_counter()
        backward(kept, gradients, self._layout.micro_batches)
        self._recorder.end(step, stage, micro_batch, Phase.BACKWARD, began_s, time.perf_counter())
        for route, received in kept.arrived:
            names = differentiable(received, route.values)
            if names:
                self._exchange.send_back(route, micro_batch, names, gradients_of(received))

    def _ended(self, stage: int, phase: Phase) -> None:
        """Begin what may run beside the rest of the step once a stage has ended its forwards or backwards."""
        assert self._state is not None  # noqa: S101 - only training gets here; this tells the type checker
        if phase is Phase.FORWARD and stage in self._state.statistics:
            self._state.statistics[stage].start()
        if phase is Phase.BACKWARD and not self._hooks:
            self._state.start_gradients(stage)

    def _sum_up(self, step: int, losses: Sequence[Tensor]) -> tuple[float | None, float | None]:
        """Wait for gradients, statistics and sends; give the mean loss where the loss is, and the norm if clipped."""
        assert self._state is not None  # noqa: S101 - only training gets here; this tells the type checker
        began_s = time.perf_counter()
        with self._naming_waits(step):
            self._state.finish()
            norm = None if self._clip is None else self._clip.clip()
            loss = None
            if self.wants_targets:
                total = sum(float(loss) for loss in losses)
                if self._state.last_group is not None:
                    summed = torch.tensor(total, dtype=torch.float64)
                    self._state.last_group.sum(summed).wait()
                    total = float(summed)
                loss = total / self._layout.micro_batches
        self._recorder.waited(step, "reduce", began_s, time.perf_counter())
        self._flush(step)
        return loss, norm

    def _flush(self, step: int) -> None:
        began_s = time.perf_counter()
        with self._naming_waits(step):
            self._exchange.flush()
        self._recorder.waited(step, "send", began_s, time.perf_counter())

    def _named(self, error: Exception, step: int, stage: int, micro_batch: int, phase: Phase) -> RunError:
        """Let what went wrong in an action say where it did."""
        return RunError(
            f"stage {stage}, replica {self._layout.replica_of(self._rank)} (rank {self._rank}), {phase} of "
            f"micro-batch {micro_batch} in step {step}: {_reason(error)}"
        )

    @contextmanager
    def _naming_waits(self, step: int) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            where = self._layout.describe(self._rank)
            raise RunError(f"{where}, at the end of step {step}: {_reason(error)}") from error


def _column(data: Mapping[str, Any], name: str) -> Any:
    if name not in data:
        shown = ", ".join(printable(repr(column)) for column in data) or "nothing"
        raise RunError(f"the data has no column {printable(name)!r}, which the model takes; it has {shown}")
    return data[name]


def _reason(error: Exception) -> str:
    text = printable(str(error))
    return text if isinstance(error, HeterpsError) else f"{type(error).__name__}: {text}"
