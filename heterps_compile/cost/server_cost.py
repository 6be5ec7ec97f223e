"""What parameter servers add to the price of a placement: the cores that carry its gradients in the time of a batch.

The search leaves them out (they follow from replicas that it chooses by the units' prices alone); a plan's price, and
what is said of moves from it, has them in.

Left out: which plans have servers (``Request.sync_rules``), the servers themselves (``runtime/servers``).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite

import numpy as np

from heterps_compile.cluster.devices import ParameterServer
from heterps_compile.ir.layers import LayerGraph
from heterps_compile.sync_rules.assignment import EVERY, Assignment, LayerWords, RuleEntry
from heterps_compile.sync_rules.through_servers import Servers

from .chosen_units import BUDGET_TOLERANCE
from .evaluate import Fault, PlacementDetail, StageDetail, detail, evaluate, to_arrays
from .gradients import gradients_of, held_bytes
from .layer_cost import LayerCost
from .objective import OBJECTIVES
from .problem import Floats, Placement, Problem
from .provisioners import parameter_servers
from .sync_groups import layer_words

_IN_EVERY_STAGE = Assignment((RuleEntry(EVERY, Servers()),))


@dataclass(frozen=True, slots=True)
class ServerCost:
    """What servers are needed for and cost.

    Attributes:
        gradient_bytes: Of every layer, what each of its replicas pushes for a batch.
        bytes_per_s: Of a core.
        price_per_hour: Of a core.
        rules: By which stages agree; those through servers count.
        words: What the rules may call the layers.
    """

    gradient_bytes: tuple[int, ...]
    bytes_per_s: float
    price_per_hour: float
    rules: Assignment
    words: tuple[LayerWords, ...]

    def cores(self, stages: Sequence[StageDetail]) -> int:
        """Return the cores that carry every replica's gradients in the time of a batch; 0 where no stage has two."""
        layers = [self.words[stage.first_layer : stage.end_layer] for stage in stages]
        pushed = sum(
            stage.replicas * sum(self.gradient_bytes[stage.first_layer : stage.end_layer])
            for stage, rule in zip(stages, self.rules.of_stages(layers, is_strict=False), strict=True)
            if stage.replicas > 1 and rule.uses_servers
        )
        slowest_s = max(stage.time_s for stage in stages)
        return parameter_servers(pushed, 1, self.bytes_per_s, slowest_s) if pushed and isfinite(slowest_s) else 0

    def added_to(self, problem: Problem, found: PlacementDetail, cores: int | None = None) -> PlacementDetail:
        """Return a placement with the price of its servers, or of so many cores, in its price and its value."""
        if found.faults:
            return found
        cores = self.cores(found.stages) if cores is None else cores
        paid = found.price_per_hour + cores * self.price_per_hour
        value = OBJECTIVES[problem.objective].paid(paid, found.throughput)
        priced = replace(found, price_per_hour=paid, value=found.value if value is None else value)
        if paid > problem.budget_per_hour * (1 + BUDGET_TOLERANCE):
            return replace(priced, value=inf, throughput=0.0, faults=Fault.BUDGET)  # its price stays, to be told
        return priced


def server_cost(
    layers: LayerGraph, costs: Sequence[LayerCost], server: ParameterServer, rules: Assignment = _IN_EVERY_STAGE
) -> ServerCost:
    """Return what servers are needed for by some layers, and what a pool's cost.

    Args:
        layers: The layers.
        costs: The work of each, with tables stepped by servers.
        server: A core of the pool's.
        rules: By which stages agree; by default all through servers.
    """
    gradients = tuple(held_bytes(gradients_of(layers, index, cost)) for index, cost in enumerate(costs))
    return ServerCost(gradients, server.bytes_per_s, server.price_per_hour, rules, layer_words(layers, costs))


@dataclass(frozen=True, slots=True)
class Pricing:
    """How placements are priced: by their units, and by their servers where there are any."""

    servers: ServerCost | None = None

    def detail(self, problem: Problem, placement: Placement) -> PlacementDetail:
        """Return a placement with its best replicas."""
        found = detail(problem, placement)
        return found if self.servers is None else self.servers.added_to(problem, found)

    def values(self, problem: Problem, placements: Sequence[Placement]) -> Floats:
        """Return the objective of placements; inf where infeasible."""
        if self.servers is None:
            return evaluate(problem, *to_arrays(list(placements))).values
        return np.array([self.detail(problem, placement).value for placement in placements])


UNITS_ALONE = Pricing()
"""As the search prices placements."""
