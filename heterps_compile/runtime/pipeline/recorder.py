"""Events of a run as they happen: actions, messages, waits, steps.

A call takes plain numbers by position, since it delays the work that it reports. Events without a listener are skipped.

Left out: what is made of it (``telemetry/``), and clocks of other processes: times are of ``time.perf_counter()``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Protocol

from heterps_compile.schedule.order import Phase


class LateLosses(Protocol):
    """The losses of a step that are told after it."""

    @property
    def are_known(self) -> bool:
        """Whether they are there."""
        ...

    def means(self) -> tuple[float, Mapping[str, float]]:
        """Wait for them; return the loss of the batch, and those that have names."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepNumbers:
    """The losses and gradients of a training step in numbers, as far as a rank knows them.

    Attributes:
        loss: Mean over the batch; None on ranks that do not compute it, and where it is late.
        gradient_norm: Of the whole model's gradients, before they are clipped; None where they are not.
        loss_scale: By which the losses were multiplied; None where they are not scaled.
        is_skipped: Whether gradients were not finite in float16, so that no weight was changed.
        losses: The means of those whose sum the loss is, by name; empty where it is one without a name, or not known.
    """

    loss: float | None = None
    gradient_norm: float | None = None
    loss_scale: float | None = None
    is_skipped: bool = False
    losses: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))


_NUMBERS = tuple(one.name for one in fields(StepNumbers))


def numbers_of(step: StepNumbers) -> dict[str, Any]:
    """Return the numbers of a step by name."""
    return {name: getattr(step, name) for name in _NUMBERS}


@dataclass(frozen=True, slots=True)
class StepResult(StepNumbers):
    """The result of a training step on a rank.

    Attributes:
        late: The losses, where replicas that step alone have not summed them yet; else None.
        step_s: Time of the step on this rank, the optimiser included; 0 until that has stepped.
    """

    late: LateLosses | None = field(default=None, kw_only=True)
    step_s: float = field(default=0.0, kw_only=True)

    def with_losses(self) -> "StepResult":
        """Return the same with its losses, which are waited for where they are late."""
        if self.late is None:
            return self
        loss, losses = self.late.means()
        return replace(self, loss=loss, losses=MappingProxyType(dict(losses)), late=None)


NOTHING_TOLD = StepResult()
"""Of a step of inference."""


class Recorder(Protocol):
    """Notes what one rank does; called on the thread that runs the stages, so every call must return at once."""

    def begin(self, step: int, stage: int, micro_batch: int, phase: Phase) -> None:
        """Note that an action begins, after its inputs have come."""
        ...

    def end(self, step: int, stage: int, micro_batch: int, phase: Phase, began_s: float, ended_s: float) -> None:  # noqa: PLR0917 - see above
        """Note that it has ended, before its outputs are sent."""
        ...

    def message(self, step: int, source: int, target: int, size_bytes: int, began_s: float, ended_s: float) -> None:  # noqa: PLR0917 - see above
        """Note, as the receiver, a message between two ranks: from when it was waited for until it was there."""
        ...

    def waited(self, step: int, what: str, began_s: float, ended_s: float) -> None:
        """Note time without computation: ``"receive"``, ``"send"``, ``"reduce"``, ``"data"`` or ``"pull"``."""
        ...

    def step_done(self, step: int, samples: int, result: StepResult, began_s: float, ended_s: float) -> None:
        """Note a whole step of so many samples (of the batch, not of this rank), and what it came to."""
        ...


class Recorders:
    """Several recorders as one; of none, it records nothing but what a subclass records itself.

    Attributes:
        recorders: Called in this order.
    """

    def __init__(self, recorders: Sequence[Recorder] = ()) -> None:
        self.recorders = tuple(recorders)

    def begin(self, step: int, stage: int, micro_batch: int, phase: Phase) -> None:
        """Pass it on."""
        for recorder in self.recorders:
            recorder.begin(step, stage, micro_batch, phase)

    def end(self, step: int, stage: int, micro_batch: int, phase: Phase, began_s: float, ended_s: float) -> None:  # noqa: PLR0917 - see above
        """Pass it on."""
        for recorder in self.recorders:
            recorder.end(step, stage, micro_batch, phase, began_s, ended_s)

    def message(self, step: int, source: int, target: int, size_bytes: int, began_s: float, ended_s: float) -> None:  # noqa: PLR0917 - see above
        """Pass it on."""
        for recorder in self.recorders:
            recorder.message(step, source, target, size_bytes, began_s, ended_s)

    def waited(self, step: int, what: str, began_s: float, ended_s: float) -> None:
        """Pass it on."""
        for recorder in self.recorders:
            recorder.waited(step, what, began_s, ended_s)

    def step_done(self, step: int, samples: int, result: StepResult, began_s: float, ended_s: float) -> None:
        """Pass it on."""
        for recorder in self.recorders:
            recorder.step_done(step, samples, result, began_s, ended_s)


def listener(recorder: Recorder, event: str) -> Callable[..., None] | None:
    """Return what to call at an event, named as a method of :class:`Recorder`; None where nothing listens."""
    if not isinstance(recorder, Recorders) or getattr(type(recorder), event) is not getattr(Recorders, event):
        own: Callable[..., None] = getattr(recorder, event)
        return own
    calls = [call for each in recorder.recorders if (call := listener(each, event)) is not None]
    all_of_them: Callable[..., None] = getattr(recorder, event)
    return (calls[0] if len(calls) == 1 else all_of_them) if calls else None
