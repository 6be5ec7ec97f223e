"""What a backend says of a node it cannot run, before any search is made.

Left out: how a backend finds out (its op table tells).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from heterps_compile.escape import printable, shorten

_NAME_SHOWN = 80


_WAYS_OUT = {
    "transformers.grouped_mm": "batch the experts (experts_implementation='batched_mm' in the model's config)",
    "transformers.grouped_mm_fallback": "batch the experts (experts_implementation='batched_mm' in the model's config)",
}
"""What helps, by op without its overload, where it is a choice of the library that the model came from."""


def way_out(op: str) -> str:
    """Return what helps where a model has an op that no file can have, "" where only leaving it out does."""
    name = op if op in _WAYS_OUT else op.rpartition(".")[0]
    return _WAYS_OUT.get(name, "")


def reason_without_row(backend: str, op: str) -> str:
    """Say what is missing where the op table of a backend has no row for an op."""
    if "Sequence" in op or "Optional" in op:
        return f"the {backend} backend has tensors alone, no sequences and optional values"
    if "String" in op or op == "TfIdfVectorizer":
        return f"the {backend} backend has no strings"
    return f"the {backend} backend has no such op at this opset"


@dataclass(frozen=True, slots=True)
class UnsupportedNode:
    """A node that a backend cannot run.

    Attributes:
        node: Its name in the graph.
        op: Of the node.
        domain: Of the op, ``"ai.onnx"`` for ONNX's own.
        opset: That the model imports for the domain.
        reason: What is missing: the op, its opset, an attribute.
    """

    node: str
    op: str
    domain: str
    opset: int
    reason: str

    def describe(self, supported_by: Sequence[str] = ()) -> str:
        """Say it in one line, with the backends that do support the node."""
        name = printable(shorten(self.node, _NAME_SHOWN))
        others = f"; backends that support it: {', '.join(supported_by)}" if supported_by else ""
        what = f"{printable(shorten(self.op, _NAME_SHOWN))} ({printable(self.domain)}, opset {self.opset})"
        helps = way_out(self.op)
        return f"node '{name}' is {what}: {self.reason}{others}{f'; {helps}' if helps else ''}"
