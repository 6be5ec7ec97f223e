"""Who came upon a placement, and how that is said; without NumPy, as plans say it too.

Left out: results of searches (``problem.py``).
"""

from types import MappingProxyType

PROOF, WARM_START, SIMPLE_PLAN = "proof", "warm start", "simple plan"
"""Who came upon a placement, where it was no part of a method: see ``SearchResult.found_by``."""

_FOUND_BY = MappingProxyType(
    {
        "policy": "the learned policy",
        "polish": "local search",
        PROOF: "the exact search",
        SIMPLE_PLAN: "trying the simple plans",
        WARM_START: "starting from the older plan",
    }
)


def finder(found_by: str) -> str:
    """Say who came upon a placement, in words; other names stay as they are."""
    return _FOUND_BY.get(found_by, found_by)
