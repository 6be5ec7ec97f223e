"""The compiled models of a search: one folder for every model, batch, precision and class that differ.

They say what a trial takes before it starts: the seconds of the plan's step, as often as the trial has steps, and a
fixed time to start it. What cannot be compiled for a class because it does not fit its memory, or the plan's replicas
its units, fits that class not; what cannot be compiled at all is told when the trial is to run.

Every model is compiled once, and its stages are run against the whole model once, unless the search leaves that out.

Left out: running a trial (``trial_run.py``).
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heterps_compile.errors import HeterpsError, InfeasibleError, InputError
from heterps_compile.escape import one_line, short
from heterps_compile.strict_json import read_json, write_json

from .compute_classes import ComputeClass, TrialCost
from .model_file import BuiltModel, ModelFile
from .parameters import Value
from .space import Config, split_parts
from .worker_classes import WorkerClass

if TYPE_CHECKING:
    from heterps_compile.plan.plan import Plan

START_S = 2.0
"""What a trial takes beside its steps: processes, data, a validation, a checkpoint; corrected by what is measured."""

_KEY_DIGITS = 20
_REFUSED = "refused.json"
_SEARCH_S = 10.0


@dataclass(frozen=True, slots=True)
class TrialPlan:
    """The compiled model of a trial on a class.

    Attributes:
        folder: Where it lies.
        batch: Samples in a step.
        widths: Replicas of every stage.
        step_s: What a step takes by the plan; 0 where there is none.
        memory_bytes: What it takes of a worker.
        misfit: Why it does not fit the class; "" where it does.
        fault: Why it cannot be compiled at all; "" where it can.
    """

    folder: Path
    batch: int
    widths: tuple[int, ...]
    step_s: float
    memory_bytes: float
    misfit: str = ""
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Length:
    """How a fidelity becomes steps.

    Attributes:
        unit: Of the fidelity: steps, samples or epochs.
        samples: In an epoch; 0 where epochs are not the unit.
    """

    unit: str
    samples: int = 0

    def steps(self, fidelity: float, batch: int) -> int:
        """Return how many steps of a batch a fidelity is, one at least."""
        return max(1, round(fidelity * self._samples_of_one(batch) / batch))

    def fidelity(self, steps: int, batch: int) -> float:
        """Return how far so many steps are, in the unit."""
        return steps * batch / self._samples_of_one(batch)

    def _samples_of_one(self, batch: int) -> int:
        return {"steps": batch, "samples": 1, "epochs": self.samples}[self.unit]


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Why a model has no plan; the attributes are those of ``TrialPlan``."""

    misfit: str
    fault: str

    @classmethod
    def of(cls, error: HeterpsError) -> "_Refusal":
        words = one_line(str(error))
        return cls(words, "") if isinstance(error, InfeasibleError) else cls("", words)


class TrialPlans:
    """Compiles what trials need, and predicts them."""

    def __init__(
        self,
        folder: Path,
        model: ModelFile,
        classes: Sequence[WorkerClass],
        seed: int,
        length: Length | None = None,
        *,
        verifies: bool = False,
    ) -> None:
        """Take what trials are compiled of.

        Args:
            folder: Where compiled models are kept.
            model: Builds them.
            classes: They are compiled for.
            seed: Of their weights.
            length: How fidelities become steps; None until it is known.
            verifies: Whether stages are run against the whole model; what differs cannot be compiled.
        """
        self._verifies = verifies
        self._folder, self._model, self._seed = folder, model, seed
        self._classes = {each.name: each for each in classes}
        self._known: dict[tuple[str, str], TrialPlan] = {}
        self.length = length

    def predict(self, config: Config, fidelity: float, of: ComputeClass) -> TrialCost:
        """Return what a trial takes on a class, as ``AssignedSearch`` asks for it."""
        plan = self.plan(config, of.name)
        if plan.misfit:
            return TrialCost(START_S, math.inf, plan.misfit)
        if plan.fault:
            return TrialCost(START_S, 0.0)
        assert self.length is not None, "known once a model is compiled"  # noqa: S101
        return TrialCost(START_S + self.length.steps(fidelity, plan.batch) * plan.step_s, plan.memory_bytes)

    def plan(self, config: Config, class_name: str) -> TrialPlan:
        """Return the compiled model of a configuration for a class, compiled where it was not yet."""
        of = self._classes[class_name]
        content = self._content(config, of)
        key = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:_KEY_DIGITS]
        values = split_parts(config)["plan"]
        told = json.dumps(values, sort_keys=True)
        if (key, told) not in self._known:
            self._known[key, told] = self._made(self._folder / key, config, of)
        return self._known[key, told]

    def _content(self, config: Config, of: WorkerClass) -> dict[str, Any]:
        """Return all that a compiled model depends on, within a search."""
        parts = split_parts(config)
        compiled = {"batch": parts["train"].get("batch"), "precision": parts["plan"].get("precision")}
        free = _cuts_batches(parts["plan"])
        return {
            "model": parts["model"],
            **compiled,
            "free": free,
            "units": dict(of.compute.types),
            "seed": self._seed,
        }

    def _made(self, folder: Path, config: Config, of: WorkerClass) -> TrialPlan:
        refused = folder.with_name(f"{folder.name}.{_REFUSED}")
        if not refused.is_file() and not (folder / "plan.json").is_file():
            folder.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._compile(folder, config, of)
            except HeterpsError as error:
                write_json(refused, _Refusal.of(error))
        try:
            if not refused.is_file():
                return _read(folder, split_parts(config)["plan"], of)
            refusal = read_json(refused, _Refusal)
        except HeterpsError as error:
            refusal = _Refusal.of(error)
        return TrialPlan(folder, 0, (), 0.0, 0.0, refusal.misfit, refusal.fault)

    def _compile(self, folder: Path, config: Config, of: WorkerClass) -> None:
        from heterps_compile.api import compile as compile_model  # noqa: PLC0415 - the passes, only where compiled

        parts = split_parts(config)
        built = self._model.built(parts["model"], self._seed)
        options: dict[str, Any] = {}
        if "precision" in parts["plan"]:
            options["precision"] = parts["plan"]["precision"]
        if "batch" in parts["train"]:
            options["batch"] = parts["train"]["batch"]
        if _cuts_batches(parts["plan"]):
            options["dynamic_shapes"] = _free_batch(built)
        made = compile_model(
            built.model,
            built.inputs,
            example_kwargs=built.keywords or None,
            cluster=of.pool,
            mode="training",
            objective="throughput",
            seed=self._seed,
            time_limit=_SEARCH_S,
            verify=self._verifies,
            must_save=True,
            **options,
        )
        made.save(folder)


def _cuts_batches(values: Mapping[str, Value]) -> bool:
    """Whether a run cuts batches otherwise than the plan, for which their dimension must be free."""
    return "micro_batches" in values or "replicas" in values


def _free_batch(built: BuiltModel) -> Any:
    """Return the dynamic shapes of a module's inputs, their first dimension free; None for a file."""
    if isinstance(built.model, str):
        return None
    from torch.export import Dim  # noqa: PLC0415 - only where a module is compiled

    batch = Dim("batch")

    def shape(value: Any) -> dict[int, Any] | None:
        return {0: batch} if getattr(value, "ndim", 0) else None

    if built.keywords:
        return {name: shape(value) for name, value in built.keywords.items()}
    return tuple(shape(value) for value in built.inputs)


def _read(folder: Path, values: Mapping[str, Value], of: WorkerClass) -> TrialPlan:
    from heterps_compile.plan.source import read_plan  # noqa: PLC0415 - pydantic

    plan = read_plan(str(folder))
    widths = widths_of(plan, values)
    taken = Counter(
        s.of_replica(each)[0] for s, width in zip(plan.stages, widths, strict=True) for each in range(width)
    )
    has = Counter(dict(of.compute.types))
    if any(taken[name] > has[name] for name in taken):
        raise InfeasibleError(
            f"{len(plan.stages)} stages with {sum(widths)} replicas in all need as many units, and a worker of "
            f"class {of.name!r} has {of.units_words}"
        )
    memory = [0 if stage.memory is None else stage.memory.total_bytes for stage in plan.stages]
    memory_bytes = sum(each * width for each, width in zip(memory, widths, strict=True))
    return TrialPlan(folder, plan.batch, widths, _step_s(plan, values, of.compute.units), memory_bytes)


def widths_of(plan: "Plan", values: Mapping[str, Value]) -> tuple[int, ...]:
    """Return the replicas of every stage: those of ``plan.replicas`` in each, else the plan's.

    Raises:
        InputError: where they are no whole number.
    """
    replicas = _whole(values, "replicas")
    return tuple(stage.replicas for stage in plan.stages) if replicas is None else (replicas,) * len(plan.stages)


def _whole(values: Mapping[str, Value], name: str) -> int | None:
    value = values.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise InputError(f"plan.{name} is {short(value)}; it must be a whole number of 1 or more")
    return value


def _step_s(plan: "Plan", values: Mapping[str, Value], units: int) -> float:
    """Return what a step takes: of the run that the values ask for where its times are known, else of the plan."""
    from heterps_compile.runtime.pipeline.layout import StepShape, make_layout  # noqa: PLC0415 - only where predicted
    from heterps_compile.runtime.predict import step_on_cores  # noqa: PLC0415 - as above

    schedule = values.get("schedule")
    shape = StepShape(None if schedule is None else str(schedule), _whole(values, "micro_batches"))
    layout = make_layout(plan, training=True, replicas=widths_of(plan, values), step=shape)
    return step_on_cores(plan, layout, units) or plan.batch / plan.throughput_samples_per_s
