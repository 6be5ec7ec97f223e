"""Who came upon a placement, and how that is said; without NumPy, as plans say it too.

Left out: results of searches (``problem.py``).
"""

from types import MappingProxyType

PROOF, WARM_START, SIMPLE_PLAN, ORDERS, STEPS = "proof", "warm start", "simple plan", "orders", "steps"
MIXED = "mixed stages"
"""Who came upon a placement, where it was no part of a method: see ``SearchResult.found_by``."""

POLICY, POLISH = "policy", "polish"
"""The parts of a method that learns: what its policy drew, and what local search made of that."""

_FOUND_BY = MappingProxyType(
    {
        POLICY: "the learned policy",
        POLISH: "local search",
        PROOF: "the exact search",
        SIMPLE_PLAN: "trying the simple plans",
        ORDERS: "the search over orders of the layers",
        STEPS: "the search over steps",
        MIXED: "the search over stages of several device types",
        WARM_START: "starting from the older plan",
    }
)


def finder(found_by: str) -> str:
    """Say who came upon a placement, in words; other names stay as they are."""
    return _FOUND_BY.get(found_by, found_by)
