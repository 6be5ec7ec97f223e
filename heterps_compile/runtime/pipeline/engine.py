"""Run one rank of a pipeline: its actions (``stage_actions.py``) in the order of the schedule, step by step.

At the end of a training step gradients and running statistics are summed over the ranks that share them
(``gradient_sums.py``, ``running_statistics.py``), so that every stage is what it would be in one process that runs the
micro-batches in order; with a ``clip_norm`` the gradients of the whole model are then clipped (``clip_gradients.py``).
In float16 losses are scaled, and a step whose gradients are not finite is skipped (``loss_scale.py``).
Schedule, replicas and processes change nothing but the order of sums.

Left out: processes and process groups (``launch/``), the optimiser, reading data.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from heterps_compile.backends.find import find_backend
from heterps_compile.cost.precision import SCALED
from heterps_compile.errors import HeterpsError, RunError, UnknownNameError
from heterps_compile.escape import printable
from heterps_compile.plan.plan import Plan
from heterps_compile.runtime.signature import signature_of_plan
from heterps_compile.schedule.order import Phase

from .autocast import Autocast
from .batch_loss import BatchLoss
from .exchange import Exchange
from .message import WIRES
from .rank_parts import EVERYTHING, RankParts, ReadMicroBatch, StepOptions
from .read_stage import RunnableStage
from .recorder import NOTHING_TOLD, StepResult
from .replica_state import SharedState, share_state
from .routes import make_routes
from .stage_actions import MicroBatchData, Recompute, Setting, StageActions

if TYPE_CHECKING:
    from .clip_gradients import GradientClip
    from .gather_outputs import OutputGather
    from .loss_scale import LossScale

AS_IT_IS = StepOptions()
"""Nothing but what every step has: float32 on the wire, seed 0; without a loss, so to infer."""


class Engine:
    """One rank of a pipeline.

    Attributes:
        needs: Graph inputs that this rank reads.
        wants_targets: Whether it computes the loss, for which it reads everything.
        loss_scale: Of its losses; None where they are not scaled.
        shared: What this rank shares with others; None in inference.
    """

    needs: tuple[str, ...]
    wants_targets: bool
    loss_scale: "LossScale | None"
    shared: SharedState | None

    def __init__(self, parts: RankParts, options: StepOptions = AS_IT_IS) -> None:
        """Prepare a rank that has joined its world; every rank of the pipeline does the same.

        Args:
            parts: What this rank runs, where, and with whom.
            options: How it steps.

        Raises:
            RunError: where there is no loss to train with, or the plan ties parameters that ``parts.tied`` lacks.
        """
        autocast = Autocast(options.precision, parts.device)
        if options.wire not in WIRES:
            raise UnknownNameError("data type on the wire", options.wire, WIRES)
        plan, layout, rank, stages = parts.plan, parts.layout, parts.rank, parts.stages
        self._layout, self._rank, self._stages = layout, rank, dict(stages)
        self._recorder, self._hooks = parts.recorder, tuple(parts.hooks)
        last = layout.stage_count - 1
        reads = {
            index: _inputs_of(plan, (*stage.inputs, *plan.graph_outputs) if index == last else stage.inputs)
            for index, stage in self._stages.items()
        }
        self.needs = tuple(dict.fromkeys(name for names in reads.values() for name in names))
        self.wants_targets = layout.training and last in self._stages
        self._loss: BatchLoss | None = None
        if self.wants_targets:
            if options.loss is None:
                raise RunError("there is no loss to train with; give one (--train FILE)")
            is_scaled = options.precision in SCALED
            self._loss = BatchLoss(options.loss, options.sample_weight, layout, rank, is_scaled=is_scaled)
        readers = sum(bool(names) or (self.wants_targets and index == last) for index, names in reads.items())
        self._data = data = MicroBatchData(EVERYTHING if self.wants_targets else self.needs, readers, parts.device)
        self.shared = self._state = (
            share_state(
                parts,
                sync=options.sync,
                is_scaled=options.precision in SCALED,
                order=options.order,
            )
            if layout.training
            else None
        )
        routes = make_routes(plan.stages, plan.graph_outputs)
        self._clip = _make_clip(parts, options, self._state)
        self.loss_scale = _make_loss_scale(parts, options, self._state)
        gathers = options.gathers and len(layout.ranks_of(last)) > 1
        more_tags = layout.micro_batches + 1 if gathers else 0
        self._exchange = Exchange(parts, routes, wire=options.wire, more_tags=more_tags)
        self._gather = _make_gather(parts, self._exchange) if gathers else None
        setting = Setting(
            self._exchange,
            data,
            layout.micro_batches,
            signature_of_plan(plan),
            plan.graph_outputs,
            self._loss,
            options.seed,
            parts.device,
            self._recorder,
            autocast,
            self.loss_scale,
        )
        shared = {} if self._state is None else self._state.statistics
        order = [(layout.stage_of(a), a.micro_batch, a.phase) for a in layout.actions(rank)]
        actions_of = {
            index: StageActions(
                index,
                stage,
                setting,
                reads=reads[index],
                is_last=index == last,
                statistics=shared.get(index),
                recompute=_recompute(plan, index, stage) if layout.training else None,
                splits=any(stage == index and phase is Phase.WEIGHT for stage, _, phase in order),
            )
            for index, stage in self._stages.items()
        }
        lasts = set({(stage, phase is Phase.FORWARD): place for place, (stage, _, phase) in enumerate(order)}.values())
        self._actions = [
            (actions_of[stage], micro_batch, phase, place in lasts)
            for place, (stage, micro_batch, phase) in enumerate(order)
        ]
        # an accelerator has numbers once all is computed that was begun, for which a step must not wait in its middle
        self._begins_losses = parts.device.type == "cpu" and self._state is not None and not self._state.steps_alone
        self._untold_since_s: float | None = None
        self._first_backward = next((i for i, action in enumerate(order) if action[2] is Phase.BACKWARD), None)

    def train_step(self, step: int, read: ReadMicroBatch, *, is_told: bool = True) -> StepResult:
        """Run forwards and backwards of one step and sum the gradients; the caller steps the optimiser, or skips it.

        Args:
            step: Its number, from which random numbers are seeded.
            read: Reads the data of a micro-batch.
            is_told: Whether the recorder hears that it is done; a step may be taken twice, with other weights.

        Returns:
            What it came to; the loss is known on the ranks of the last stage, and later where its replicas step alone.

        Raises:
            RunError: naming stage, replica, step and micro-batch.
        """
        state = self._state
        if state is None:
            raise RunError("the ranks are laid out to infer, and cannot train; lay them out with training=True")
        began_s = perf_counter() if self._untold_since_s is None else self._untold_since_s
        state.scale = 1.0 if self.loss_scale is None else self.loss_scale.state.scale
        for hook in self._hooks:
            hook.before_step(step)
        self._exchange.begin()
        state.begin(step)
        if self._loss is not None and self._loss.is_weighted:
            self._weigh(self._loss, state, step, read)
        post_receives = self._exchange.post_receives if self._exchange.needs_buffers else None
        first_backward = self._first_backward
        for place, (stage, micro_batch, phase, is_last_of_stage) in enumerate(self._actions):
            try:
                if phase is Phase.FORWARD:
                    stage.forward(step, micro_batch, read)
                elif phase is Phase.WEIGHT:
                    stage.weights(step, micro_batch)
                else:
                    if place == first_backward:
                        state.begin_gradients()
                    stage.backward(step, micro_batch)
            except Exception as error:
                raise self._named(error, step, stage.index, micro_batch, phase) from error
            if post_receives is not None:
                post_receives(place + 1)
            if is_last_of_stage:
                self._start_sums(state, stage.index, is_forward=phase is Phase.FORWARD)
        for hook in self._hooks:
            hook.after_backward(step)
        result = self._sum_up(state, step)
        self._untold_since_s = None if is_told else began_s
        if is_told:
            self._recorder.step_done(step, self._layout.batch, result, began_s, perf_counter())
        return result

    def infer(self, step: int, read: ReadMicroBatch, micro_batches: int | None = None) -> dict[int, dict[str, Any]]:
        """Run the forwards of one step. Stages go on to the next step while later ones still work on this one.

        Args:
            step: Its number, from which random numbers are seeded.
            read: Reads the data of a micro-batch.
            micro_batches: Run the first so many alone, the same on every rank; None for all.

        Returns:
            On a rank of the last stage the graph outputs of its micro-batches, by micro-batch and name; where they are
            gathered, those of all on its first replica; else empty.

        Raises:
            RunError: naming stage, replica, step and micro-batch.
        """
        if self._state is not None:
            raise RunError("the ranks are laid out to train, and cannot infer; lay them out with training=False")
        began_s = perf_counter()
        results = {}
        count = self._layout.micro_batches if micro_batches is None else micro_batches
        self._flush(step)  # of the step before: whoever was to receive has had the time
        self._exchange.begin(count)
        with torch.no_grad():
            for place, (stage, micro_batch, _, _) in enumerate(self._actions):
                if micro_batch >= count:
                    continue
                try:
                    outputs = stage.infer(step, micro_batch, read)
                except Exception as error:
                    raise self._named(error, step, stage.index, micro_batch, Phase.FORWARD) from error
                self._exchange.post_receives(place + 1)
                if stage.is_last:
                    results[micro_batch] = outputs
            if self._gather is not None:
                try:
                    results = self._gather.gather(results, count)
                except Exception as error:
                    raise self._named_wait(error, step) from error
        samples = count * self._layout.micro_batch_size
        self._recorder.step_done(step, samples, NOTHING_TOLD, began_s, perf_counter())
        return results

    def settle(self, step: int) -> None:
        """Wait until what was sent in an inference up to this step has arrived, and free what nobody needs."""
        self._flush(step)

    def with_losses(self, result: StepResult) -> StepResult:
        """Return what the last step came to with its losses, which are waited for where replicas step alone.

        Raises:
            RunError: where another rank is gone.
        """
        if self._loss is not None:
            try:
                self._loss.settle()
            except Exception as error:
                raise RunError(f"{self._layout.describe(self._rank)}, at its losses: {_reason(error)}") from error
        return result.with_losses()

    def finish(self) -> None:
        """Wait until what was sent has arrived; call it before leaving the world."""
        self.with_losses(NOTHING_TOLD)
        if self.shared is not None:
            self.shared.close()
        self._exchange.flush()

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

    def _start_sums(self, state: SharedState, stage: int, *, is_forward: bool) -> None:
        """Begin the sums that may run beside the rest of the step once a stage has ended its forwards or backwards."""
        if is_forward and stage in state.statistics:
            state.statistics[stage].start()
        if is_forward and self._loss is not None and stage == self._layout.stage_count - 1 and self._begins_losses:
            self._loss.begin(state.last_group)
        if not is_forward and not self._hooks:
            state.start_gradients(stage)

    def _weigh(self, of_batch: BatchLoss, state: SharedState, step: int, read: ReadMicroBatch) -> None:
        """Read the micro-batches of this rank, ask for the weights of their samples, and add up those of the batch."""
        last = self._layout.stage_count - 1
        for micro_batch in dict.fromkeys(action[1] for action in self._actions if action[2] is Phase.FORWARD):
            began_s = perf_counter()
            try:
                columns = self._data.peek(micro_batch, read)
                self._recorder.waited(step, "data", began_s, perf_counter())
                of_batch.weigh(micro_batch, columns)
            except Exception as error:
                raise self._named(error, step, last, micro_batch, Phase.FORWARD) from error
        began_s = perf_counter()
        try:
            of_batch.sum_weights(state.last_group)
        except Exception as error:
            raise self._named_wait(error, step, "beginning") from error
        self._recorder.waited(step, "reduce", began_s, perf_counter())

    def _sum_up(self, state: SharedState, step: int) -> StepResult:
        """Wait for gradients, statistics and sends, and tell what the step came to."""
        began_s = perf_counter()
        try:
            state.finish()
            found = None if self.loss_scale is None else self.loss_scale.unscale()
            norm = None if self._clip is None else self._clip.measure()
            agreement = None
            if self.loss_scale is not None and found is not None and norm is None:
                agreement = self.loss_scale.start_agreeing(found)
            result = StepResult()
            if self._loss is not None:
                result = StepResult(late=self._loss.means(state.last_group))
            if not state.steps_alone:
                result = result.with_losses()
            summed_s = perf_counter()
            self._recorder.waited(step, "reduce", began_s, summed_s)
            self._exchange.flush()
            flushed_s = perf_counter()
            self._recorder.waited(step, "send", summed_s, flushed_s)
            is_finite = agreement.is_finite() if agreement is not None else norm is None or math.isfinite(norm)
            scale = None
            if self.loss_scale is not None:
                scale = self.loss_scale.state.scale
                self.loss_scale.update(is_finite=is_finite)
                self._recorder.waited(step, "reduce", flushed_s, perf_counter())
            is_skipped = scale is not None and not is_finite
            if self._clip is not None and norm is not None and not is_skipped:
                self._clip.clip(norm)
        except Exception as error:
            raise self._named_wait(error, step) from error
        return replace(result, gradient_norm=None if is_skipped else norm, loss_scale=scale, is_skipped=is_skipped)

    def _flush(self, step: int) -> None:
        began_s = perf_counter()
        try:
            if self._gather is not None:
                self._gather.flush()
            self._exchange.flush()
        except Exception as error:
            raise self._named_wait(error, step) from error
        self._recorder.waited(step, "send", began_s, perf_counter())

    def _named(self, error: Exception, step: int, stage: int, micro_batch: int, phase: Phase) -> RunError:
        """Let what went wrong in an action say where it did."""
        return RunError(
            f"stage {stage}, replica {self._layout.replica_of(self._rank)} (rank {self._rank}), {phase} of "
            f"micro-batch {micro_batch} in step {step}: {_reason(error)}"
        )

    def _named_wait(self, error: Exception, step: int, where: str = "end") -> RunError:
        return RunError(f"{self._layout.describe(self._rank)}, at the {where} of step {step}: {_reason(error)}")


def _make_clip(parts: RankParts, options: StepOptions, state: SharedState | None) -> "GradientClip | None":
    if state is None or options.clip_norm is None:
        return None
    from .clip_gradients import GradientClip  # noqa: PLC0415 - if gradients are clipped

    pipeline = parts.layout.world_size, parts.rank
    return GradientClip(options.clip_norm, state.parameters(), state.counted, pipeline, parts.served)


def _make_loss_scale(parts: RankParts, options: StepOptions, state: SharedState | None) -> "LossScale | None":
    if state is None or options.precision not in SCALED:
        return None
    from .loss_scale import LossScale  # noqa: PLC0415 - in float16

    return LossScale(options.scaling, state.parameters(), parts.layout.world_size)


def _make_gather(parts: RankParts, exchange: Exchange) -> "OutputGather | None":
    last = parts.layout.stage_count - 1
    if exchange.transport is None or last not in parts.stages:
        return None
    from .gather_outputs import OutputGather  # noqa: PLC0415 - in inference alone

    names, first_tag = parts.plan.graph_outputs, exchange.own_tags
    return OutputGather(
        exchange.transport, parts.layout, parts.rank, names=names, first_tag=first_tag, device=parts.device
    )


def _recompute(plan: Plan, index: int, stage: RunnableStage) -> Recompute | None:
    """Return what runs a stage that recomputes; None for one that keeps its activations."""
    planned = plan.stages[index]
    return find_backend(planned.backend).on([planned]).recomputing(stage) if planned.recompute else None


def _inputs_of(plan: Plan, names: Sequence[str]) -> tuple[str, ...]:
    """Return the graph inputs among names, each once."""
    return tuple(dict.fromkeys(name for name in names if name in plan.graph_inputs))


def _reason(error: Exception) -> str:
    text = printable(str(error))
    return text if isinstance(error, HeterpsError) else f"{type(error).__name__}: {text}"
