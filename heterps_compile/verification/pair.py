"""The whole model and its stages side by side, as verification runs them.

Left out: what is compared (``calls.py``, ``gradients.py``).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from heterps_compile.backends.comparable import Comparable
from heterps_compile.backends.contract import Backend, Stage
from heterps_compile.errors import HeterpsError, VerificationError
from heterps_compile.escape import one_line, shorten
from heterps_compile.ir.graph import Graph
from heterps_compile.ir.partition import StageCut
from heterps_compile.runtime.in_process import run_stages

from .large_weights import release_weights

SKIP = "--no-verify (verify=False) leaves verification out"

_REASON_SHOWN = 300
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Pair:
    """The whole model and its stages.

    Attributes:
        backend: That built the stages, and knows their devices.
        compared: What of the model is compared.
        cuts: Of the stages.
        stages: What runs.
        inputs: Of the calls that are made in a row, by name.
        seed: Of random numbers.
        is_trained: Whether the stages are for training.
        oracle: The whole model, where it is another than the backend's.
        least_scales: What the scales of outputs are taken to be at least, by name: in float64 those they have in the
            model's own precision, as an output that cancels to nothing has none of its own.
    """

    backend: Backend
    compared: Comparable
    cuts: Sequence[StageCut]
    stages: Sequence[Stage]
    inputs: Sequence[Mapping[str, Any]]
    seed: int
    is_trained: bool
    oracle: Callable[[Mapping[str, Any]], tuple[Any, ...]] | None = None
    least_scales: Mapping[str, float] = field(default_factory=dict)

    @property
    def graph(self) -> Graph:
        """Return the graph that is run."""
        return self.compared.graph

    @property
    def tolerance(self) -> float:
        """Return the largest difference that outputs may have, relative to their scale."""
        return max(self.backend.tolerance(self.graph.family), self.compared.rounding)

    def whole(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Run the whole model; return its outputs by name."""
        given = {name: _copy(value) for name, value in inputs.items()}  # a model may change its input in place
        oracle: Callable[[Mapping[str, Any]], tuple[Any, ...]] = self.oracle or self.backend.reference(self.graph)
        outputs = dict(zip(self.graph.outputs, oracle(given), strict=True))
        release_weights(self.backend, self.graph)
        return outputs

    def staged(self, inputs: Mapping[str, Any], stages: Sequence[Callable[..., Any]] | None = None) -> dict[str, Any]:
        """Run the stages, or what stands for them; return the outputs by name.

        Raises:
            VerificationError: where they cannot run.
        """
        runnable: Sequence[Callable[..., Any]] = self.stages if stages is None else stages
        given = {name: _copy(value) for name, value in inputs.items()}
        return attempt("run", lambda: run_stages(self.cuts, runnable, given, self.graph.outputs))


def attempt(what: str, run: Callable[[], _T]) -> _T:
    """Do something with the stages that the whole model can.

    Raises:
        VerificationError: with the reason, where they cannot.
    """
    try:
        return run()
    except HeterpsError:
        raise
    except Exception as error:  # a runtime may raise anything
        raise VerificationError(f"the staged model cannot {what} where the whole model can: {reason(error)}") from error


def _copy(value: Any) -> Any:
    return value.clone() if hasattr(value, "detach") else value


def reason(error: BaseException) -> str:
    """Return what an error says in one printable line."""
    return shorten(one_line(str(error)) or type(error).__name__, _REASON_SHOWN)
