"""Example models: the four of HeterPS (arXiv 2111.10635, section 6), small and readable, in plain PyTorch.

The paper gives their kinds and layer counts, not their code; sizes here are arguments with sane defaults. Each module
has one function that gives ``(model, example_inputs)``.

Left out: data, training loops, trained weights.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from heterps_compile.packages import PYTORCH, need

if TYPE_CHECKING:
    from torch import Tensor, nn

Builder = Callable[..., "tuple[nn.Module, tuple[Tensor, ...]]"]


def _builder(module: str) -> Builder:
    """Return the function of that name in the module of that name; PyTorch is imported when it is called."""

    def build(**sizes: Any) -> "tuple[nn.Module, tuple[Tensor, ...]]":
        need(f"the example {module!r}", PYTORCH)
        function: Builder = getattr(import_module(f"{__name__}.{module}"), module)
        return function(**sizes)

    return build


EXAMPLES: Mapping[str, Builder] = MappingProxyType(
    {
        "ctrdnn": _builder("ctrdnn"),
        "matchnet": _builder("matchnet"),
        "2emb": _builder("two_emb"),
        "nce": _builder("nce"),
    }
)
"""What builds each example, by the paper's name in small letters; sizes are keyword arguments."""
