"""Which device types each layer may go to: what the types support, what the user pins and forbids.

A pattern is a layer's name, a kind of layer, ``data-intensive`` or ``compute-intensive``, or a shell pattern of names,
tried in that order.

Left out: whether a plan that keeps to it exists (``passes/placement``).
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase

import numpy as np

from heterps_compile.cluster.devices import Cluster
from heterps_compile.errors import InputError, UnknownNameError
from heterps_compile.ir.layers import LayerGraph

from .layer_cost import LayerCost
from .problem import Bools


def allowed_types(
    layer_graph: LayerGraph,
    cluster: Cluster,
    pins: Sequence[tuple[str, str]],
    forbidden: Sequence[tuple[str, str]],
    costs: Sequence[LayerCost] = (),
) -> Bools:
    """Return [L, T], whether a layer may go to a type.

    Args:
        layer_graph: The layers.
        cluster: The pool.
        pins: (pattern, device type): matching layers go there; the last match wins.
        forbidden: (pattern, device type): matching layers do not go there.
        costs: The work of the layers, which says how intensive each is; none where no pattern asks for that.

    Raises:
        UnknownNameError: for an unknown device type, or a pattern that matches no layer.
        InputError: for a pin to a type that does not support the layer.
    """
    layers, devices = layer_graph.layers, cluster.device_types
    index = {device.name: t for t, device in enumerate(devices)}
    supported = np.ones((len(layers), len(devices)), np.bool_)
    for t, device_type in enumerate(devices):
        if device_type.supports is not None:
            supported[:, t] = [layer.kind.value in device_type.supports for layer in layers]
    allowed = supported.copy()
    for pattern, device in pins:
        matching, chosen = _matching(layer_graph, costs, pattern, "pin"), index[cluster.device_type(device).name]
        for i in matching:
            if not supported[i, chosen]:
                kinds = ", ".join(devices[chosen].supports or ())
                raise InputError(
                    f"the pin {pattern}={device} puts layer {layers[i].name!r} on a type that does not support it: "
                    f"it is of kind {layers[i].kind.value}, and {device!r} supports {kinds}; drop or narrow the pin"
                )
        allowed[matching] = False
        allowed[matching, chosen] = True
    for pattern, device in forbidden:
        matching, chosen = (
            _matching(layer_graph, costs, pattern, "forbidden pair"),
            index[cluster.device_type(device).name],
        )
        allowed[matching, chosen] = False
    return allowed


def _matching(layer_graph: LayerGraph, costs: Sequence[LayerCost], pattern: str, where: str) -> list[int]:
    layers = layer_graph.layers
    matching = [i for i, layer in enumerate(layers) if pattern in (layer.name, layer.kind)]
    matching = matching or [i for i, cost in enumerate(costs) if pattern == f"{cost.label}-intensive"]
    matching = matching or [i for i, layer in enumerate(layers) if fnmatchcase(layer.name, pattern)]
    if not matching:
        known = [*(str(layer.kind) for layer in layers), *(f"{cost.label}-intensive" for cost in costs if cost.label)]
        names = [*dict.fromkeys(known), *(layer.name for layer in layers)]
        raise UnknownNameError(f"layer or kind of layer in a {where}", pattern, names)
    return matching
