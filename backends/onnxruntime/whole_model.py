"""The unsplit ONNX model in one session; what needs no computing is handed through.

Left out: models of other families (their own runtime runs them).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import onnx_ir as ir

from heterps_compile.errors import BackendError
from heterps_compile.frontends.onnx_inputs import drawn_values
from heterps_compile.ir.graph import Graph

from .stage import LazySession


@dataclass(frozen=True, slots=True)
class WholeModel:
    """Runs a graph of the family ``"onnx"``.

    Attributes:
        graph: The graph.
        session: Of its model.
        computed: Names of the outputs that nodes make.
    """

    graph: Graph
    session: LazySession
    computed: tuple[str, ...]

    @classmethod
    def of(cls, graph: Graph, provider: str, others: Callable[[], Sequence[str]] = tuple) -> "WholeModel":
        """Open it with each computed output once: a model may return a value twice, or one of its inputs."""
        source: ir.Model = graph.source.model
        outputs = list(dict.fromkeys(value for value in source.graph.outputs if value.producer() is not None))
        view = ir.GraphView(
            source.graph.inputs,
            outputs,
            nodes=source.graph,
            initializers=tuple(source.graph.initializers.values()),
            opset_imports=source.graph.opset_imports,
            name=source.graph.name,
        )
        model = ir.Model(cast(Any, view), ir_version=source.ir_version)  # a view is documented to do
        return cls(graph, LazySession("the whole model", model, provider, others), tuple(v.name or "" for v in outputs))

    def __call__(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        """Run on the graph inputs by name; give the graph outputs in order.

        Raises:
            BackendError: where it cannot run, naming the inputs whose drawn values may be the reason.
        """
        known = dict(values)
        feeds = {name: known[name] for name in self.graph.inputs}
        self.session.open()
        try:
            results = self.session.run(self.computed, feeds)
        except BackendError as error:
            source = self.graph.source
            raise BackendError(f"{error}{drawn_values(source.model.graph, source.given)}") from error
        known.update(zip(self.computed, results, strict=True))
        initializers = self.graph.source.model.graph.initializers
        return tuple(known[n] if n in known else initializers[n].const_value.numpy() for n in self.graph.outputs)
