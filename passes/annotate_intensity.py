"""Say of every layer whether data or computation dominates it, and why.

A layer is *data-intensive* where its arithmetic intensity (FLOP per byte moved) lies below the ridge of every
device type's roofline: memory, not arithmetic, sets its time everywhere in the pool. Otherwise it is
*compute-intensive*. (HeterPS, arXiv 2111.10635, section 3, tells the two apart by kind of layer; the roofline
gives the same answer for its embeddings and wide inputs, and a number to argue with.)

Left out: measured times; the label explains, it decides nothing.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from heterps_compile.cluster.devices import Cluster
from heterps_compile.cost.layer_cost import COMPUTE_INTENSIVE, DATA_INTENSIVE, LayerCost, layer_costs
from heterps_compile.cost.precision import in_precision
from heterps_compile.cost.roofline import ridge_flop_per_byte
from heterps_compile.cost.saved import with_saved
from heterps_compile.cost.served_tables import with_gradients

from .drafts import Annotated, Layered, advance


def annotate(cost: LayerCost, dtype: str, cluster: Cluster) -> LayerCost:
    """Return the cost with its label and the reason for it."""
    ridges = sorted((ridge_flop_per_byte(device, dtype), device.name) for device in cluster.device_types)
    below = [name for ridge, name in ridges if cost.flop_per_byte < ridge]
    lowest, easiest = ridges[0]
    intensity = f"{cost.flop_per_byte:.3g} FLOP/B"
    if len(below) == len(ridges):
        return replace(cost, label=DATA_INTENSIVE, reason=f"{intensity} < {lowest:.3g} (ridge of {easiest})")
    where = "every ridge" if not below else f"{lowest:.3g} (ridge of {easiest})"
    return replace(cost, label=COMPUTE_INTENSIVE, reason=f"{intensity} >= {where}")


@dataclass(frozen=True, slots=True)
class AnnotateIntensity:
    """Count the work of every layer and label it data- or compute-intensive."""

    name: ClassVar[str] = "annotate-intensity"

    def __call__(self, draft: Layered) -> Annotated:
        """Fill in ``costs``, and give the values of ``layers`` the dtypes of the precision that is asked for."""
        layers = replace(draft.layers, graph=in_precision(draft.graph, draft.request.precision))
        counted, by_servers = layer_costs(layers), draft.request.sync_rules.uses_servers
        if by_servers or not draft.makes_sparse:
            counted = with_gradients(layers, counted, makes_sparse=draft.makes_sparse, by_servers=by_servers)
        if draft.request.mode == "training":
            counted = with_saved(draft.layers, counted, draft.request.precision, draft.cluster)
        costs = tuple(annotate(cost, layers.dtype(i), draft.cluster) for i, cost in enumerate(counted))
        return advance(draft, Annotated, layers=layers, costs=costs)
