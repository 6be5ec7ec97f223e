"""A compiled model: its plan and the stages that run, in this process, and the folder it is written to.

Left out: how it is made (``api.py``), running it in several processes (``runtime/launch``).
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from heterps_compile.backends.contract import Backend, place_backend
from heterps_compile.backends.find import find_backend
from heterps_compile.backends.mixed import MIXED, MixedBackend
from heterps_compile.cost.intensity import LayerCost
from heterps_compile.errors import InputError
from heterps_compile.ir.graph import Graph
from heterps_compile.ir.layers import LayerGraph
from heterps_compile.ir.partition import Partition
from heterps_compile.plan.plan import Plan
from heterps_compile.runtime.in_process import run_stages
from heterps_compile.runtime.signature import Signature


@dataclass(frozen=True)
class CompiledModel:
    """A model cut into stages that run.

    Attributes:
        plan: Decisions, estimates, provenance.
        stages: What runs, one a stage: ``nn.Module`` for the torch backend.
        signature: How calls map to graph inputs, and graph outputs to results.
        graph: The whole model; None where it was loaded from a folder.
        partition: How it was cut; None where it was loaded from a folder.
        layers: Its layers; None where it was loaded from a folder.
        costs: The work of each layer, in the same order; empty where it was loaded from a folder.
    """

    plan: Plan
    stages: tuple[Any, ...]
    signature: Signature = field(repr=False)
    graph: Graph | None = field(default=None, repr=False)
    partition: Partition | None = field(default=None, repr=False)
    layers: LayerGraph | None = field(default=None, repr=False)
    costs: tuple[LayerCost, ...] = field(default=(), repr=False)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run all stages in this process.

        Takes what the model takes and returns what the model returns, structure included: right after ``compile`` in
        objects of the model's own types, after ``load`` in plain ones with the same keys and attributes, so that no
        library is needed (``frontends/results.py``). An ONNX model takes
        arrays in the order of its inputs or by their names, and returns a list of arrays, as an ONNX Runtime
        session does.

        Raises:
            InputError: where the arguments are not those of the model.
        """
        values = self.signature.bind(args, kwargs)
        return self.signature.assemble(run_stages(self.plan.stages, self.stages, values, self.plan.graph_outputs))

    def save(self, directory: str | Path, *, force: bool = False, stablehlo: bool = False) -> "CompiledModel":
        """Write ``plan.json``, the stages and a README, atomically; give the model with its artefacts named.

        Args:
            directory: The folder; it is made, or replaced where a compilation wrote it before.
            force: Replace a folder that no compilation wrote.
            stablehlo: Write stages of the jax backend as StableHLO too.

        Raises:
            InputError: where the folder cannot be written, or is somebody else's.
        """
        from heterps_compile.plan.folder import write_folder  # noqa: PLC0415 - pydantic only when saving

        if self.graph is None or self.partition is None:
            raise InputError("a model loaded from a folder is not saved again; copy its folder")
        backend, graph, cuts = backend_of(self.plan), self.graph, self.partition.stages
        if stablehlo:
            backend = _with_stablehlo(backend)

        def write(target: Path) -> list[list[str]]:
            return backend.write(graph, self.stages, cuts, target)

        return replace(self, plan=write_folder(Path(directory), self.plan, write, force=force))


def backend_of(plan: Plan) -> Backend:
    """Give the backend that reads and writes the stages of a plan."""
    if plan.backend != MIXED:
        return place_backend(find_backend(plan.backend), plan.stages)
    return MixedBackend({stage.device: find_backend(stage.backend) for stage in plan.stages}).on(plan.stages)


def _with_stablehlo(backend: Backend) -> Backend:
    if backend.name != "jax":
        raise InputError(f"the backend {backend.name!r} writes no StableHLO; ask for the backend jax")
    made: Any = find_backend("jax")
    with_it: Backend = replace(made, stablehlo=True)
    return with_it
