"""The jax backend: every stage a pure function, by way of its ONNX model, and what it keeps between calls.

Written, a stage is ``stage_0_jax.py`` and ``stage_0.safetensors``, and on request ``stage_0.stablehlo``.

A model in training mode stays so: a stage gives the new values of running statistics besides its outputs, and drops
at random with the key it is given.

Left out: other random numbers, and devices.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from heterps_compile.backends.contract import Backend, Reference, Stage
from heterps_compile.backends.find import BACKENDS, own_backend
from heterps_compile.backends.unsupported import UnsupportedNode
from heterps_compile.errors import BackendError
from heterps_compile.ir.graph import TORCH, Graph
from heterps_compile.ir.partition import Boundary, Partition, StageCut
from heterps_compile.packages import need

if TYPE_CHECKING:
    import torch

    from .stage import JaxStage
    from .torch_module import JaxModule

_NEEDED = "the backend 'jax' needs the package jax, 0.8 or newer; pip install 'heterps-compile[jax]'"


@dataclass(frozen=True, slots=True)
class JaxBackend(Backend):
    """Stages as pure functions of jax.

    Attributes:
        stablehlo: Whether to write every stage as StableHLO too, for the shapes of the graph's bindings.
    """

    name = "jax"
    families = BACKENDS["jax"].families
    capabilities = BACKENDS["jax"].capabilities

    stablehlo: bool = False

    def build(self, graph: Graph, partition: Partition) -> "tuple[JaxStage, ...]":
        """Build every stage in memory; jax compiles it when it is first called.

        Raises:
            UnsupportedOpError: naming stage, node and op that the table does not have.
            BackendError: naming stage and node.
        """
        stages: tuple[JaxStage, ...] = _jax_stages().build_stages(graph, partition)
        return stages

    def tolerance(self, family: str) -> float:
        """Return the largest difference that verification allows, relative to an output's scale."""
        return 1e-4

    def unsupported(self, graph: Graph) -> list[UnsupportedNode]:
        """Return the nodes that the table does not have; most of a PyTorch model are known when it is built."""
        found: list[UnsupportedNode] = _jax_stages().unsupported_nodes(graph)
        return found

    def declared_ops(self) -> Mapping[tuple[str, str], Sequence[int]]:
        """Give, for every op of the table by domain ("" for ONNX's own) and name, the opsets its rows begin at."""
        declared: Mapping[tuple[str, str], Sequence[int]] = _jax_stages().declared_ops()
        return declared

    def reference(self, graph: Graph) -> Reference:
        """Return the whole model, run by the runtime of its own family: ONNX Runtime or PyTorch.

        What PyTorch drops in training mode is another mask than jax's: it drops nothing here.
        """
        reference = own_backend(graph.family).reference(graph)

        def run(values: Mapping[str, Any]) -> tuple[Any, ...]:
            with _nothing_dropped(graph):
                return reference(values)

        return run

    @contextmanager
    def reproducible(self, graph: Graph, seed: int) -> Iterator[None]:
        """Seed what the reference draws, let stages drop nothing, and on leaving put back what running changes."""
        with (
            _jax_stages().nothing_drawn(),
            self.buffers_put_back(),
            own_backend(graph.family).reproducible(graph, seed),
            _nothing_dropped(graph),  # what a checkpoint computes again in the backward drops nothing either
        ):
            yield

    def buffers_put_back(self) -> AbstractContextManager[None]:
        """Return the context that on leaving puts back the buffers that stages have changed when they ran in it."""
        context: AbstractContextManager[None] = _jax_stages().buffers_put_back()
        return context

    def lean(self, graph: Graph) -> AbstractContextManager[None]:
        """Let stages read their parameters where these lie, and give them back after every call."""
        context: AbstractContextManager[None] = _jax_stages().lean_stages()
        return context

    def exporting(self, form: str) -> Backend:
        """Return the backend that writes every stage as StableHLO too."""
        return replace(self, stablehlo=True) if form in self.capabilities.exports else super().exporting(form)

    def threads(self, count: int) -> AbstractContextManager[None]:
        """Hold what jax computes inside to so many threads; it takes every core otherwise."""
        from .threads import cpu_threads  # noqa: PLC0415 - only where something is run

        return cpu_threads(count)

    def example_inputs(self, graph: Graph, seed: int) -> dict[str, Any]:
        """Generate inputs by name as the model's own family takes them: arrays, or tensors of PyTorch."""
        return own_backend(graph.family).example_inputs(graph, seed)

    def write(
        self, graph: Graph, stages: Sequence[Stage], cuts: Sequence[StageCut], directory: Path
    ) -> list[list[str]]:
        """Write ``stage_i_jax.py`` and ``stage_i.safetensors`` for every stage.

        Raises:
            BackendError: naming stage, node and op of what cannot be written.
        """
        written: list[list[str]] = _jax_stages().write_stages(graph, stages, cuts, directory, stablehlo=self.stablehlo)
        return written

    def read(self, directory: Path, files: Sequence[Sequence[str]], cuts: Sequence[Boundary]) -> tuple[Stage, ...]:
        """Read stages back; see ``read_stage.py``.

        Raises:
            BackendError: naming stage and file.
        """
        stages: tuple[Stage, ...] = _jax_stages().read_stages(directory, files, cuts)
        return stages

    def as_module(self, stage: "JaxStage", device: "torch.device") -> "JaxModule":
        """Return a stage as a module of PyTorch, as a pipeline runs it."""
        from .torch_module import JaxModule  # noqa: PLC0415 - it needs jax and PyTorch

        return JaxModule(stage, device)

    def recomputing(self, module: "JaxModule") -> "Callable[..., tuple[Any, ...]]":
        """Return what runs a module with no residuals but what enters it (``jax.checkpoint``)."""
        return module.recomputing


def _nothing_dropped(graph: Graph) -> AbstractContextManager[Any]:
    """Return the context in which PyTorch's own models drop nothing."""
    if graph.family != TORCH:
        return nullcontext()
    from heterps_compile.backends.torch.without_dropout import WithoutDropout  # noqa: PLC0415 - PyTorch's models

    context: AbstractContextManager[Any] = WithoutDropout()
    return context


def _jax_stages() -> ModuleType:
    """Return the module that needs jax."""
    need("the backend 'jax'", BACKENDS["jax"].extra)
    import jax  # noqa: PLC0415 - an optional package, imported when this backend is used

    from . import stages  # noqa: PLC0415 - it needs jax

    if not hasattr(jax, "enable_x64"):
        raise BackendError(f"{_NEEDED} (installed is {jax.__version__})")
    return stages
