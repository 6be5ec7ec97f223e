"""The analytic estimate of a layer's time on a device type: a roofline with a launch cost.

    time = max(FLOPs / (peak * efficiency), bytes / (memory bandwidth * efficiency)) + operations * launch

(Williams, Waterman, Patterson: "Roofline", CACM 2009.) Training runs the layer forward once and backward at
twice the forward's work, the usual count for layers whose inputs and weights both need gradients.

Left out: caches, occupancy at small sizes, overlap between layers, and measured profiles, which replace it.
"""

from heterps_compile.cluster.devices import DeviceType

from .intensity import LayerCost

TRAINING_FACTOR = 3
"""Work of forward and backward over that of forward alone."""


def ridge_flop_per_byte(device: DeviceType, dtype: str) -> float:
    """Give the arithmetic intensity above which a type is bound by arithmetic rather than by memory."""
    return device.flops_per_s(dtype) / (device.memory_bytes_per_s * device.efficiency)


def layer_time_s(cost: LayerCost, device: DeviceType, dtype: str, *, training: bool) -> float:
    """Estimate the time of one batch of a layer on one unit of a type, in seconds."""
    arithmetic_s = cost.flops / device.flops_per_s(dtype)
    memory_s = cost.moved_bytes / (device.memory_bytes_per_s * device.efficiency)
    once_s = max(arithmetic_s, memory_s) + cost.operations * device.launch_s
    return once_s * TRAINING_FACTOR if training else once_s
