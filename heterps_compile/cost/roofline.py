"""The analytic estimate of a layer's time on a device type: a roofline with a launch cost.

    time = max(FLOPs / (peak * efficiency), bytes / (memory bandwidth * efficiency)) + operations * launch

(Williams, Waterman, Patterson: "Roofline", CACM 2009.) Training runs the layer forward once and backward at
twice the forward's work, the usual count for layers whose inputs and weights both need gradients.

Left out: caches, occupancy at small sizes, overlap between layers, and measured profiles, which replace it.
"""

from dataclasses import dataclass

from heterps_compile.cluster.devices import DeviceType

from .layer_cost import LayerCost

TRAINING_FACTOR = 3
"""Work of forward and backward over that of forward alone."""


def ridge_flop_per_byte(device: DeviceType, dtype: str) -> float:
    """Return the arithmetic intensity above which a type is bound by arithmetic rather than by memory."""
    return device.flops_per_s(dtype) / (device.memory_bytes_per_s * device.efficiency)


@dataclass(frozen=True, slots=True)
class Phases:
    """The time of a layer, or of several, over some samples, in seconds.

    Attributes:
        forward_s: Forward.
        backward_s: Backward, gradients made anew; 0 in inference.
        accumulate_s: Backward that adds to the gradients of a micro-batch before; 0 in inference.
    """

    forward_s: float
    backward_s: float
    accumulate_s: float

    @property
    def whole_s(self) -> float:
        """Return forward and backward."""
        return self.forward_s + self.backward_s

    def scaled(self, factor: float) -> "Phases":
        """Return these times, each multiplied."""
        return Phases(self.forward_s * factor, self.backward_s * factor, self.accumulate_s * factor)


def layer_phases(cost: LayerCost, device: DeviceType, dtype: str, part: float = 1.0, *, training: bool) -> Phases:
    """Estimate the time of a part of a batch of a layer on one unit of a type; launches do not shrink with it."""
    arithmetic_s = cost.flops / device.flops_per_s(dtype)
    memory_s = cost.moved_bytes / (device.memory_bytes_per_s * device.efficiency)
    forward_s = max(arithmetic_s, memory_s) * part + cost.operations * device.launch_s
    backward_s = forward_s * (TRAINING_FACTOR - 1) if training else 0.0
    return Phases(forward_s, backward_s, backward_s)
