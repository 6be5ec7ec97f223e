"""One row per layer: what the tables and the JSON document say of it.

Left out: how a row looks (``layer_columns.py``) and what it is called in JSON (``report/document.py``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from heterps_compile.cost.layer_cost import LayerCost
from heterps_compile.ir.layer_titles import describe_layer, layer_title, titles_of
from heterps_compile.ir.layers import Layer, LayerGraph
from heterps_compile.plan.plan import Plan


@dataclass(frozen=True, slots=True)
class LayerRow:
    """A layer, its work, and where it went.

    Attributes:
        name: Of the layer.
        kind: Of its anchor.
        what: Kind and sizes, and the module's path where the name is made up; the kind alone where no more is known.
        title: What it is called in pictures.
        told: Its kind, or what it is where its name is made up.
        stage: Index of its stage.
        device: Name of its device type.
        parameters: Weights and buffers, counted in elements; tied ones once.
        cost: Its work for one batch.
    """

    name: str
    kind: str
    stage: int
    device: str
    parameters: int
    cost: LayerCost
    what: str = ""
    title: str = ""
    told: str = ""


def layer_rows(plan: Plan, layers: LayerGraph, costs: Sequence[LayerCost]) -> list[LayerRow]:
    """Return the rows in the order of the layers."""
    titles = titles_of(layers)
    home = {name: stage for stage in plan.stages for name in stage.layers}
    return [
        LayerRow(
            name=layer.name,
            kind=layer.kind.value,
            stage=home[layer.name].index,
            device=home[layer.name].device,
            parameters=_count_parameters(layer, layers),
            cost=cost,
            what=describe_layer(layers, index),
            title=layer_title(layers, index),
            told=titles.get(layer.name, layer.kind.value),
        )
        for index, (layer, cost) in enumerate(zip(layers.layers, costs, strict=True))
    ]


def _count_parameters(layer: Layer, layers: LayerGraph) -> int:
    read = (layers.graph.parameters[name] for name in layer.parameters)
    sizes = {parameter.storage: prod(parameter.shape) for parameter in read if parameter.kind != "constant"}
    return sum(sizes.values())
