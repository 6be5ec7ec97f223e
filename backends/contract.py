"""What a backend is: it builds stages in memory, writes them to a folder, and reads them back.

Backends never import passes. A stage that a backend builds is a :class:`Stage`: called with the arrays of its
cut's inputs in order, it gives those of its cut's outputs in order. Buffers that the model changes when it runs are
kept from one call to the next as the model keeps them; a backend that cannot do that refuses the model by their name.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from heterps_compile.errors import BackendError, InputError
from heterps_compile.ir.graph import Graph
from heterps_compile.ir.partition import Boundary, Partition, StageCut

from .unsupported import UnsupportedNode

OpName = tuple[str, str]
"""A domain, "" for ONNX's own, and an op."""


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
    ``"cpu"``, ``"gpu"`` or ``"npu"``, ``by_type`` the same once for every device type that its replicas are of.
    """

    @property
    def index(self) -> int: ...  # noqa: D102 - above

    @property
    def device(self) -> str: ...  # noqa: D102

    @property
    def kind(self) -> str: ...  # noqa: D102

    @property
    def by_type(self) -> "Sequence[StageDevice]": ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What the stages of a backend can do; whoever wants to know asks here, never for a backend's name.

    Attributes:
        trains: Gradients are computed through them; :meth:`Backend.as_module` gives modules that train.
        is_module: They are ``nn.Module`` objects of PyTorch's own ops: they take and give tensors, move to any device
            of PyTorch's, and can be traced.
        own_threads: They compute on threads of their own, which the caller's clock does not see.
        stages_are_data: Written, they are data: of what lies in the folder, only the installed runtime is run.
        draws_as: The families whose models draw the same random numbers in stages as whole.
        exports: Formats that stages can be written in besides; see :meth:`Backend.exporting`.
        recomputes: They can compute their activations again for the backward; see :meth:`Backend.recomputing`.
        sparse_gradients: Look-ups that make gradients of rows alone in the model do so in them.
    """

    trains: bool = False
    is_module: bool = False
    own_threads: bool = False
    stages_are_data: bool = False
    draws_as: tuple[str, ...] = ()
    exports: tuple[str, ...] = ()
    recomputes: bool = False
    sparse_gradients: bool = False

    @property
    def splits_backward(self) -> bool:
        """Return whether gradients of inputs are computed apart from those of weights: by PyTorch's own ops alone."""
        return self.trains and self.is_module


class Backend(ABC):
    """A way to turn a partition into stages that run.

    What has a body here is what a backend does that says nothing else.

    Attributes:
        name: As on the command line.
        families: The graph families it can take.
        capabilities: What its stages can do.
        notes: What the user should know of how its stages are run.
    """

    __slots__ = ()

    name: str
    families: tuple[str, ...]
    capabilities: Capabilities = Capabilities()
    notes: tuple[str, ...] = ()

    @abstractmethod
    def tolerance(self, family: str) -> float:
        """Return the largest difference, relative to an output's scale, that verification allows models of a family."""

    @abstractmethod
    def build(self, graph: Graph, partition: Partition) -> tuple[Stage, ...]:
        """Build every stage in memory; stages share the model's parameters where the runtime allows it.

        Raises:
            BackendError: naming stage and op.
        """

    @abstractmethod
    def reference(self, graph: Graph) -> Reference:
        """Return the whole model, ready to run."""

    @abstractmethod
    def reproducible(self, graph: Graph, seed: int) -> AbstractContextManager[None]:
        """Seed the runtime's random numbers, and on leaving put back what running the model changes (buffers)."""

    @abstractmethod
    def example_inputs(self, graph: Graph, seed: int) -> dict[str, Any]:
        """Generate seeded inputs by name that the model accepts (indices inside their tables, and so on)."""

    @abstractmethod
    def write(
        self, graph: Graph, stages: Sequence[Stage], cuts: Sequence[StageCut], directory: Path
    ) -> list[list[str]]:
        """Write every stage into a directory; give the names of the files of each, the one to open first.

        File names are made from stage indices alone, never from a model's names.

        Raises:
            BackendError: naming stage and op.
        """

    @abstractmethod
    def read(self, directory: Path, files: Sequence[Sequence[str]], cuts: Sequence[Boundary]) -> tuple[Stage, ...]:
        """Read stages back from the files ``write`` named; the caller has checked their hashes.

        Raises:
            BackendError: naming stage and file.
        """

    def on(self, stages: Sequence[StageDevice]) -> "Backend":
        """Return the backend that knows which device each stage is for."""
        return self

    def of_stages(self, count: int) -> tuple["Backend", ...]:
        """Return the backend of every stage of a plan."""
        return (self,) * count

    def threads(self, count: int) -> AbstractContextManager[None]:
        """Hold stages that are built, read or run inside to so many threads; PyTorch's are the caller's matter."""
        return nullcontext()

    def as_module(self, stage: Any, device: Any) -> Any:
        """Return a stage as a pipeline runs it, with its parameters, inputs and outputs on a ``torch.device``.

        An ``nn.Module`` where stages train; else what runs on the CPU may be given back as it is.
        """
        from torch import nn  # noqa: PLC0415 - torch only where something is run by it

        return stage.to(device) if isinstance(stage, nn.Module) else stage

    def recomputing(self, module: Any) -> Callable[..., tuple[Any, ...]]:
        """Return what runs a module of :meth:`as_module` that keeps only what enters it, and again for its backward.

        Random numbers of the repetition are those of the forward, and what a forward changes it does not change again.

        Raises:
            BackendError: where stages of this backend keep their activations.
        """
        raise BackendError(
            f"stages of the backend {self.name!r} keep their activations from forward to backward and cannot compute "
            f"them again; compile with --recompute never, or with another backend"
        )

    def buffers_put_back(self) -> AbstractContextManager[None]:
        """Return the context that on leaving puts back the buffers that stages have changed when they ran in it."""
        return nullcontext()

    def lean(self, graph: Graph) -> AbstractContextManager[None]:
        """Run a graph and its stages inside with little memory beside the weights, at the price of speed."""
        return nullcontext()

    def release(self, graph: Graph) -> None:  # noqa: B027 - where there are none, nothing is to be done
        """Give back the memory of weights that can be read again."""

    def build_in_float64(self, graph: Graph, partition: Partition) -> tuple[Stage, ...]:
        """Build every stage of a model in float64, however slow: what they give is compared, and they are let go of."""
        return self.build(graph, partition)

    def exporting(self, form: str) -> "Backend":
        """Return the backend that writes its stages in one more form, of those of its capabilities.

        Raises:
            InputError: where it writes none such.
        """
        raise InputError(f"the backend {self.name!r} writes no {form}")

    def declared_ops(self) -> Mapping[OpName, Sequence[int]] | None:
        """Return the opsets from which on each version of an op is right, ascending; None where it cannot say."""
        return None

    def unsupported(self, graph: Graph) -> list[UnsupportedNode]:
        """Return the nodes that no stage of this backend could run, as far as is known before anything is built."""
        return []

    def cannot_open(self, graph: Graph) -> str:
        """Say why the runtime does not take a whole graph, where only trying tells; "" where it does."""
        return ""

    def unwritable(self, graph: Graph) -> str:
        """Say, before anything is placed, which node keeps a stage from being written; "" where all can be."""
        return ""
