"""``compile()``: front end, passes, backend; from a model to stages that run.

Left out: how each step works (its own module), and the command line (``cli/``).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from heterps_compile.backends.contract import Backend
from heterps_compile.backends.find import (
    BACKENDS,
    differentiating_backend,
    find_backend,
    own_backend,
    training_backends,
)
from heterps_compile.backends.ops import refuse_constant_outputs, refuse_options, refuse_unsupported, why_unwritable
from heterps_compile.backends.shared_state import keep_mode
from heterps_compile.cluster.devices import Cluster
from heterps_compile.cluster.load import as_pool
from heterps_compile.compiled_model import CompiledModel, ScoringStages
from heterps_compile.cost.measured import ProfileSpec, read_measurements
from heterps_compile.cost.memory import AUTO, USUAL_OPTIMIZER
from heterps_compile.cost.precision import FULL
from heterps_compile.errors import BackendError, InputError
from heterps_compile.escape import short
from heterps_compile.ir.graph import TORCH as TORCH_FAMILY
from heterps_compile.ir.graph import Graph
from heterps_compile.ir.laws import verify_graph
from heterps_compile.ir.partition import Partition
from heterps_compile.logger import LOG
from heterps_compile.make_plan import make_plan
from heterps_compile.options import MOST_WHOLE, is_whole
from heterps_compile.packages import PYTORCH, need, need_all
from heterps_compile.passes.contract import Observer, Pass
from heterps_compile.passes.drafts import Draft, Emitted
from heterps_compile.passes.pipeline import DEFAULT, as_pipeline, pipeline_text, run_passes
from heterps_compile.passes.placement.methods import find_method
from heterps_compile.plan.command_options import ONNX, READ_ALREADY, READING, TORCH
from heterps_compile.plan.plan import MIXED, Plan
from heterps_compile.plan.planned_stage import PlannedStage
from heterps_compile.plan.request import (
    DEFAULT_CLUSTER,
    DEFAULT_METHOD,
    OPTIONS,
    PROVISIONERS,
    USUAL_SYNCHRONISATION,
    USUAL_TABLES,
    make_request,
)
from heterps_compile.problem_file.workload_file import is_workload_file
from heterps_compile.process_state import alone, gradients_on
from heterps_compile.progress import CancelToken, OnProgress, Watch, watching
from heterps_compile.runtime.signature import signature_of_graph
from heterps_compile.scoring import make_scoring, mode_notes
from heterps_compile.sync_rules.rule import EXACTNESSES
from heterps_compile.verification.divided import check_batch, naming_what_mixes
from heterps_compile.verification.draft import verify_draft


@gradients_on()
def compile(  # noqa: A001 - the product's verb
    model: Any,
    example_inputs: tuple[Any, ...] | Mapping[str, Any] = (),
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    cluster: str | Path | Cluster = DEFAULT_CLUSTER,
    objective: str = "cost",
    min_throughput: float | None = None,
    budget: float | str | None = None,
    batch: int | None = None,
    shapes: Mapping[str, int] | None = None,
    mode: str = "inference",
    reading: str | None = None,
    precision: str = FULL,
    optimizer: str = USUAL_OPTIMIZER,
    recompute: str = AUTO,
    method: str = DEFAULT_METHOD,
    backend: str | None = None,
    min_stages: int = 1,
    max_stages: int | None = None,
    mixed_stages: bool = False,
    provisioner: str = PROVISIONERS[0],
    synchronisation: str = USUAL_SYNCHRONISATION,
    allow: str = EXACTNESSES[0],
    tables: str = USUAL_TABLES,
    pins: Mapping[str, str] | None = None,
    forbidden: Sequence[tuple[str, str]] = (),
    warm_start: Plan | str | Path | None = None,
    profile: ProfileSpec | None = None,
    baselines: Sequence[str] = (),
    seed: int = 0,
    time_limit: float | None = None,
    passes: str | Sequence[Pass] | None = None,
    verify: bool = True,
    must_save: bool = False,
    dynamic_shapes: Any = None,
    on_progress: OnProgress | None = None,
    cancel: CancelToken | None = None,
    observer: Observer | None = None,
) -> CompiledModel:
    """Cut a model into stages, each on the devices it suits, at the lowest price.

    The stages are built, and verified against the whole model.

    Args:
        model: An ``nn.Module``, a ``torch.fx.GraphModule``, a
            ``torch.export.ExportedProgram``, the path of an ONNX file, an
            ``onnx.ModelProto`` or an ``onnx_ir.Model``.
        example_inputs: Positional inputs of a PyTorch model, of the shapes it
            is compiled for; of an ONNX model values by input.
        example_kwargs: Its keyword inputs.
        cluster: A pool, the name of a built-in one, or the path of a TOML file.
        objective: What the plan is the best in: ``"cost"``, the price of a
            million samples; ``"price"``, that of an hour at the floor;
            ``"throughput"``; ``"latency"`` of one batch; ``"max-load"``, the
            load of the busiest device with one unit a stage.
        min_throughput: Samples/s the plan must reach; None for no floor.
        budget: What the plan may cost in an hour, for ``throughput`` and
            ``latency``: a number in the pool's currency, or a price such as
            ``"5 USD/h"``; None for no limit.
        batch: Number of the batch dimension; 32 where an ONNX model leaves it
            free. One that model or inputs fix is opened, if samples do not mix.
        shapes: Numbers of other free dimensions, ``x_0`` where one has no name;
            of an ONNX model 128, or the nearest that it takes.
        mode: ``"inference"`` or ``"training"``.
        reading: What is minimised: ``"steady-state"``, or the simulated step,
            ``"one-batch-alone"``; None for the second in training alone.
        precision: What a run computes in, and is planned for: ``"fp32"``,
            ``"tf32"``, ``"bf16"`` or ``"fp16"``; weights stay float32. All but
            the first need stages of torch.
        optimizer: Whose states a training holds: ``"adam"``, ``"sgd"``,
            ``"momentum"``, ``"adafactor"`` or ``"adam-8bit"``.
        recompute: Which stages compute activations again in a backward:
            ``"auto"``, those that fit no other way, ``"never"``, ``"always"``.
        method: One of ``heterps_compile.passes.placement.methods``.
        backend: What the stages run on, or one for each device type by its name
            or kind: ``"cpu=onnxruntime,v100=torch"``; None for the model's own
            family.
        min_stages: The plan has at least so many stages.
        max_stages: And at most so many; None for no limit.
        mixed_stages: Let replicas of a stage be of several device types.
        provisioner: How stages get their replicas: ``"exact"``, or by a rule of
            the HeterPS paper at the floor, ``"closed-form"`` or ``"newton"``.
        synchronisation: How replicas agree: ``"all-reduce"``, rules by stage
            (``"embedding=servers, *=topk(density=0.01)"``) or ``"auto"``.
        allow: Up to which class ``"auto"`` goes: exact, bounded or any.
        tables: Where embedding tables lie: on parameter servers if no unit
            holds them (``"auto"``), in their stages (``"held"``), on servers
            (``"served"``), or wherever the plan is the best (``"cheapest"``).
        pins: Device types that layers must go to, by layer name, kind or
            pattern: ``{"embedding": "cpu-core"}``.
        forbidden: Types that they must not go to: ``[("fc*", "cpu-core")]``.
        warm_start: An old plan of the model, or the file or folder it lies in,
            for the search to begin from.
        profile: Measured times of layers, as ``heterps-compile profile`` writes
            them: a file; ``"v100=FILE"`` for a type of the pool, several with
            commas between; or a mapping from types to files.
        baselines: Other methods to try beside it, for two seconds each; the
            best plan of all is taken.
        seed: Of the search and of the inputs generated for verification.
        time_limit: Seconds the search may take; None for no limit.
        passes: The passes that run, as values or as text such as
            ``"group-layers,...,place-layers{proof_s=5},..."``;
            None for :data:`heterps_compile.passes.pipeline.DEFAULT`. Where they
            are others, a note of the plan says so.
        verify: Run the stages against the whole model on generated inputs.
        must_save: Refuse, before the search, a model whose stages run and
            cannot be saved; else a note of the plan says so.
        dynamic_shapes: Passed to ``torch.export.export``.
        on_progress: Called with a :class:`heterps_compile.progress.Progress` at
            the begin of every step and at most every 0.1 s within one; what it
            raises ends the compilation and reaches the caller.
        cancel: Ends the compilation once its ``is_set()``, from any thread.
        observer: Called with every pass and the draft after it.

    Raises:
        HeterpsError: one of its kinds, with a message that says thing, fault,
            numbers and way out.
        CancelledError: where ``cancel`` was set before the end.

    Examples:
        >>> import heterps_compile, torch
        >>> model, batch = torch.nn.Linear(64, 8), torch.ones(128, 64)
        >>> compiled = heterps_compile.compile(
        ...     model, (batch,), min_throughput=10_000, method="exact"
        ... )
        >>> [(stage.replicas, stage.device) for stage in compiled.plan.stages]
        [(1, 'cpu-core')]
        >>> compiled.run(batch).shape
        torch.Size([128, 8])
    """
    given, began = dict(locals()), time.perf_counter()
    pool = as_pool(cluster)
    request = make_request(pool.currency, **{name: given[name] for name in OPTIONS})
    measurements = None if profile is None else read_measurements(pool, profile)
    pipeline = as_pipeline(passes)
    # an unknown name and what is not installed are told before the long work
    asked: list[Callable[[], object]] = [partial(need_front_end, model)]
    asked += [partial(find_method, name) for name in (method, *baselines)]
    asked += [] if backend is None else [partial(find_backend, backend)]
    asked += [partial(need, "compiling for training", PYTORCH)] if mode == "training" else []
    need_all(asked)

    def read(model: Any) -> Graph:
        return read_model(
            model, example_inputs, example_kwargs, batch=batch, shapes=shapes, dynamic_shapes=dynamic_shapes
        )

    with watching(on_progress, cancel) as watch:
        progress = _Steps(pipeline, watch, observer, verify=verify)
        progress.begin()
        graph = read(model)
        verify_graph(graph)
        refuse_constant_outputs(graph)
        old = _old_plan(warm_start)
        chosen = choose_backend(graph, backend, mode)
        is_kept = old is not None and (old.backend, old.request.mode) == (chosen.name, mode)
        if backend is not None and mode == "training" and not is_kept:
            _refuse_untrained(chosen)
        refuse_options(chosen, graph, precision, recompute)
        unsaved = _refuse_early(chosen, graph, mode, must_save=must_save)
        graph = check_batch(graph)

        def build(graph: Graph, partition: Partition, stages: Sequence[PlannedStage]) -> tuple[Any, ...]:
            with alone():
                return chosen.on(stages).build(graph, partition)

        opened = Draft(
            graph=graph,
            cluster=pool,
            request=request,
            measurements=measurements,
            warm_start=() if old is None else old.stages,
            warm_fingerprints={} if old is None else old.fingerprints,
            baselines=tuple(baselines),
            can_recompute=chosen.capabilities.recomputes,
            makes_sparse=chosen.capabilities.sparse_gradients,
            splits_backward=chosen.capabilities.splits_backward,
            build=build,
        )
        progress.begin()
        with naming_what_mixes(graph):
            draft = run_passes(opened, pipeline, Emitted, progress)
        placed = chosen.on(draft.stages)
        with alone():
            verification, notes = verify_draft(placed, draft) if verify else (None, ())
            scored = make_scoring(model, draft, placed, read, verify=verify)
        progress.begin()
        plan = make_plan(draft, placed)
        total_s = time.perf_counter() - began
        unusual = (
            "" if pipeline == DEFAULT else f"made by other passes than the default ones: {pipeline_text(pipeline)}"
        )
        usual = own_backend(graph.family).name
        trained = backend is None and chosen.name != usual
        moved = f"stages are for {chosen.name} (--backend): those for {usual} cannot be trained" if trained else ""
        notes = (*plan.notes, *filter(None, (moved, unusual, unsaved)), *mode_notes(model, graph, mode), *notes)
        plan = replace(plan, verification=verification, notes=notes, total_s=total_s)
        if scored is not None:
            plan = replace(plan, scoring=scored.scoring, notes=(*plan.notes, *scored.notes))
        watch.check()
        LOG.info("compiled in %.3g s: %r", total_s, plan)
        made = CompiledModel(
            plan, draft.runnable, signature_of_graph(graph), graph, draft.partition, draft.layers, draft.costs
        )
        return made if scored is None or scored.stages is None else _that_scores(made, scored.stages)


class _Steps:
    """Tells each step as it begins: reading, every pass, verification; an observer that hands drafts on."""

    def __init__(self, passes: Sequence[Pass], watch: Watch, observer: Observer | None, *, verify: bool) -> None:
        self._names = ["reading", *(step.name for step in passes), "verify" if verify else "done", "done"]
        self._begun = 0
        self._watch, self._observer = watch, observer

    def begin(self) -> None:
        """Tell that the next step begins."""
        LOG.debug("step %d of %d: %s", self._begun, len(self._names) - 1, self._names[self._begun])
        self._watch.begin(self._names[self._begun], self._begun, len(self._names) - 1)
        self._begun += 1

    def __call__(self, step: Pass, draft: Draft) -> None:
        """Tell the step after a pass, and hand the draft on."""
        self.begin()
        if self._observer is not None:
            self._observer(step, draft)


def _that_scores(made: CompiledModel, others: ScoringStages) -> CompiledModel:
    """Return a model compiled for training with its stages in evaluation mode."""
    if others.stages is not made.stages:
        for stage in made.stages:
            keep_mode(stage, training=True)
    return replace(made, scoring=lambda: others)


def _old_plan(plan: Plan | str | Path | None) -> Plan | None:
    if isinstance(plan, (str, Path)):
        from heterps_compile.plan.source import read_plan  # noqa: PLC0415 - pydantic only when reading

        return read_plan(str(plan))
    return plan


def open_draft(
    model: Any,
    example_inputs: tuple[Any, ...] | Mapping[str, Any] = (),
    *,
    cluster: str | Path | Cluster = DEFAULT_CLUSTER,
    profile: ProfileSpec | None = None,
    **asked: Any,
) -> Draft:
    """Read a model, its pool and what is asked of them; arguments and errors are those of :func:`compile`."""
    pool = as_pool(cluster)
    reading = {option.name: asked.pop(option.name) for option in READING.options if option.name in asked}
    request = make_request(pool.currency, **asked)
    measurements = None if profile is None else read_measurements(pool, profile)
    verify_graph(graph := read_model(model, example_inputs, **reading))
    return Draft(graph=check_batch(graph), cluster=pool, request=request, measurements=measurements)


def read_model(
    model: Any,
    example_inputs: tuple[Any, ...] | Mapping[str, Any] = (),
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    batch: int | None = None,
    shapes: Mapping[str, int] | None = None,
    dynamic_shapes: Any = None,
) -> Graph:
    """Read a model with the front end of its kind; arguments and errors are those of :func:`compile`."""
    shapes = shapes or {}
    values = {
        "example_inputs": example_inputs,
        "example_kwargs": example_kwargs,
        "dynamic_shapes": dynamic_shapes,
        "batch": batch,
        "shapes": shapes,
    }
    READING.refuse(values, [name for name, value in values.items() if not _is_nothing(value)], _subject(model))
    for what, number in (("batch", batch), *((f"the number of {name!r} in shapes", n) for name, n in shapes.items())):
        if number is not None and not is_whole(number):
            raise InputError(f"{what} is {short(number)}; it must be a whole number from 1 to {MOST_WHOLE}")
    if isinstance(model, (str, Path)) and is_workload_file(model):
        raise InputError(
            f"{str(model)!r} is a workload file: costs without operations, from which no stages can be made; solve it "
            f"with the command (heterps-compile FILE)"
        )
    need_front_end(model)
    if _subject(model) == ONNX:
        from heterps_compile.frontends.onnx import import_onnx  # noqa: PLC0415 - onnx only for ONNX models

        return import_onnx(model, batch=batch, shapes=shapes, given=example_inputs)
    if isinstance(model, Graph):
        return model
    from heterps_compile.frontends.torch_fx import import_torch  # noqa: PLC0415 - torch only for torch models

    module: Any = model  # a torch model: its family was found without importing torch
    with alone():
        return import_torch(
            module,
            tuple(example_inputs),
            example_kwargs,
            batch=batch,
            shapes=shapes,
            dynamic_shapes=dynamic_shapes,
        )


def need_front_end(model: Any) -> None:
    """Refuse a model that cannot be read with what is installed.

    Raises:
        MissingPackageError: naming what to install.
    """
    family = _subject(model)
    if family == ONNX:
        need("reading an ONNX model", "onnx")
    elif family == TORCH:
        need("reading a PyTorch model", PYTORCH)


def _subject(model: Any) -> str:
    if isinstance(model, (str, Path)) or type(model).__module__.partition(".")[0] in ("onnx", "onnx_ir"):
        return ONNX
    return READ_ALREADY if isinstance(model, Graph) else TORCH


def _is_nothing(value: Any) -> bool:
    return value is None or (isinstance(value, (tuple, list, Mapping)) and not value)


def _refuse_early(backend: Backend, graph: Graph, mode: str, *, must_save: bool) -> str:
    """Refuse, before the search, what a backend cannot build; give why it could not write it, "" where it can."""
    with alone():
        refuse_unsupported(backend, graph)
        if mode == "training":
            _refuse_lost_backwards(graph)
        unsaved = why_unwritable(backend, graph)
    if unsaved and must_save:
        raise BackendError(unsaved)
    return unsaved


def _refuse_lost_backwards(graph: Graph) -> None:
    if graph.family == TORCH_FAMILY:
        from heterps_compile.frontends.torch_backwards import (  # noqa: PLC0415 - torch only for torch models
            refuse_lost_backwards,
        )

        refuse_lost_backwards(graph.name, graph.source.lost)


def _refuse_untrained(backend: Backend) -> None:
    """Refuse a backend for training whose stages do not train; several by device type keep their note.

    Raises:
        InputError: naming those that train.
    """
    if backend.name != MIXED and not backend.capabilities.trains:
        ways = training_backends()
        expected = " or ".join(ways)
        raise InputError(
            f"backend is {backend.name!r}, which cannot train; expected {expected}. Fix: --backend {ways[0]}"
        )


def choose_backend(graph: Graph, name: str | None, mode: str = "inference") -> Backend:
    """Return the backend of a name, or the graph's own; for a training one that trains, if it runs the graph.

    Raises:
        UnknownNameError: where there is none of that name.
        InputError: where it does not take the graph's family.
    """
    if name is None:
        own = own_backend(graph.family)
        other = own if mode != "training" or own.capabilities.trains else differentiating_backend()
        return own if other.unsupported(graph) else other
    backend = find_backend(name)
    if graph.family not in backend.families:
        fitting = [name for name, built_in in BACKENDS.items() if graph.family in built_in.families]
        raise InputError(
            f"the backend {name!r} takes models of {' or '.join(backend.families)}, and {graph.name!r} is of "
            f"{graph.family}; backends that take it: {', '.join(fitting)}"
        )
    return backend
