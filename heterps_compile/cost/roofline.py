"""The analytic estimate of a layer's time on a device type: a roofline with a launch cost.

    time = max(FLOPs / (peak * efficiency), bytes / (memory bandwidth * efficiency)) + operations * launch

(Williams, Waterman, Patterson: "Roofline", CACM 2009.) Of a micro-batch, arithmetic and activations are in
proportion; launches and the weights that are read are all there, so that a layer's time over m samples is ``t0 + t1
m``, or the larger of two such lines::

    time(m) = max(t1 m, w0 + w1 m) + operations * launch

Where a type has measured rates of a kind of work
(``calibrate``), nodes of that kind take by themselves, added up over the layer::

    time = operations * start + FLOPs / rate + bytes / memory rate

Views are a kind too, of starts alone: an eager runtime calls them as it calls kernels, and to take a column of ids
costs as much as to look a few rows up. The first layer of a model has a *cold start* besides (``layer_cost.py``), a
kind whose bytes are those that a pass displaces from the caches. Starts and weights are all there in a part of a batch
too; in inference the sum of a kind is multiplied by a factor of its own, as a forward then keeps nothing for a
backward. Training runs the layer forward once and backward at twice the forward's work, the usual count for layers
whose inputs and weights both need gradients; measured rates have a factor of their own, and what is made of ids or
constants has no backward.

Left out: caches, occupancy at small sizes, overlap between layers; pages of memory that a process has anew, as it has
those of large tables' gradients; and measured profiles, which replace it.
"""

import math
from dataclasses import dataclass, replace

from heterps_compile.cluster.devices import DeviceType
from heterps_compile.ir.graph import COLD_START, OpKind

from .layer_cost import LayerCost

_KINDS_OF_LATER = (OpKind.VIEW, COLD_START)

TRAINING_FACTOR = 3
"""Work of forward and backward over that of forward alone."""

_ADDED_PASSES = 3  # over a table: both gradients are read, and their sum is written


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


def layer_phases(
    cost: LayerCost, device: DeviceType, dtype: str, part: float = 1.0, *, training: bool, factor: float = 1.0
) -> Phases:
    """Estimate the time of a part of a batch of a layer on one unit of a type; launches and weights do not shrink.

    Args:
        cost: Of the layer.
        device: The type.
        dtype: That it computes in.
        part: Of the batch.
        training: Whether there is a backward.
        factor: What was measured of layers of the kind over such an estimate; gradients of tables are not multiplied.
    """
    if device.rates and cost.by_kind:
        return _at_measured_rates(cost, device, dtype, part, training=training)
    return _at_data_sheet(cost, device, dtype, part, training=training, factor=factor)


def _at_data_sheet(
    cost: LayerCost, device: DeviceType, dtype: str, part: float, *, training: bool, factor: float = 1.0
) -> Phases:
    arithmetic_s = cost.flops / device.flops_per_s(dtype)
    memory_rate = device.memory_bytes_per_s * device.efficiency
    moved_bytes = (cost.moved_bytes - cost.fixed_bytes) * part + cost.fixed_bytes
    forward_s = factor * (max(arithmetic_s * part, moved_bytes / memory_rate) + cost.operations * device.launch_s)
    if not training:
        return Phases(forward_s, 0.0, 0.0)
    backward_s = forward_s * (TRAINING_FACTOR - 1) + cost.table_bytes / memory_rate
    return Phases(forward_s, backward_s, backward_s + _ADDED_PASSES * cost.table_bytes / memory_rate)


def _at_measured_rates(cost: LayerCost, device: DeviceType, dtype: str, part: float, *, training: bool) -> Phases:
    """Add up the work of a layer by kind; a kind that nobody measured is estimated by the data sheet, node by node."""
    forward_s, backward_s, adding_s = 0.0, 0.0, 0.0
    for work in cost.by_kind:
        rate = device.rates.get(work.kind)
        if rate is None and work.kind in _KINDS_OF_LATER:
            continue  # a pool of before: its other kinds have the calls of views in their starts
        if rate is None:
            whole_bytes = work.moved_bytes + work.parameter_bytes
            plain = replace(
                cost,
                flops=work.flops,
                moved_bytes=whole_bytes,
                fixed_bytes=work.parameter_bytes,
                operations=work.operations,
                by_kind=(work,),
            )
            phases = _at_data_sheet(plain, device, dtype, part, training=training)
            forward_s, backward_s = forward_s + phases.forward_s, backward_s + phases.backward_s
            adding_s += phases.accumulate_s - phases.backward_s
            continue
        faster = device.flops_per_s(dtype) / device.flops_per_s(rate.dtype)
        own_s = (
            work.operations * rate.start_s
            + work.flops * part / (rate.flops_per_s * faster)
            + work.bytes_of(part) / rate.bytes_per_s
        )
        forward_s += own_s if training else own_s * rate.inference
        if training and work.has_backward:
            backward_s += own_s * rate.backward + work.table_bytes / rate.gradient_bytes_per_s
            adding_s += _ADDED_PASSES * work.table_bytes / _sums_per_s(device)
    return Phases(forward_s, backward_s, backward_s + adding_s)


def _sums_per_s(device: DeviceType) -> float:
    """Return the bytes that a sum of two arrays reads and writes in a second."""
    rate = device.rates.get(OpKind.ELEMENTWISE)
    measured = math.inf if rate is None else rate.bytes_per_s
    return measured if measured < math.inf else device.memory_bytes_per_s * device.efficiency
