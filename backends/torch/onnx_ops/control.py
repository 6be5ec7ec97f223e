"""The rows of If, Loop and Scan, which say what they take; how they run stands in ``control_flow.py``.

Left out: loops over sequences and optional values.
"""

from typing import Any

from torch import Tensor

from .table import op


@op("If", 1)
def if_(condition: Tensor, *, then_branch: Any, else_branch: Any) -> Tensor:
    raise NotImplementedError("an If runs its branches, not this row")


@op("Loop", 1)
def loop(trips: Tensor, condition: Tensor, *carried: Tensor, body: Any) -> Tensor:
    raise NotImplementedError("a Loop runs its body, not this row")


@op("Scan", 8)
def scan_of_batch(
    lengths: Tensor | None, *values: Tensor, body: Any, num_scan_inputs: int, directions: list[int] | None = None
) -> Tensor:
    raise NotImplementedError("a Scan runs its body, not this row")


@op("Scan", 9)
def scan(
    *values: Tensor,
    body: Any,
    num_scan_inputs: int,
    scan_input_axes: list[int] | None = None,
    scan_input_directions: list[int] | None = None,
    scan_output_axes: list[int] | None = None,
    scan_output_directions: list[int] | None = None,
) -> Tensor:
    raise NotImplementedError("a Scan runs its body, not this row")
