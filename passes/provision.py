"""Choose how many replicas every stage gets: the fewest that carry the throughput at the lowest price per sample.

The numbers are those the search priced the placement with (``cost/evaluate.py``); memory is shown part by part.

Left out: the choice of placement.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from heterps_compile.cost.evaluate import detail
from heterps_compile.cost.memory import stage_memory

from .contract import Draft, refine


@dataclass(frozen=True, slots=True)
class Provision:
    """Give every stage its replicas, times, memory and price."""

    name: ClassVar[str] = "provision"
    requires: ClassVar[tuple[str, ...]] = ("layers", "costs", "problem", "search", "stages")
    ensures: ClassVar[tuple[str, ...]] = ("stages",)

    def __call__(self, draft: Draft) -> Draft:
        """Fill in the stages' replicas and estimates."""
        assert draft.layers is not None  # noqa: S101 - run_passes has checked them; this tells the type checker
        assert draft.costs is not None  # noqa: S101
        assert draft.problem is not None  # noqa: S101
        assert draft.search is not None  # noqa: S101
        assert draft.stages is not None  # noqa: S101
        priced = detail(draft.problem, draft.search.placement)
        training = draft.request.mode == "training"
        stages = tuple(
            replace(
                stage,
                replicas=found.replicas,
                compute_s=found.compute_s,
                data_s=found.data_s,
                received_bytes=round(found.received_bytes),
                sent_bytes=round(found.sent_bytes),
                memory=stage_memory(draft.layers, draft.costs, found.first_layer, found.end_layer, training=training),
                price_per_hour=draft.cluster.device_type(stage.device).price_per_hour * found.replicas,
            )
            for stage, found in zip(draft.stages, priced.stages, strict=True)
        )
        return refine(draft, stages=stages)
