"""Fuse neighbours on one device type into pipeline stages (``heterps_compile/plan/placed_stages.py`` draws it).

Left out: how many replicas a stage gets (``provision.py``).
"""

from dataclasses import dataclass
from typing import ClassVar

from heterps_compile.plan.placed_stages import stages_of

from .drafts import Fused, Placed, advance


@dataclass(frozen=True, slots=True)
class FuseStages:
    """Fuse neighbours on one device type into stages."""

    name: ClassVar[str] = "fuse-stages"

    def __call__(self, draft: Placed) -> Fused:
        """Fill in ``stages``, without replicas."""
        return advance(draft, Fused, stages=stages_of(draft.problem, draft.search.placement))
