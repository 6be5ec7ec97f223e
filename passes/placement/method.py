"""What a placement method is: a name, its options as fields, and one call from a problem to a result.

Left out: the table of the methods (``methods.py``).
"""

from dataclasses import fields, is_dataclass, replace
from typing import Any, ClassVar, Protocol, cast

from heterps_compile.cost.problem import Placement, Problem, SearchResult


class PlacementMethod(Protocol):
    """A frozen dataclass with a name; its fields are its options.

    A method is deterministic for a seed unless a time limit stops it, or shares out its turns (``best``). It never
    returns a placement worse than a feasible warm start, keeps to ``problem.allowed``, and leaves ``bound`` at minus
    infinity where it proves none (``proof/certificate.py`` fills it in).

    A method that proves its own bound has a class attribute ``proves = True``: it gets the whole time limit, no other
    proof follows it, and its "infeasible" is final. Where it has a field ``proof_s``, it proves no longer than that
    without a time limit.
    """

    name: ClassVar[str]

    def __call__(
        self,
        problem: Problem,
        *,
        seed: int = 0,
        time_limit_s: float | None = None,
        warm_start: Placement | None = None,
    ) -> SearchResult:
        """Search for the placement of the lowest objective.

        Args:
            problem: What to place.
            seed: Seeds whatever is random.
            time_limit_s: Stop after this and give the best so far; None for no limit.
            warm_start: A placement to begin from, such as an old plan's.

        Raises:
            InfeasibleError: where the method found no feasible placement.
        """
        ...


def proves(method: PlacementMethod) -> bool:
    """Return whether a method proves its own bound; one that does not say so does not."""
    return bool(getattr(method, "proves", False))


def proving_for(method: PlacementMethod, proof_s: float) -> PlacementMethod:
    """Return the method with so many seconds for its proof, where these are an option of it."""
    if not is_dataclass(method) or "proof_s" not in {of.name for of in fields(method)}:
        return method
    return cast(PlacementMethod, replace(cast(Any, method), proof_s=proof_s))
