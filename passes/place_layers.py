"""Place layers on device types: run a search method, then prove how far from the optimum its plan can be.

Left out: the methods (``placement/``), replicas in the plan (``provision.py``).
"""

import time
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from heterps_compile.errors import InfeasibleError

from .contract import Draft, refine
from .placement.certificate import certify
from .placement.exact import Exact
from .placement.methods import find_method

_METHOD_SHARE = 0.7  # of a time limit; the rest is for the proof


@dataclass(frozen=True, slots=True)
class PlaceLayers:
    """Run a placement method and certify its result.

    Attributes:
        method: Name of the method; "" for the request's.
        proof_s: Most seconds the proof may take; a time limit of the request may leave it less.
    """

    method: str = ""
    proof_s: float = 20.0

    name: ClassVar[str] = "place-layers"
    requires: ClassVar[tuple[str, ...]] = ("problem",)
    ensures: ClassVar[tuple[str, ...]] = ("search",)

    def __call__(self, draft: Draft) -> Draft:
        """Fill in ``search``.

        Raises:
            UnknownNameError: where there is no such method.
            InfeasibleError: where no placement is feasible, with the constraint and what would help; or where only
                this method finds none.
        """
        assert draft.problem is not None  # noqa: S101 - run_passes has checked it; this tells the type checker
        problem, request = draft.problem, draft.request
        method = find_method(self.method or request.method)
        limit_s, started = request.time_limit_s, time.monotonic()
        is_exact = isinstance(method, Exact)
        share = 1.0 if is_exact else _METHOD_SHARE
        try:
            result = method(problem, seed=request.seed, time_limit_s=None if limit_s is None else share * limit_s)
        except InfeasibleError:
            if not is_exact:
                Exact()(problem, time_limit_s=self.proof_s)  # where nothing is feasible, this one says why
            raise
        left_s = np.inf if limit_s is None else limit_s - (time.monotonic() - started)
        if not is_exact:
            result = certify(problem, result, min(self.proof_s, max(0.0, left_s)))
        return refine(draft, search=result)
