"""The ONNX Runtime backend: every stage is a part of the original model, with its own ops and names.

Written, a stage is ``stage_0.onnx``, and ``stage_0.onnx.data`` beside it where its weights exceed 1 GiB.

Left out: models of other families; annotating a whole model for ONNX Runtime's own partitioning.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, cast

import onnx_ir as ir

from heterps_compile.backends.contract import Reference, Stage
from heterps_compile.errors import BackendError
from heterps_compile.frontends.onnx_inputs import generate_inputs
from heterps_compile.frontends.onnx_session import CPU, in_memory
from heterps_compile.ir.graph import Graph, Value
from heterps_compile.ir.partition import Boundary, Partition, StageCut

from .parts import cut_model
from .stage import LazySession, OnnxRuntimeStage

_EXTERNAL_BEYOND_BYTES = 2**30


@dataclass(frozen=True, slots=True)
class OnnxRuntimeBackend:
    """Stages of ONNX models, run by ONNX Runtime.

    Attributes:
        provider: ONNX Runtime's name of what the stages run on. Ops that it cannot run fall to the CPU, by ONNX
            Runtime's own choice.
    """

    name: ClassVar[str] = "onnxruntime"
    families: ClassVar[tuple[str, ...]] = ("onnx",)
    tolerance: ClassVar[float] = 1e-4

    provider: str = CPU

    def build(self, graph: Graph, partition: Partition) -> tuple[Stage, ...]:
        """Build every stage in memory; they share the model's weights. Sessions open on the first call.

        Raises:
            BackendError: where a cut cannot be made.
        """
        parts = cut_model(graph, partition)
        return tuple(
            OnnxRuntimeStage(cut.inputs, cut.outputs, LazySession(f"stage {cut.index}", part, self.provider))
            for cut, part in zip(partition.stages, parts, strict=True)
        )

    def reference(self, graph: Graph) -> Reference:
        """Give the whole model in one session."""
        return _WholeModel.of(graph, self.provider)

    def reproducible(self, graph: Graph, seed: int) -> AbstractContextManager[None]:
        """Do nothing: a session holds no state that a run changes, and its random numbers cannot be tied to a seed."""
        return nullcontext()

    def example_inputs(self, graph: Graph, seed: int) -> dict[str, Any]:
        """Generate arrays by name; :mod:`heterps_compile.frontends.onnx_inputs` says which."""
        source: ir.Model = graph.source.model
        inputs = {name: Value(name, graph.values[name].dtype, graph.shape(name)) for name in graph.inputs}
        known = {
            name: Value(name, described.dtype, graph.shape(name))
            for table in (graph.values, graph.parameters)
            for name, described in table.items()
        }
        return generate_inputs(source.graph, inputs, known, seed)

    def write(
        self, graph: Graph, stages: Sequence[Stage], cuts: Sequence[StageCut], directory: Path
    ) -> list[list[str]]:
        """Write every stage into a directory; give the names of the files of each, the one to open first.

        Raises:
            BackendError: naming the stage that cannot be written.
        """
        return [_write(self._model(stage, cut), cut.index, directory) for stage, cut in zip(stages, cuts, strict=True)]

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
            session = LazySession(f"stage {cut.index} ({path})", path, self.provider)
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


def _write(model: ir.Model, index: int, directory: Path) -> list[str]:
    name = f"stage_{index}.onnx"
    weights = {value: value.const_value for value in model.graph.initializers.values()}
    size_bytes = sum(tensor.nbytes for tensor in weights.values() if tensor is not None)
    try:
        if size_bytes > _EXTERNAL_BEYOND_BYTES:
            ir.save(model, directory / name, external_data=f"{name}.data")
            return [name, f"{name}.data"]
        for value, tensor in weights.items():
            if tensor is not None:
                value.const_value = in_memory(tensor, value.name or "")
        ir.save(model, directory / name)
    except (ir.serde.SerdeError, ValueError) as e:
        raise BackendError(f"stage {index} cannot be written to {directory / name}: {e}") from e
    return [name]


@dataclass(frozen=True, slots=True)
class _WholeModel:
    """The unsplit model; what needs no computing is handed through."""

    graph: Graph
    session: LazySession
    computed: tuple[str, ...] = field(default=())

    @classmethod
    def of(cls, graph: Graph, provider: str) -> "_WholeModel":
        """Open it with each computed output once: a model may return a value twice, or one of its inputs."""
        source: ir.Model = graph.source.model
        outputs = list(dict.fromkeys(value for value in source.graph.outputs if value.producer() is not None))
        view = ir.GraphView(
            source.graph.inputs,
            outputs,
            nodes=source.graph,
            initializers=tuple(source.graph.initializers.values()),
            opset_imports=source.graph.opset_imports,
            name=source.graph.name,
        )
        model = ir.Model(cast(Any, view), ir_version=source.ir_version)  # a view is documented to do
        return cls(graph, LazySession("the whole model", model, provider), tuple(v.name or "" for v in outputs))

    def __call__(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        """Run on the graph inputs by name; give the graph outputs in order."""
        known = dict(values)
        feeds = {name: known[name] for name in self.graph.inputs}
        known.update(zip(self.computed, self.session.run(self.computed, feeds), strict=True))
        initializers = self.graph.source.model.graph.initializers
        return tuple(known[n] if n in known else initializers[n].const_value.numpy() for n in self.graph.outputs)
