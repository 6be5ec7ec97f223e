"""In which precision a model computes: float32 throughout, or automatic mixed precision in bfloat16 or float16.

Parameters, gradients and the optimiser's state are float32 whichever it is.

Left out: running it (``runtime/pipeline/autocast.py``).
"""

from collections.abc import Mapping
from types import MappingProxyType

FULL = "fp32"

PRECISIONS: Mapping[str, str] = MappingProxyType({FULL: "float32", "bf16": "bfloat16", "fp16": "float16"})
"""The precisions by name, each with the dtype in which matrix products and convolutions compute."""

SCALED = ("fp16",)
"""Those whose gradients need the loss to be scaled: float16 has none below 6e-8."""
