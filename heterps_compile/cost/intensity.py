"""What a layer costs in itself, and whether data or computation dominates it.

Left out: the device a layer ends on (``problem.py`` has its time on every type).
"""

from dataclasses import dataclass

DATA_INTENSIVE = "data"
COMPUTE_INTENSIVE = "compute"


@dataclass(frozen=True, slots=True)
class LayerCost:
    """The work of one layer for one batch.

    Attributes:
        flops: Floating-point operations, forward.
        parameter_bytes: Weights, buffers and constants it reads.
        touched_bytes: The part of its parameters that one batch reads: all, or the rows an embedding gathers.
        input_bytes: Activations that enter it.
        output_bytes: Activations that leave it.
        moved_bytes: All traffic with memory, forward: inputs, outputs, touched parameters, large intermediates.
        operations: Kernels it starts; views start none.
        label: ``"data"`` or ``"compute"``; "" until annotated.
        reason: The numbers behind the label.
        inside_bytes: The largest array that is made inside and does not leave.
    """

    flops: int
    parameter_bytes: int
    touched_bytes: int
    input_bytes: int
    output_bytes: int
    moved_bytes: int
    operations: int
    label: str = ""
    reason: str = ""
    inside_bytes: int = 0

    @property
    def flop_per_byte(self) -> float:
        """Return the arithmetic intensity."""
        return self.flops / self.moved_bytes if self.moved_bytes else 0.0
