"""The PyTorch backend: models of PyTorch's own, and ONNX models through the op table in ``onnx_ops/``.

Left out: devices (a stage runs where its tensors are).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from heterps_compile.backends.borders import as_tensor
from heterps_compile.backends.contract import Backend, Reference, Stage
from heterps_compile.backends.find import BACKENDS, own_backend
from heterps_compile.backends.unsupported import UnsupportedNode
from heterps_compile.errors import BackendError
from heterps_compile.escape import printable
from heterps_compile.frontends.torch_attributes import attributes_put_back
from heterps_compile.frontends.torch_library import calls_flex_attention, traceable_settings
from heterps_compile.frontends.torch_reasons import whole_reason
from heterps_compile.frontends.torch_source import TorchSource
from heterps_compile.ir.graph import ONNX, TORCH, Graph
from heterps_compile.ir.partition import Boundary, Partition, StageCut, cut_graph
from heterps_compile.packages import need
from heterps_compile.plan.weights import weight_without_numbers

from .example_inputs import generate_inputs
from .lower import OpGraph, lower_stage
from .onnx_stage import OnnxStage
from .print_stage import AnyStage, print_stage
from .read_stage import read_stage
from .recomputing import Recomputing
from .stage import TorchStage, build_stage
from .weights import held_tensors, save_weights


@dataclass(frozen=True, slots=True)
class TorchBackend(Backend):
    """Stages as ``nn.Module`` objects that share the model's parameters."""

    name = "torch"
    families = BACKENDS["torch"].families
    capabilities = BACKENDS["torch"].capabilities

    def tolerance(self, family: str) -> float:
        """Return the largest difference that verification allows: a model of another family has another runtime."""
        return 1e-5 if family == TORCH else 1e-4

    def declared_ops(self) -> Mapping[tuple[str, str], Sequence[int]]:
        """Give, for every ONNX op of the table by domain ("" for ONNX's own) and name, the opsets of its versions."""
        need("listing the ONNX ops of the backend 'torch'", "onnx")
        from .onnx_ops.table import declared_ops  # noqa: PLC0415 - the table only where somebody asks

        return declared_ops()

    def unsupported(self, graph: Graph) -> list[UnsupportedNode]:
        """Return the nodes that no stage could run; a model of PyTorch's own has none."""
        if graph.family != ONNX:
            return []
        from .onnx_backend import unsupported_in_onnx  # noqa: PLC0415 - onnx only for ONNX models

        return unsupported_in_onnx(graph)

    def unwritable(self, graph: Graph) -> str:
        """Say which node keeps a stage from being written as source; "" where all can be.

        The whole model is written as one stage, without its weights. Of an ONNX model, whose ops are traced for that,
        only where something in it reads elements of tensors (``onnx_backend.py``).
        """
        if graph.family == ONNX:
            from .onnx_backend import may_read_elements  # noqa: PLC0415 - onnx only for ONNX models

            if not may_read_elements(graph):
                return ""
        if unnumbered := weight_without_numbers(graph):
            return f"{printable(unnumbered)!r} lies on torch's device 'meta', which has shapes and no numbers"
        whole = cut_graph(graph, [range(len(graph.nodes))])
        try:
            stage: Any = self.build(graph, whole)[0]
            shown, ops, module = _lower(graph, stage, 0)
            print_stage(shown, module, ops, held_tensors(module, 0))
        except BackendError as error:
            return str(error).partition(": ")[2]
        return ""

    def build(self, graph: Graph, partition: Partition) -> tuple[Any, ...]:
        """Build every stage; parameters and buffers are the model's own, under their own names.

        Raises:
            UnsupportedOpError: naming a node of an ONNX model that the op table cannot run.
            BackendError: naming stage and node.
        """
        if graph.family == ONNX:
            from .onnx_backend import build_onnx_stages  # noqa: PLC0415 - onnx only for ONNX models

            return build_onnx_stages(graph, partition)
        return tuple(build_stage(graph, cut) for cut in partition.stages)

    def reference(self, graph: Graph) -> Reference:
        """Return the whole model as its owner wrote it, not as it was traced; an ONNX model in ONNX Runtime.

        Running it raises:
            BackendError: saying why it cannot run on the inputs.
        """
        if graph.family == ONNX:
            return own_backend(ONNX).reference(graph)
        source: TorchSource = graph.source
        whole, is_eager = source.whole(), calls_flex_attention(source.notes, graph.name)

        def run(values: Mapping[str, Any]) -> tuple[Any, ...]:
            args, kwargs = source.call.unbind(values)
            try:
                with traceable_settings(whole, are_functions_eager=is_eager):
                    returned = whole(*args, **kwargs)
            except Exception as error:
                raise BackendError(
                    f"the whole model {graph.name!r} cannot run on these inputs: {whole_reason(error)}; if they "
                    f"were generated to verify its stages, --no-verify (verify=False) leaves that out"
                ) from error
            return source.call.disassemble(returned)

        return run

    @contextmanager
    def reproducible(self, graph: Graph, seed: int) -> Iterator[None]:
        """Seed PyTorch's random numbers; on leaving put back their state, the model's buffers and what else it changes.

        A node draws from the random numbers when it runs: masks of dropout are the same for the whole model and for
        stages that run nodes in the same order. ONNX Runtime draws its own.
        """
        if graph.family == ONNX:
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                yield
            return
        source: TorchSource = graph.source
        written = {name for names in source.writes.values() for name in names}
        buffers = {id(t): t for n, t in source.tensors.items() if n in written or not isinstance(t, nn.Parameter)}
        whole = source.whole()
        tables: list[tuple[dict[str, Any], dict[str, Any]]] = []
        attributes: AbstractContextManager[Any] = nullcontext()
        if isinstance(whole, nn.Module):
            buffers.update((id(t), t) for t in whole.buffers())
            attributes = attributes_put_back(whole)
            tables += [(module._buffers, dict(module._buffers)) for module in whole.modules()]
        kept = [(buffer, buffer.detach().clone()) for buffer in buffers.values()]
        with torch.random.fork_rng(), attributes:
            torch.manual_seed(seed)
            try:
                yield
            finally:
                for table, entries in tables:  # a forward may put a new tensor into the place of a buffer
                    table.update(entries)
                with torch.no_grad():
                    for buffer, before in kept:
                        buffer.copy_(before)

    def lean(self, graph: Graph) -> AbstractContextManager[Any]:
        """Keep nothing for a backward that nobody asks for; a PyTorch model may ask for one in its own forward.

        Nothing is given back: tensors lie in the model's own memory, or in a map that may have been written to.
        """
        return torch.no_grad() if graph.family == ONNX else nullcontext()

    def recomputing(self, module: Any) -> Recomputing:
        """Return what runs a module so that its backward runs it again."""
        return Recomputing(module)

    def example_inputs(self, graph: Graph, seed: int) -> dict[str, Any]:
        """Generate seeded inputs by name; see ``example_inputs.py`` for the rules, ``onnx_inputs.py`` for ONNX's."""
        if graph.family == ONNX:
            return own_backend(ONNX).example_inputs(graph, seed)
        return generate_inputs(graph, seed)

    def write(
        self, graph: Graph, stages: Sequence[Stage], cuts: Sequence[StageCut], directory: Path
    ) -> list[list[str]]:
        """Write ``stage_i.py`` and ``stage_i.safetensors`` for every stage.

        Raises:
            BackendError: naming stage, node and op of what cannot be written.
        """
        written = []
        for stage, cut in zip(stages, cuts, strict=True):
            names = [f"stage_{cut.index}.py", f"stage_{cut.index}.safetensors"]
            shown, ops, module = _lower(graph, stage, cut.index)
            held = held_tensors(module, cut.index)
            source = print_stage(shown, module, ops, held)
            (directory / names[0]).write_text(source, encoding="ascii")
            save_weights(held, directory / names[1], cut.index)
            written.append(names)
        return written

    def read(self, directory: Path, files: Sequence[Sequence[str]], cuts: Sequence[Boundary]) -> tuple[Any, ...]:
        """Read stages back; see ``read_stage.py``.

        Raises:
            BackendError: naming stage and file.
        """
        stages = []
        for (source, weights, *_), cut in zip(files, cuts, strict=True):
            stage = read_stage(directory / source, directory / weights, cut.index)
            found = (tuple(getattr(stage, "inputs", ())), tuple(getattr(stage, "outputs", ())))
            if found != (tuple(cut.inputs), tuple(cut.outputs)):
                raise BackendError(
                    f"stage {cut.index}: {source!r} is not the stage of this plan: it takes {list(found[0])} and gives "
                    f"{list(found[1])}; compile the model again"
                )
            stage.register_forward_pre_hook(_arrays_to_tensors)
            stages.append(stage)
        return tuple(stages)


def _arrays_to_tensors(_: nn.Module, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Let a written stage take the arrays that a caller of an ONNX model gives."""
    return tuple(as_tensor(value, "input") if isinstance(value, np.ndarray) else value for value in values)


def _lower(graph: Graph, stage: Stage, index: int) -> tuple[Graph, OpGraph, AnyStage]:
    if isinstance(stage, TorchStage):
        return graph, lower_stage(graph, stage), stage
    if isinstance(stage, OnnxStage):
        from .lower_onnx import lower_onnx_stage  # noqa: PLC0415 - onnx only for ONNX models

        return *lower_onnx_stage(graph, stage), stage
    raise BackendError(f"stage {index} is a {type(stage).__name__} that was read from a folder; copy that folder")
