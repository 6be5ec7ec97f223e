"""What a user asks for, as a value; it is hashed into the plan and can be sent elsewhere."""

from dataclasses import dataclass

MODES = ("inference", "training")
OBJECTIVES = ("cost",)
DEFAULT_CLUSTER = "heterps-paper"
DEFAULT_METHOD = "rl"


@dataclass(frozen=True, slots=True)
class Request:
    """The options of one compilation.

    Attributes:
        objective: What is minimised: ``"cost"`` is the price of a million samples.
        min_throughput: Samples/s the plan must reach; 0 for no floor.
        mode: ``"inference"`` or ``"training"``.
        method: Name of the placement method.
        min_stages: The plan has at least this many stages.
        max_stages: And at most this many; None for no limit.
        pins: Device type per layer-name or layer-kind pattern, as (pattern, device type) pairs.
        seed: Seeds the search and the generated inputs.
        time_limit_s: The search stops after this; None for no limit.
    """

    objective: str = "cost"
    min_throughput: float = 0.0
    mode: str = "inference"
    method: str = DEFAULT_METHOD
    min_stages: int = 1
    max_stages: int | None = None
    pins: tuple[tuple[str, str], ...] = ()
    seed: int = 0
    time_limit_s: float | None = None
