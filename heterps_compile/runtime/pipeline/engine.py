"""Run one rank of a pipeline: its actions (``stage_actions.py``) in the order of the schedule, step by step.

At the end of a training step gradients and running statistics are summed over the ranks that share them
(``gradient_sums.py``, ``running_statistics.py``), so that every stage is what it would be in one process that runs the
micro-batches in order; with a ``clip_norm`` the gradients of the whole model are then clipped (``clip_gradients.py``).
Schedule, replicas and processes change nothing but the order of sums.

Left out: processes and process groups (``launch/``), the optimiser, reading data.
"""

from collections.abc import Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from heterps_compile.errors import HeterpsError, RunError, UnknownNameError
from heterps_compile.escape import printable
from heterps_compile.plan.plan import Plan
from heterps_compile.runtime.signature import signature_of_plan
from heterps_compile.schedule.order import Phase

from .clip_gradients import GradientClip
from .exchange import Exchange
from .layout import Layout
from .message import WIRES
from .rank_parts import EVERYTHING, Loss, ReadMicroBatch, StepHook
from .read_stage import RunnableStage, Tied
from .recorder import Recorder, Recorders
from .replica_state import share_state
from .routes import make_routes
from .stage_actions import MicroBatchData, Setting, StageActions


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
        self._layout, self._rank, self._stages = layout, rank, dict(stages)
        device = device or torch.device("cpu")
        self._recorder: Recorder = recorder or Recorders()
        self._hooks, self._exact_sums = tuple(hooks), exact_sums
        last = layout.stage_count - 1
        reads = {
            index: _inputs_of(plan, (*stage.inputs, *plan.graph_outputs) if index == last else stage.inputs)
            for index, stage in self._stages.items()
        }
        self.needs = tuple(dict.fromkeys(name for names in reads.values() for name in names))
        self.wants_targets = layout.training and last in self._stages
        if self.wants_targets and loss is None:
            raise RunError("there is no loss to train with; give one (--train FILE)")
        readers = sum(bool(names) or (self.wants_targets and index == last) for index, names in reads.items())
        data = MicroBatchData(EVERYTHING if self.wants_targets else self.needs, readers, device)
        self._state = (
            share_state(plan, layout, rank, self._stages, tied, exact_sums=exact_sums) if layout.training else None
        )
        routes = make_routes(plan.stages, plan.graph_outputs)
        self._clip: GradientClip | None = None
        if self._state is not None and clip_norm is not None:
            held, counted = self._state.parameters(), self._state.counted
            self._clip = GradientClip(clip_norm, held, counted, layout.world_size, rank)
        self._exchange = Exchange(layout, rank, routes, wire=wire, device=device, recorder=self._recorder)
        setting = Setting(
            self._exchange,
            data,
            layout.micro_batches,
            signature_of_plan(plan),
            plan.graph_outputs,
            loss if layout.training else None,
            seed,
            device,
            self._recorder,
        )
        shared = {} if self._state is None else self._state.statistics
        actions_of = {
            index: StageActions(
                index, stage, setting, reads=reads[index], is_last=index == last, statistics=shared.get(index)
            )
            for index, stage in self._stages.items()
        }
        order = [(layout.stage_of(a), a.micro_batch, a.phase is Phase.FORWARD) for a in layout.actions(rank)]
        ends = set({(stage, is_forward): place for place, (stage, _, is_forward) in enumerate(order)}.values())
        self._actions = [
            (actions_of[stage], micro_batch, is_forward, place in ends)
            for place, (stage, micro_batch, is_forward) in enumerate(order)
        ]
        self._first_backward = next((i for i, action in enumerate(order) if not action[2]), None)

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
        began_s = perf_counter()
        for hook in self._hooks:
            hook.before_step(step)
        self._exchange.begin()
        self._state.begin()
        losses: list[Tensor] = []
        look_ahead = self._exchange.look_ahead if self._exchange.needs_buffers else None
        exact_sums, first_backward = self._exact_sums, self._first_backward
        for place, (stage, micro_batch, is_forward, is_end) in enumerate(self._actions):
            try:
                if is_forward:
                    of_micro_batch = stage.forward(step, micro_batch, read)
                    if of_micro_batch is not None:
                        losses.append(of_micro_batch.detach())
                else:
                    if place == first_backward:
                        self._state.begin_gradients()
                    stage.backward(step, micro_batch)
                    if exact_sums:
                        self._state.keep(stage.index, micro_batch)
            except Exception as error:
                raise self._named(error, step, stage.index, micro_batch, is_forward=is_forward) from error
            if look_ahead is not None:
                look_ahead(place + 1)
            if is_end:
                self._ended(stage.index, is_forward=is_forward)
        for hook in self._hooks:
            hook.after_backward(step)
        loss, norm = self._sum_up(step, losses)
        self._recorder.step_done(step, self._layout.batch, loss, began_s, perf_counter(), norm)
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
        began_s = perf_counter()
        results = {}
        self._flush(step)  # of the step before: whoever was to receive has had the time
        self._exchange.begin()
        with torch.no_grad():
            for place, (stage, micro_batch, _, _) in enumerate(self._actions):
                try:
                    outputs = stage.infer(step, micro_batch, read)
                except Exception as error:
                    raise self._named(error, step, stage.index, micro_batch, is_forward=True) from error
                self._exchange.look_ahead(place + 1)
                if stage.is_last:
                    results[micro_batch] = outputs
        self._recorder.step_done(step, self._layout.batch, None, began_s, perf_counter())
        return results

    def finish(self) -> None:
        """Wait until what was sent has arrived, and leave the other ranks; call it before leaving the process group."""
        self._exchange.close()

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """Return the parameters of this rank's stages by their names in the model, each once."""
        found: dict[str, nn.Parameter] = {}
        seen: set[int] = set()
        for name, tensor in self._state_dict():
            if isinstance(tensor, nn.Parameter) and id(tensor) not in seen:
                found[name] = tensor
                seen.add(id(tensor))
        return found

    def named_buffers(self) -> dict[str, Tensor]:
        """Return the buffers of this rank's stages that are part of the model's state, by their names in the model."""
        return {name: tensor for name, tensor in self._state_dict() if not isinstance(tensor, nn.Parameter)}

    def _state_dict(self) -> Iterator[tuple[str, Tensor]]:
        for stage in self._stages.values():
            if isinstance(stage, nn.Module):
                yield from stage.state_dict(keep_vars=True).items()  # not named_parameters(): it knows one name of many

    def _ended(self, stage: int, *, is_forward: bool) -> None:
        """Begin what may run beside the rest of the step once a stage has ended its forwards or backwards."""
        assert self._state is not None  # noqa: S101 - only training gets here; this tells the type checker
        if is_forward and stage in self._state.statistics:
            self._state.statistics[stage].start()
        if not is_forward and not self._hooks:
            self._state.start_gradients(stage)

    def _sum_up(self, step: int, losses: Sequence[Tensor]) -> tuple[float | None, float | None]:
        """Wait for gradients, statistics and sends; give the mean loss where the loss is, and the norm if clipped."""
        assert self._state is not None  # noqa: S101 - only training gets here; this tells the type checker
        began_s = perf_counter()
        loss = None
        try:
            self._state.finish()
            norm = None if self._clip is None else self._clip.clip()
            if self.wants_targets:
                total = sum(loss.item() for loss in losses)
                if self._state.last_group is not None:
                    summed = torch.tensor(total, dtype=torch.float64)
                    self._state.last_group.sum(summed).wait()
                    total = summed.item()
                loss = total / self._layout.micro_batches
            summed_s = perf_counter()
            self._recorder.waited(step, "reduce", began_s, summed_s)
            self._exchange.flush()
        except Exception as error:
            raise self._named_wait(error, step) from error
        self._recorder.waited(step, "send", summed_s, perf_counter())
        return loss, norm

    def _flush(self, step: int) -> None:
        began_s = perf_counter()
        try:
            self._exchange.flush()
        except Exception as error:
            raise self._named_wait(error, step) from error
        self._recorder.waited(step, "send", began_s, perf_counter())

    def _named(self, error: Exception, step: int, stage: int, micro_batch: int, *, is_forward: bool) -> RunError:
        """Let what went wrong in an action say where it did."""
        phase = Phase.FORWARD if is_forward else Phase.BACKWARD
        return RunError(
            f"stage {stage}, replica {self._layout.replica_of(self._rank)} (rank {self._rank}), {phase} of "
            f"micro-batch {micro_batch} in step {step}: {_reason(error)}"
        )

    def _named_wait(self, error: Exception, step: int) -> RunError:
        return RunError(f"{self._layout.describe(self._rank)}, at the end of step {step}: {_reason(error)}")


def _inputs_of(plan: Plan, names: Sequence[str]) -> tuple[str, ...]:
    """Return the graph inputs among names, each once."""
    return tuple(dict.fromkeys(name for name in names if name in plan.graph_inputs))


def _reason(error: Exception) -> str:
    text = printable(str(error))
    return text if isinstance(error, HeterpsError) else f"{type(error).__name__}: {text}"
