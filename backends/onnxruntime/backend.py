"""The ONNX Runtime backend: every stage is an ONNX model, cut out of the original or exported from PyTorch.

Written, a stage is ``stage_0.onnx``, and ``stage_0.onnx.data`` beside it where it has many weights.

Left out: training; annotating a whole model for ONNX Runtime's own partitioning (``annotate.py``).
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import onnx_ir as ir

from heterps_compile.backends.contract import Backend, Reference, Stage, StageDevice
from heterps_compile.backends.find import BACKENDS, own_backend
from heterps_compile.backends.onnx_stage.stage_models import stage_models, unwritable_nodes
from heterps_compile.backends.ops import backends_that_run
from heterps_compile.backends.unsupported import UnsupportedNode
from heterps_compile.errors import BackendError
from heterps_compile.frontends.onnx_inputs import generate_inputs
from heterps_compile.frontends.onnx_session import CPU, lean_sessions, release_pages, session_threads
from heterps_compile.ir.graph import ONNX, TORCH, Graph, Value
from heterps_compile.ir.partition import Boundary, Partition, StageCut

from .check_stage_file import check_stage_file
from .float64_stage import Float64Stage
from .providers import choose_providers
from .stage import LazySession, OnnxRuntimeStage
from .whole_model import WholeModel
from .write_stage import write_model


@dataclass(frozen=True, slots=True)
class OnnxRuntimeBackend(Backend):
    """Stages that ONNX Runtime runs; they take arrays or tensors and give arrays.

    Attributes:
        provider: ONNX Runtime's name of what the stages run on. Ops that it cannot run fall to the CPU, by ONNX
            Runtime's own choice.
        providers: The same for single stages, by index.
        notes: Stages whose device ONNX Runtime cannot reach here.
    """

    name = "onnxruntime"
    families = BACKENDS["onnxruntime"].families
    capabilities = BACKENDS["onnxruntime"].capabilities

    provider: str = CPU
    providers: Mapping[int, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def on(self, stages: Sequence[StageDevice]) -> "OnnxRuntimeBackend":
        """Run every stage on the provider of its kind of device, else on the CPU with a note."""
        providers, notes = choose_providers(stages)
        return replace(self, providers=providers, notes=notes)

    def _session(self, what: str, index: int, model: ir.Model | Path, graph: Graph | None = None) -> LazySession:
        others = tuple if graph is None else partial(backends_that_run, graph, without=self.name)
        return LazySession(what, model, self.providers.get(index, self.provider), others)

    def cannot_open(self, graph: Graph) -> str:
        """Say why ONNX Runtime does not take a graph, by opening a session of it, or give "" where it does."""
        if graph.family != ONNX:
            return ""  # its stages are exported first
        try:
            WholeModel.of(graph, self.provider).session.open()
        except BackendError as error:
            return str(error)
        return ""

    def tolerance(self, family: str) -> float:
        """Return the largest difference that verification allows, relative to an output's scale."""
        return 1e-4

    def threads(self, count: int) -> AbstractContextManager[None]:
        """Give sessions that are opened inside so many threads; they take every core otherwise."""
        return session_threads(count)

    def lean(self, graph: Graph) -> AbstractContextManager[None]:
        """Open sessions inside that use weights where they lie, each for one run."""
        return lean_sessions()

    def release(self, graph: Graph) -> None:
        """Give back the memory of external data that was read."""
        if graph.family == ONNX:
            release_pages(graph.source.model)

    def declared_ops(self) -> Mapping[tuple[str, str], Sequence[int]]:
        """Give, for every op that the installed ONNX Runtime has a CPU kernel for, the opsets its kernels begin at."""
        native: Any = import_module(
            "onnxruntime.capi.onnxruntime_pybind11_state"
        )  # compiled, so that no types are known
        found: dict[tuple[str, str], set[int]] = {}
        for kernel in native.get_all_opkernel_def():
            if kernel.provider == CPU:
                found.setdefault((kernel.domain, kernel.op_name), set()).add(kernel.version_range[0])
        return {op: sorted(opsets) for op, opsets in found.items()}

    def unsupported(self, graph: Graph) -> list[UnsupportedNode]:
        """Return the nodes of a PyTorch model that ONNX has nothing for; what ONNX Runtime runs, its session says.

        Raises:
            BackendError: naming the node of a PyTorch model that does what is done in training mode alone, or what
                makes sizes that depend on data where ONNX has nothing for that.
        """
        if graph.family == TORCH:
            from .training import refuse_training  # noqa: PLC0415 - torch only for torch models

            refuse_training(graph)
        found = unwritable_nodes(graph)
        if not found and graph.family == TORCH:
            from heterps_compile.backends.onnx_stage.export_stage import refuse_data_sizes  # noqa: PLC0415 - as above

            refuse_data_sizes(graph)
        return found

    def build(self, graph: Graph, partition: Partition) -> tuple[Stage, ...]:
        """Build every stage in memory; they share the model's weights. Sessions open on the first call.

        Raises:
            BackendError: where a cut cannot be made, naming stage, node and op.
        """
        if graph.family == TORCH:
            from .training import refuse_training  # noqa: PLC0415 - torch only for torch models

            refuse_training(graph, partition.stages)
        models = stage_models(graph, partition)
        return tuple(
            OnnxRuntimeStage(cut.inputs, cut.outputs, self._session(f"stage {cut.index}", cut.index, model, graph))
            for cut, model in zip(partition.stages, models, strict=True)
        )

    def build_in_float64(self, graph: Graph, partition: Partition) -> tuple[Stage, ...]:
        """Build every stage of a model in float64, where ONNX Runtime has few kernels; see ``float64_stage.py``.

        Raises:
            BackendError: where a cut cannot be made, naming stage, node and op.
        """
        models = stage_models(graph, partition)
        return tuple(
            Float64Stage(cut.inputs, cut.outputs, model, f"stage {cut.index}")
            for cut, model in zip(partition.stages, models, strict=True)
        )

    def reference(self, graph: Graph) -> Reference:
        """Return the whole model: in one session, or a PyTorch model as its owner wrote it."""
        return (
            WholeModel.of(graph, self.provider, partial(backends_that_run, graph, without=self.name))
            if graph.family == ONNX
            else own_backend(graph.family).reference(graph)
        )

    def reproducible(self, graph: Graph, seed: int) -> AbstractContextManager[None]:
        """Seed PyTorch for its own model; a session has no state to put back and no seed to set."""
        return nullcontext() if graph.family == ONNX else own_backend(graph.family).reproducible(graph, seed)

    def example_inputs(self, graph: Graph, seed: int) -> dict[str, Any]:
        """Generate what the model takes by name; :mod:`heterps_compile.frontends.onnx_inputs` says which arrays."""
        if graph.family != ONNX:
            return own_backend(graph.family).example_inputs(graph, seed)
        source: ir.Model = graph.source.model
        inputs = {name: Value(name, graph.values[name].dtype, graph.shape(name)) for name in graph.inputs}
        known = {
            name: Value(name, described.dtype, graph.shape(name))
            for table in (graph.values, graph.parameters)
            for name, described in table.items()
        }
        return generate_inputs(source.graph, inputs, known, seed, graph.source.given)

    def write(
        self, graph: Graph, stages: Sequence[Stage], cuts: Sequence[StageCut], directory: Path
    ) -> list[list[str]]:
        """Write every stage into a directory; give the names of the files of each, the one to open first.

        Raises:
            BackendError: naming the stage that cannot be written.
        """
        return [
            write_model(self._model(stage, cut), f"stage_{cut.index}.onnx", f"stage {cut.index}", directory)
            for stage, cut in zip(stages, cuts, strict=True)
        ]

    def _model(self, stage: Stage, cut: StageCut) -> ir.Model:
        if not isinstance(stage, OnnxRuntimeStage):
            raise BackendError(f"stage {cut.index} is {type(stage).__name__}, not built by the backend {self.name!r}")
        model = stage.session.model
        return ir.load(model) if isinstance(model, Path) else model

    def read(self, directory: Path, files: Sequence[Sequence[str]], cuts: Sequence[Boundary]) -> tuple[Stage, ...]:
        """Read stages back from the files ``write`` named, and open their sessions.

        Raises:
            BackendError: naming stage and file.
        """
        stages = []
        for cut, names in zip(cuts, files, strict=True):
            path = directory / names[0]
            check_stage_file(path, names, cut.index)
            session = self._session(f"stage {cut.index} ({path})", cut.index, path)
            if cut.outputs:
                _check_boundary(session, cut)
            stages.append(OnnxRuntimeStage(cut.inputs, cut.outputs, session))
        return tuple(stages)


def _check_boundary(session: LazySession, cut: Boundary) -> None:
    opened = session.open().session
    for kind, wanted, found in (
        ("inputs", cut.inputs, [value.name for value in opened.get_inputs()]),
        ("outputs", cut.outputs, [value.name for value in opened.get_outputs()]),
    ):
        if list(wanted) != found:
            raise BackendError(
                f"{session.what} has the {kind} {found}, and its plan says {list(wanted)}; compile again"
            )
