"""How fast a device does what a step has besides its layers: the optimizer's step, and what rules make of gradients.

Where nothing was measured all is traffic with memory, at the type's bandwidth times its efficiency. Of every byte of a
weight an optimizer reads the weight and its gradient and writes the weight, and reads and writes what it keeps::

    3 + 2 state / weight        sgd 3, momentum 5, adam 7

Of the kinds of work that rules have (``sync_rules/handling.py``) an entry at an index is a line of a cache that is read
and written, a selection some passes over what it selects from, a combination three products in double precision and a
scaled sum. A profile (``profiling/step_rates.py``) measures the kinds by the functions that a run calls, and those
optimizers of ``--optimizer`` that PyTorch has; any other is the traffic of its bytes at the measured rate.

Left out: optimizers that servers run; launches; caches that hold all of it.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field

from heterps_compile.cluster.devices import DeviceType
from heterps_compile.strict_json import STRICT
from heterps_compile.sync_rules.handling import Handling, Work

from .memory import OPTIMIZERS

Floats = NDArray[np.float64]
_Rate = Annotated[float, Field(gt=0, le=1e18)]

_LINE_BYTES = 2 * 64  # of an entry at an index, read and written
_PASSES = {"cpu": 16.0}  # over what is selected from; what lies outside of the thresholds is not counted again there
_ALL_PASSES = 45.0
_COMBINED_PASSES = 27.0

WEIGHT_PASSES, STATE_PASSES = 3, 2


@dataclass(frozen=True, slots=True)
class OptimizerRate:
    """The step of an optimizer: a part for every tensor, and one for every byte of weights.

    Attributes:
        name: One of ``OPTIMIZERS`` (``memory.py``).
        tensor_s: Of a tensor.
        bytes_per_s: Of weights.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    name: Annotated[str, Field(pattern=f"^({'|'.join(OPTIMIZERS)})$")]
    tensor_s: Annotated[float, Field(ge=0, le=1e6)]
    bytes_per_s: _Rate


@dataclass(frozen=True)
class StepRates:
    """What a device does in a second, of the kinds of ``sync_rules/handling.py``.

    Attributes:
        moved_per_s, selected_per_s, chosen_per_s, placed_per_s, combined_per_s: Bytes, and entries that are chosen and
            placed.
        optimizers: Those that were measured.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    moved_per_s: _Rate
    selected_per_s: _Rate
    chosen_per_s: _Rate
    placed_per_s: _Rate
    combined_per_s: _Rate
    optimizers: tuple[OptimizerRate, ...] = ()

    def __post_init__(self) -> None:
        """Check that an optimizer has one rate."""
        names = [each.name for each in self.optimizers]
        if len(set(names)) < len(names):
            raise ValueError(f"optimizers stand there twice: {', '.join(names)}")

    @classmethod
    def of_type(cls, device: DeviceType) -> "StepRates":
        """Return the rates of a device type by its bandwidth."""
        moved = device.memory_bytes_per_s * device.efficiency
        passes = _PASSES.get(device.kind, _ALL_PASSES)
        return cls(moved, moved / passes, moved / _LINE_BYTES, moved / _LINE_BYTES, moved / _COMBINED_PASSES)

    @cached_property
    def _by_name(self) -> dict[str, OptimizerRate]:
        return {each.name: each for each in self.optimizers}

    def work_s(self, work: Work) -> float:
        """Return what some work takes."""
        return (
            work.moved / self.moved_per_s
            + work.selected / self.selected_per_s
            + work.chosen / self.chosen_per_s
            + work.placed / self.placed_per_s
            + work.combined / self.combined_per_s
        )

    def handling_s(self, handling: Handling, replicas: int) -> float:
        """Return what a rule takes each of so many replicas; 0 for one alone."""
        once, shared, each = (np.asarray(self.work_s(part)) for part in (handling.once, handling.shared, handling.each))
        return float(of_replicas(once, shared, each, np.asarray(replicas, np.float64)))

    def optimizer_s(self, optimizer: str, weight_bytes: float, state_bytes: float, tensors: int) -> float:
        """Return what the step of an optimizer takes.

        Args:
            optimizer: Its name.
            weight_bytes: That it steps on.
            state_bytes: That it keeps of them.
            tensors: That they are.
        """
        rate = self._by_name.get(optimizer)
        if rate is not None:
            return tensors * rate.tensor_s + weight_bytes / rate.bytes_per_s
        return (WEIGHT_PASSES * weight_bytes + STATE_PASSES * state_bytes) / self.moved_per_s


def of_replicas(once: Floats, shared: Floats, each: Floats, replicas: Floats) -> Floats:
    """Return what so many replicas take of the three parts, in whatever these are; arrays of one shape."""
    taken = once + shared * (1 - 1 / replicas) + each * (replicas - 1)
    return np.asarray(np.where(replicas > 1, taken, 0.0), np.float64)
