"""A backend for each device type: every stage is built, written and read by the backend of its device.

Values are converted where they enter a stage, without a copy where memory can be shared. What the whole model gives
is what the backends of its last stages give.

Left out: gradients across backends, which ranks of a pipeline send each other (``runtime/pipeline/``).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from heterps_compile.errors import BackendError, InputError
from heterps_compile.ir.graph import TORCH, Graph
from heterps_compile.ir.partition import Boundary, Partition, StageCut
from heterps_compile.plan.plan import MIXED

from .borders import as_array, as_tensor
from .contract import Backend, Capabilities, Reference, Stage, StageDevice

_Build = Callable[[Graph, Partition], tuple[Stage, ...]]


@dataclass(slots=True, eq=False)
class BorderStage:
    """A stage that takes values of any backend."""

    stage: Stage
    take: Callable[[Any, str], Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        """Run the stage on its inputs in order."""
        return self.stage(*(self.take(value, name) for name, value in zip(self.inputs, values, strict=True)))


@dataclass(frozen=True, slots=True)
class MixedBackend(Backend):
    """One backend a device type.

    Attributes:
        by_device: Backends by the name or the kind of a device type; a name goes before a kind.
        of_stage: The backend of every stage, once :meth:`on` has been told the devices.
        notes: What the user should know of that choice.
        families: The graph families that all of the backends take.
        capabilities: What all stages can do.
    """

    by_device: Mapping[str, Backend]
    name = MIXED

    of_stage: tuple[Backend, ...] = ()
    notes: tuple[str, ...] = ()
    families: tuple[str, ...] = field(init=False)
    capabilities: Capabilities = field(init=False)

    def __post_init__(self) -> None:
        first, *others = self._all()
        families = tuple(family for family in first.families if all(family in other.families for other in others))
        object.__setattr__(self, "families", families)
        object.__setattr__(self, "capabilities", self._of_all())

    def _of_all(self) -> Capabilities:
        """Return what all stages can do; numbers drawn at random follow a whole model where one backend draws them."""
        each = {backend.name: backend.capabilities for backend in self._all()}
        if len(each) == 1:
            return replace(*each.values(), exports=())
        return Capabilities(
            trains=all(of.trains for of in each.values()),
            own_threads=any(of.own_threads for of in each.values()),
            stages_are_data=all(of.stages_are_data for of in each.values()),
            recomputes=all(of.recomputes for of in each.values()),
            sparse_gradients=all(of.sparse_gradients for of in each.values()),
        )

    def tolerance(self, family: str) -> float:
        """Return what the least exact of the backends is allowed."""
        return max(backend.tolerance(family) for backend in self._all())

    @property
    def _first(self) -> Backend:
        """Choose a backend for the unsplit model, which each runs as its family does."""
        return next(iter(self.by_device.values()))

    def _all(self) -> tuple[Backend, ...]:
        return self.of_stage or tuple(self.by_device.values())

    def on(self, stages: Sequence[StageDevice]) -> "MixedBackend":
        """Return the backend that knows which device each stage is for.

        Raises:
            InputError: naming a device type that no backend was given for.
        """
        by_index: dict[int, Backend] = {}
        for stage in stages:
            backend = self.by_device.get(stage.device) or self.by_device.get(stage.kind)
            if backend is None:
                raise InputError(
                    f"stage {stage.index} is on {stage.device!r} (a {stage.kind}), and no backend is given for that; "
                    f"given are {self._spelled()}: add {stage.device}=BACKEND"
                )
            self._refuse_several(stage, backend)
            by_index[stage.index] = backend
        placed = {
            backend.name: backend.on([s for s in stages if by_index[s.index].name == backend.name])
            for backend in by_index.values()
        }
        used = {stage.device for stage in stages} | {stage.kind for stage in stages}
        notes = [note for backend in placed.values() for note in backend.notes]
        notes += [
            f"no stage is on {device!r}: its backend {backend.name!r} is not used"
            for device, backend in self.by_device.items()
            if device not in used
        ]
        of_stage = tuple(placed[by_index[stage.index].name] for stage in stages)
        return replace(self, of_stage=of_stage, notes=tuple(notes))

    def _refuse_several(self, stage: StageDevice, backend: Backend) -> None:
        """Refuse a stage whose device types have backends of their own: it is written once, for all its replicas.

        Raises:
            InputError: naming them.
        """
        for part in stage.by_type:
            other = self.by_device.get(part.device) or self.by_device.get(part.kind)
            if other is None or other.name != backend.name:
                raise InputError(
                    f"stage {stage.index} has replicas on {stage.device!r} and on {part.device!r}, which are to run on "
                    f"{backend.name!r} and on {'no backend' if other is None else repr(other.name)}; a stage is "
                    f"written once: give both the same backend, or leave --mixed-stages out"
                )

    def of_stages(self, count: int) -> tuple[Backend, ...]:
        """Return the backend of every stage."""
        return self.of_stage

    def _spelled(self) -> str:
        return ",".join(f"{device}={backend.name}" for device, backend in self.by_device.items())

    def build(self, graph: Graph, partition: Partition) -> tuple[Stage, ...]:
        """Build every stage by its own backend.

        Raises:
            BackendError: naming stage and op.
        """
        return self._build(graph, partition, lambda backend: backend.build)

    def build_in_float64(self, graph: Graph, partition: Partition) -> tuple[Stage, ...]:
        """Build every stage of a model in float64 by its own backend.

        Raises:
            BackendError: naming stage and op.
        """
        return self._build(graph, partition, lambda backend: backend.build_in_float64)

    def _build(self, graph: Graph, partition: Partition, how: Callable[[Backend], _Build]) -> tuple[Stage, ...]:
        made = self._each(
            partition.stages, lambda backend, cuts: how(backend)(graph, Partition(tuple(cuts), partition.replicated))
        )
        return tuple(self._border(stage, cut) for stage, cut in zip(made, partition.stages, strict=True))

    def unwritable(self, graph: Graph) -> str:
        """Say which node keeps a stage from being written by any of the backends; "" where one can write all."""
        reasons = [backend.unwritable(graph) for backend in self._all()]
        return "" if "" in reasons else reasons[0]

    def reference(self, graph: Graph) -> Reference:
        """Run the unsplit model as its own family does."""
        return self._first.reference(graph)

    @contextmanager
    def reproducible(self, graph: Graph, seed: int) -> Iterator[None]:
        """Seed what every backend draws, and on leaving put back what running the model changes.

        Where there are several, a model of PyTorch drops nothing: each backend has masks of its own.
        """
        used = {backend.name: backend for backend in self._all()}
        with ExitStack() as entered:
            for backend in used.values():
                entered.enter_context(backend.reproducible(graph, seed))
                entered.enter_context(backend.buffers_put_back())
            if len(used) > 1 and graph.family == TORCH:
                from .torch.without_dropout import WithoutDropout  # noqa: PLC0415 - torch only for torch models

                entered.enter_context(WithoutDropout())
            yield

    def example_inputs(self, graph: Graph, seed: int) -> dict[str, Any]:
        """Generate inputs as the model's own family does."""
        return self._first.example_inputs(graph, seed)

    def write(
        self, graph: Graph, stages: Sequence[Stage], cuts: Sequence[StageCut], directory: Path
    ) -> list[list[str]]:
        """Write every stage by its own backend; give the names of the files of each.

        Raises:
            BackendError: naming stage and op.
        """
        inside = {cut.index: _inside(stage, cut) for stage, cut in zip(stages, cuts, strict=True)}
        return self._each(
            cuts, lambda backend, own: backend.write(graph, [inside[cut.index] for cut in own], own, directory)
        )

    def read(self, directory: Path, files: Sequence[Sequence[str]], cuts: Sequence[Boundary]) -> tuple[Stage, ...]:
        """Read every stage by its own backend.

        Raises:
            BackendError: naming stage and file.
        """
        names = {cut.index: found for cut, found in zip(cuts, files, strict=True)}
        made = self._each(cuts, lambda backend, own: backend.read(directory, [names[cut.index] for cut in own], own))
        return tuple(self._border(stage, cut) for stage, cut in zip(made, cuts, strict=True))

    def _each(self, cuts: Sequence[Any], work: Callable[[Backend, list[Any]], Sequence[Any]]) -> list[Any]:
        """Let each backend work on its own cuts, all at once; give the results in the order of the cuts."""
        results: dict[int, Any] = {}
        for backend in {backend.name: backend for backend in self.of_stage}.values():
            own = [cut for cut in cuts if self.of_stage[cut.index].name == backend.name]
            results.update(zip((cut.index for cut in own), work(backend, own), strict=True))
        return [results[cut.index] for cut in cuts]

    def _border(self, stage: Stage, cut: Boundary) -> BorderStage:
        take = as_tensor if self.of_stage[cut.index].capabilities.is_module else as_array
        return BorderStage(stage, take, tuple(cut.inputs), tuple(cut.outputs))


def _inside(stage: Stage, cut: StageCut) -> Stage:
    if not isinstance(stage, BorderStage):
        raise BackendError(f"stage {cut.index} is {type(stage).__name__}, not built by the backend {MIXED!r}")
    return stage.stage
