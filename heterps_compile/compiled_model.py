"""A compiled model: its plan, the stages that run in this process, and its folder, saved and loaded.

Left out: how it is made (``api.py``), running it in several processes (``runtime/launch``).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from heterps_compile.backends.contract import Backend
from heterps_compile.backends.drawn_keys import drawing_keys
from heterps_compile.backends.find import find_backend
from heterps_compile.backends.mixed import MixedBackend
from heterps_compile.backends.shared_state import keep_mode, share_state
from heterps_compile.cost.layer_cost import LayerCost
from heterps_compile.errors import InputError, UnknownNameError
from heterps_compile.escape import printable
from heterps_compile.ir.graph import Graph
from heterps_compile.ir.layers import LayerGraph
from heterps_compile.ir.partition import Partition
from heterps_compile.logger import LOG
from heterps_compile.notebook import html_of
from heterps_compile.plan.plan import MIXED, Plan
from heterps_compile.plan.scoring_files import plan_for_scoring
from heterps_compile.plan.total_columns import Summary
from heterps_compile.process_state import alone, beside
from heterps_compile.runtime.in_process import run_stages
from heterps_compile.runtime.signature import Signature, signature_of_plan


@dataclass(frozen=True, slots=True)
class ScoringStages:
    """The stages of a model compiled for training as they are in evaluation mode.

    Attributes:
        stages: What runs, one a stage.
        signature: How calls map to the graph's inputs and outputs in that
            mode.
        graph: The whole model in that mode; None where it was loaded from a
            folder.
        partition: How it was cut; None where it was loaded from a folder.
    """

    stages: tuple[Any, ...]
    signature: Signature
    graph: Graph | None = None
    partition: Partition | None = None


@dataclass(frozen=True, repr=False)
class CompiledModel:
    """A model cut into stages that run.

    Attributes:
        plan: Decisions, estimates, provenance.
        stages: What runs, one a stage: ``nn.Module`` for the torch backend.
        signature: How calls map to graph inputs, and graph outputs to results.
        graph: The whole model; None where it was loaded from a folder.
        partition: How it was cut; None where it was loaded from a folder.
        layers: Its layers; None where it was loaded from a folder.
        costs: The work of each layer, in the same order; empty where it was
            loaded from a folder.
        scoring: Gives the stages in evaluation mode of a model compiled for
            training; None for others.
        directory: The folder it was saved to or loaded from; None for none.

    Examples:
        >>> import heterps_compile, torch
        >>> model, batch = torch.nn.Linear(64, 8), torch.ones(128, 64)
        >>> compiled = heterps_compile.compile(model, (batch,), method="exact")
        >>> len(compiled.stages) == len(compiled.plan.stages)
        True
        >>> bool((compiled.run(batch) == model(batch)).all())
        True
    """

    plan: Plan
    stages: tuple[Any, ...]
    signature: Signature = field(repr=False)
    graph: Graph | None = field(default=None, repr=False)
    partition: Partition | None = field(default=None, repr=False)
    layers: LayerGraph | None = field(default=None, repr=False)
    costs: tuple[LayerCost, ...] = field(default=(), repr=False)
    scoring: Callable[[], ScoringStages] | None = field(default=None, repr=False)
    directory: Path | None = field(default=None, compare=False)

    @property
    def summary(self) -> Summary:
        """Summarise the plan for print, commands and notebooks."""
        return Summary(self.plan, None if self.directory is None else str(self.directory))

    def __repr__(self) -> str:
        return f"CompiledModel({self.plan!r})"

    def __str__(self) -> str:
        from heterps_compile.plan.plan_view import plan_text  # noqa: PLC0415 - rich, only where it is printed

        return plan_text(self.summary)

    def _repr_html_(self) -> str:
        """Return how a notebook shows the model."""
        return html_of(self)

    def eval(self) -> "CompiledModel":
        """Return the model in evaluation mode, as a module's ``eval()``.

        One that was compiled for inference is that already. Stages of torch
        share their tensors with these, so that what is trained here is scored
        with there; stages of jax have the arrays as they are at this call.

        Raises:
            RunError: where a model compiled for training cannot score, saying
                why.
        """
        plan = plan_for_scoring(self.plan)
        if self.scoring is None:
            return replace(self, plan=plan)
        other = self.scoring()
        stages = tuple(
            stage if stage is trained else keep_mode(share_state(stage, trained), training=False)
            for stage, trained in zip(other.stages, self.stages, strict=True)
        )
        return CompiledModel(plan, stages, other.signature)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run all stages here, in the mode the model was compiled in.

        A model compiled for training in training mode drops at random and moves
        running statistics, as the module itself would; ``eval().run(...)``
        scores.

        Takes what the model takes and returns what the model returns, structure
        included: right after ``compile`` in objects of the model's own types,
        after ``load`` in plain ones with the same keys and attributes, so that
        no library is needed (``frontends/results.py``). An ONNX model takes
        arrays in the order of its inputs or by their names, and returns a list
        of arrays, as an ONNX Runtime session does.

        Raises:
            InputError: where the arguments are not those of the model.
        """
        values = self.signature.bind(args, kwargs)
        with beside(), drawing_keys():
            results = run_stages(self.plan.stages, self.stages, values, self.plan.graph_outputs)
        return self.signature.assemble(results)

    def save(
        self,
        directory: str | Path,
        *,
        force: bool = False,
        stablehlo: bool = False,
        beside: Mapping[str, str] | None = None,
    ) -> "CompiledModel":
        """Write ``plan.json``, the stages and a README, as a whole.

        Returns the model with its artefacts named.

        Args:
            directory: The folder; it is made, or replaced where a compilation
                wrote it before.
            force: Replace a folder that no compilation wrote.
            stablehlo: Write stages of the jax backend as StableHLO too.
            beside: Texts of further files by name, such as ``pool.toml``.

        Raises:
            InputError: where the folder cannot be written, or is somebody
                else's.
        """
        from heterps_compile.plan.folder import write_folder  # noqa: PLC0415 - pydantic only when saving

        if self.graph is None or self.partition is None:
            raise InputError("a model loaded from a folder is not saved again; copy its folder")
        backend, graph, cuts = backend_of(self.plan), self.graph, self.partition.stages
        if stablehlo:
            backend = backend.exporting("stablehlo")

        def write(target: Path) -> list[list[str]]:
            with alone():
                return backend.write(graph, self.stages, cuts, target)

        scoring = self._write_scoring()
        plan = write_folder(Path(directory), self.plan, write, scoring, beside=beside, force=force)
        LOG.info("wrote %s", printable(str(directory)))
        return replace(self, plan=plan, directory=Path(directory))

    def _write_scoring(self) -> Callable[[Path], list[list[str]]] | None:
        """Return what writes the stages in evaluation mode; None where they are those of the training, or none."""
        other = None if self.scoring is None or not _can_score(self.plan) else self.scoring()
        if other is None or other.graph is self.graph or other.graph is None or other.partition is None:
            return None
        backend, stages, graph, cuts = backend_of(self.plan), other.stages, other.graph, other.partition.stages

        def write(target: Path) -> list[list[str]]:
            with alone():
                return backend.write(graph, stages, cuts, target)

        return write


def _can_score(plan: Plan) -> bool:
    return plan.scoring is not None and not plan.scoring.refused


def backend_of(plan: Plan) -> Backend:
    """Return the backend that reads and writes the stages of a plan."""
    if plan.backend != MIXED:
        return find_backend(plan.backend).on(plan.stages)
    return MixedBackend({name: find_backend(stage.backend) for stage in plan.stages for name, _ in stage.units}).on(
        plan.stages
    )


def load(
    directory: str | Path, *, expect_sha256: str | None = None, trust: Literal["code", "data"] = "code"
) -> CompiledModel:
    """Load a folder that ``save`` or the command wrote.

    Stages of torch and jax are code, which this runs.

    Load only what you would run. The hashes in ``plan.json`` find damage: who
    can write an artefact can write the plan as well. For a folder that came
    over a network, pass the hash that its maker told you in another way
    (``expect_sha256``), or take no code from it at all (``trust="data"``).

    Args:
        directory: The folder.
        expect_sha256: SHA-256 of its ``plan.json``, which covers every
            artefact, since it holds their hashes; it is checked before anything
            else is looked at. ``heterps-compile show DIR -v`` prints it.
        trust: ``"code"`` to run what is in the folder; ``"data"`` to refuse a
            folder whose stages are code. Stages of ONNX Runtime are data.

    Of a folder compiled for training it gives the stages that train;
    ``load(DIR).eval()`` gives those that score.

    Raises:
        InputError: no such folder, or no plan in it, or its stages are code and
            ``trust`` is ``"data"``.
        PlanError: the plan is not what its schema says.
        StalePlanError: an artefact is not the one the plan was written with, or
            the plan is not the expected one.

    Examples:
        >>> import heterps_compile, tempfile, torch
        >>> model, batch = torch.nn.Linear(64, 8), torch.ones(128, 64)
        >>> compiled = heterps_compile.compile(model, (batch,), method="exact")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     saved = compiled.save(folder + "/out")
        ...     loaded = heterps_compile.load(folder + "/out")
        >>> bool((loaded.run(batch) == compiled.run(batch)).all())
        True
    """
    from heterps_compile.plan.folder import read_folder  # noqa: PLC0415 - pydantic only when loading

    if trust not in ("code", "data"):
        raise UnknownNameError("trust", str(trust), ("code", "data"))
    plan, files = read_folder(Path(directory), expect_sha256=expect_sha256)
    if trust == "data":
        _refuse_code(plan, str(directory))
    LOG.info("loading %s, stages: %d", printable(str(directory)), len(plan.stages))
    names = [[path.name for path in paths] for paths in files]
    stages = backend_of(plan).read(Path(directory), names, plan.stages)
    made = CompiledModel(plan, stages, signature_of_plan(plan), directory=Path(directory))
    if plan.scoring is None or plan.scoring.refused:
        return made

    scoring = plan_for_scoring(plan)
    if scoring.artifacts == plan.artifacts:
        return replace(made, scoring=lambda: ScoringStages(stages, signature_of_plan(scoring)))
    for stage in stages:
        keep_mode(stage, training=True)

    def read_scoring() -> ScoringStages:
        of_stages = [[artifact.file for artifact in files] for files in scoring.artifacts]
        read = backend_of(plan).read(Path(directory), of_stages, scoring.stages)
        return ScoringStages(read, signature_of_plan(scoring))

    return replace(made, scoring=read_scoring)


def _refuse_code(plan: Plan, shown: str) -> None:
    """Refuse stages that are code.

    Raises:
        InputError: naming the first.
    """
    for stage, files in zip(plan.stages, plan.artifacts, strict=True):
        backend = find_backend(stage.backend)
        if not (backend.capabilities.stages_are_data):
            raise InputError(
                f"stage {stage.index} of {shown!r} ({files[0].file}) is code of the backend {stage.backend!r}, and "
                f"only data are trusted; load it where you trust who made it (trust='code', expect_sha256=...), or "
                f"have it compiled for onnxruntime"
            )
