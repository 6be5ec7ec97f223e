"""The PyTorch backend.

Left out: models of other families, and devices (a stage runs where its tensors are).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from heterps_compile.backends.contract import Stage
from heterps_compile.errors import BackendError
from heterps_compile.frontends.torch_source import TorchSource
from heterps_compile.ir.graph import Graph
from heterps_compile.ir.partition import Boundary, Partition, StageCut

from .example_inputs import generate_inputs
from .lower import lower_stage
from .print_stage import print_stage
from .read_stage import read_stage
from .stage import TorchStage, build_stage
from .weights import held_tensors, save_weights


@dataclass(frozen=True, slots=True)
class TorchBackend:
    """Stages as ``nn.Module`` objects that share the model's parameters."""

    name: ClassVar[str] = "torch"
    families: ClassVar[tuple[str, ...]] = ("torch",)
    tolerance: ClassVar[float] = 1e-5

    def build(self, graph: Graph, partition: Partition) -> tuple[TorchStage, ...]:
        """Build every stage; parameters and buffers are the model's own, under their own names.

        Raises:
            BackendError: naming stage and node.
        """
        return tuple(build_stage(graph, cut) for cut in partition.stages)

    def reference(self, graph: Graph) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
        """Give the whole model as its owner wrote it, not as it was traced."""
        source: TorchSource = graph.source
        whole = source.whole()

        def run(values: Mapping[str, Any]) -> tuple[Any, ...]:
            args, kwargs = source.call.unbind(values)
            return source.call.disassemble(whole(*args, **kwargs))

        return run

    @contextmanager
    def reproducible(self, graph: Graph, seed: int) -> Iterator[None]:
        """Seed PyTorch's random numbers; on leaving put back their state and the model's buffers.

        A node draws from the random numbers when it runs: masks of dropout are the same for the whole model and for
        stages that run nodes in the same order.
        """
        source: TorchSource = graph.source
        buffers = {id(t): t for t in source.tensors.values() if not isinstance(t, nn.Parameter)}
        whole = source.whole()
        if isinstance(whole, nn.Module):
            buffers.update((id(t), t) for t in whole.buffers())
        kept = [(buffer, buffer.detach().clone()) for buffer in buffers.values()]
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            try:
                yield
            finally:
                with torch.no_grad():
                    for buffer, before in kept:
                        buffer.copy_(before)

    def example_inputs(self, graph: Graph, seed: int) -> dict[str, Any]:
        """Generate seeded inputs by name; see ``example_inputs.py`` for the rules."""
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
            if not isinstance(stage, TorchStage):
                raise BackendError(
                    f"stage {cut.index} is a {type(stage).__name__} that was read from a folder; copy that folder"
                )
            names = [f"stage_{cut.index}.py", f"stage_{cut.index}.safetensors"]
            held = held_tensors(stage, cut.index)
            source = print_stage(graph, stage, lower_stage(graph, stage), held)
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
            stages.append(stage)
        return tuple(stages)
