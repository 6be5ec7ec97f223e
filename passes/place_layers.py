"""Give every layer a device type: run the search method that was asked for, and certify what it found.

Left out: the methods (``placement/``).
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from .contract import Draft, refine
from .placement.certificate import certify
from .placement.infeasible import explain_infeasible
from .placement.methods import find_method


@dataclass(frozen=True, slots=True)
class PlaceLayers:
    """Search for the placement of the lowest objective.

    Attributes:
        method: Name of the search method; "" for the request's.
    """

    method: str = ""
    name: ClassVar[str] = "place-layers"
    requires: ClassVar[tuple[str, ...]] = ("problem",)
    ensures: ClassVar[tuple[str, ...]] = ("search",)

    def __call__(self, draft: Draft) -> Draft:
        """Fill in ``search``.

        Raises:
            InfeasibleError: where no plan meets the request; says which constraint, by how much, what would help.
        """
        assert draft.problem is not None  # noqa: S101 - run_passes has checked it; this tells the type checker
        request = draft.request
        method = find_method(self.method or request.method)
        result = method(draft.problem, seed=request.seed, time_limit_s=request.time_limit_s)
        if not math.isfinite(result.value):
            raise explain_infeasible(draft.problem)
        return refine(draft, search=certify(draft.problem, result, request.time_limit_s))
