"""Placement methods side by side on one problem.

Left out: running them (``compare_methods.py``), printing them (``comparison_words.py``).
"""

from dataclasses import dataclass

from heterps_compile.cost.problem import MethodResult


@dataclass(frozen=True, slots=True)
class ProvisioningResult:
    """What one rule for replicas makes of one placement.

    Attributes:
        rule: Its name.
        value: Price of a million samples; inf where the rule gives no plan.
        price_per_hour: Of what it rents.
        throughput_samples_per_s: What that reaches.
        fault: Why there is no plan; "" where there is one.
    """

    rule: str
    value: float
    price_per_hour: float
    throughput_samples_per_s: float
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """All methods on one problem.

    Attributes:
        model: Name of the model.
        layer_count: Layers that were placed.
        type_count: Device types of the pool.
        bound: A proven lower bound on the value of every placement.
        currency: Of every price.
        objective: Name of the objective.
        batch: Samples in one step.
        results: In the order the methods were given.
        provisionings: The rules for replicas on the best placement found, for ``cost`` with a throughput floor.
    """

    model: str
    layer_count: int
    type_count: int
    bound: float
    currency: str
    objective: str
    batch: int
    results: tuple[MethodResult, ...]
    provisionings: tuple[ProvisioningResult, ...] = ()
