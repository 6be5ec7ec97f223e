"""What a backend is: it builds stages in memory, writes them to a folder, and reads them back.

Backends never import passes. A stage that a backend builds is a :class:`Stage`: called with the arrays of its
cut's inputs in order, it gives those of its cut's outputs in order. Buffers that the model changes when it runs are
kept from one call to the next as the model keeps them; a backend that cannot do that refuses the model by their name.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from heterps_compile.ir.graph import Graph
from heterps_compile.ir.partition import Boundary, Partition, StageCut


class Stage(Protocol):
    """One runnable stage.

    ``inputs`` and ``outputs`` are the names of the values it takes and gives, in order; a value is a
    ``torch.Tensor`` for the torch backend and a ``numpy.ndarray`` for onnxruntime.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        """Run the stage; always a tuple, also for one output."""
        ...


class Reference(Protocol):
    """The whole model, run by the backend's own runtime: the oracle of verification."""

    def __call__(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        """Run on the graph inputs by name; give the graph outputs in order."""
        ...


class StageDevice(Protocol):
    """What a stage is planned for.

    ``index`` is its place in the order of execution, ``device`` the name of the device type, ``kind`` its kind:
    ``"cpu"``, ``"gpu"`` or ``"npu"``.
    """

    @property
    def index(self) -> int: ...  # noqa: D102 - above

    @property
    def device(self) -> str: ...  # noqa: D102

    @property
    def kind(self) -> str: ...  # noqa: D102


class Backend(Protocol):
    """A way to turn a partition into stages that run.

    Attributes:
        name: As on the command line.
        families: The graph families it can take.
    """

    @property
    def name(self) -> str: ...  # noqa: D102 - above

    @property
    def families(self) -> tuple[str, ...]: ...  # noqa: D102

    def tolerance(self, family: str) -> float:
        """Return the largest difference, relative to an output's scale, that verification allows models of a family."""
        ...

    def build(self, graph: Graph, partition: Partition) -> tuple[Stage, ...]:
        """Build every stage in memory; stages share the model's parameters where the runtime allows it.

        Raises:
            BackendError: naming stage and op.
        """
        ...

    def reference(self, graph: Graph) -> Reference:
        """Return the whole model, ready to run."""
        ...

    def reproducible(self, graph: Graph, seed: int) -> AbstractContextManager[None]:
        """Seed the runtime's random numbers, and on leaving put back what running the model changes (buffers)."""
        ...

    def example_inputs(self, graph: Graph, seed: int) -> dict[str, Any]:
        """Generate seeded inputs by name that the model accepts (indices inside their tables, and so on)."""
        ...

    def write(
        self, graph: Graph, stages: Sequence[Stage], cuts: Sequence[StageCut], directory: Path
    ) -> list[list[str]]:
        """Write every stage into a directory; give the names of the files of each, the one to open first.

        File names are made from stage indices alone, never from a model's names.

        Raises:
            BackendError: naming stage and op.
        """
        ...

    def read(self, directory: Path, files: Sequence[Sequence[str]], cuts: Sequence[Boundary]) -> tuple[Stage, ...]:
        """Read stages back from the files ``write`` named; the caller has checked their hashes.

        Raises:
            BackendError: naming stage and file.
        """
        ...


@runtime_checkable
class PlacedBackend(Protocol):
    """What a backend has besides, if devices matter to it.

    ``notes`` is what the user should know of how its stages are run.
    """

    @property
    def notes(self) -> tuple[str, ...]: ...  # noqa: D102 - above

    def on(self, stages: Sequence[StageDevice]) -> Backend:
        """Return the backend that knows which device each stage is for."""
        ...


@runtime_checkable
class WrappedBackend(Protocol):
    """What a backend has besides, if its stages take and give tensors, and train, inside a module of PyTorch alone.

    ``own_threads`` says whether they compute on threads of their own, which the caller's clock does not see.
    """

    @property
    def own_threads(self) -> bool: ...  # noqa: D102 - above

    def as_module(self, stage: Stage, device: Any) -> Any:
        """Return the ``nn.Module`` of a stage; its parameters, inputs and outputs are on a ``torch.device``."""
        ...


@runtime_checkable
class StatefulBackend(Protocol):
    """What a backend has besides, if its stages keep buffers of their own from call to call."""

    def buffers_put_back(self) -> AbstractContextManager[None]:
        """Return the context that on leaving puts back the buffers that stages have changed when they ran in it."""
        ...


@runtime_checkable
class DataBackend(Protocol):
    """What a backend has besides, if its written stages may be data, so that reading and running them runs no code.

    ``stages_are_data`` says whether they are: of what lies in the folder, only the installed runtime is run.
    """

    @property
    def stages_are_data(self) -> bool: ...  # noqa: D102 - above


@runtime_checkable
class ChecksWriting(Protocol):
    """A backend that can say, before anything is placed, whether stages that it runs can be written to a folder."""

    def unwritable(self, graph: Graph) -> str:
        """Say which node keeps a stage from being written; "" where all can be."""
        ...


@runtime_checkable
class LeanBackend(Protocol):
    """What a backend has besides, if it can run models of large weights with little memory beside these."""

    def lean(self, graph: Graph) -> AbstractContextManager[None]:
        """Run a graph and its stages inside with little memory beside the weights, at the price of speed."""
        ...

    def release(self, graph: Graph) -> None:
        """Give back the memory of weights that can be read again."""
        ...


@runtime_checkable
class WideBackend(Protocol):
    """What a backend has besides, if its runtime lacks kernels in float64 and its stages can run there otherwise."""

    def build_in_float64(self, graph: Graph, partition: Partition) -> tuple[Stage, ...]:
        """Build every stage of a model in float64, however slow: what they give is compared, and they are let go of."""
        ...


Build = Callable[[Graph, Partition], tuple[Stage, ...]]


def build_wide(backend: Backend) -> Build:
    """Return what builds a backend's stages of a model in float64."""
    return backend.build_in_float64 if isinstance(backend, WideBackend) else backend.build


def place_backend(backend: Backend, stages: Sequence[StageDevice]) -> Backend:
    """Tell a backend the devices of its stages, if it wants to know."""
    return backend.on(stages) if isinstance(backend, PlacedBackend) else backend
