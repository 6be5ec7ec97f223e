"""What a user asks for, as a value; it is hashed into the plan and can be sent elsewhere."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from heterps_compile.cost.objective import OBJECTIVES as _OBJECTIVES
from heterps_compile.errors import InputError, UnknownNameError
from heterps_compile.units import NUMBER, counted, parse_price

MODES = ("inference", "training")
OBJECTIVES = tuple(_OBJECTIVES)
MOST_SEED = 2**63 - 1
DEFAULT_CLUSTER = "heterps-paper"
DEFAULT_METHOD = "rl"
PROVISIONERS = ("exact", "closed-form", "newton")
SYNCHRONISATIONS = ("all-reduce", "parameter-server")

_NUMBER = re.compile(NUMBER, re.ASCII)


@dataclass(frozen=True, slots=True)
class Request:
    """The options of one compilation.

    Attributes:
        objective: What the plan is the best in: a name of :data:`~heterps_compile.cost.objective.OBJECTIVES`.
        min_throughput: Samples/s the plan must reach; 0 for no floor.
        budget_per_hour: What its units may cost in an hour, in the pool's currency; None for no limit.
        mode: ``"inference"`` or ``"training"``.
        method: Name of the placement method.
        min_stages: The plan has at least this many stages.
        max_stages: And at most this many; None for no limit.
        provisioner: Name of the rule that gives stages their replicas.
        synchronisation: How replicas agree on parameters in training: ``"all-reduce"`` or ``"parameter-server"``.
        pins: Device type per layer-name or layer-kind pattern, as (pattern, device type) pairs.
        forbidden: Device types that layers must not go to, in the same form.
        seed: Seeds the search and the generated inputs.
        time_limit_s: The search stops after this; None for no limit.
    """

    objective: str = "cost"
    min_throughput: float = 0.0
    budget_per_hour: float | None = None
    mode: str = "inference"
    method: str = DEFAULT_METHOD
    min_stages: int = 1
    max_stages: int | None = None
    provisioner: str = PROVISIONERS[0]
    synchronisation: str = SYNCHRONISATIONS[0]
    pins: tuple[tuple[str, str], ...] = ()
    forbidden: tuple[tuple[str, str], ...] = ()
    seed: int = 0
    time_limit_s: float | None = None


def make_request(
    currency: str,
    *,
    objective: str = OBJECTIVES[0],
    min_throughput: float | None = None,
    budget: float | str | None = None,
    mode: str = MODES[0],
    method: str = DEFAULT_METHOD,
    min_stages: int = 1,
    max_stages: int | None = None,
    provisioner: str = PROVISIONERS[0],
    synchronisation: str = SYNCHRONISATIONS[0],
    pins: Mapping[str, str] | None = None,
    forbidden: Sequence[tuple[str, str]] = (),
    seed: int = 0,
    time_limit: float | None = None,
) -> Request:
    """Check what a user asks for and give it as a value.

    Args:
        currency: Of the pool.
        objective: A name of :data:`OBJECTIVES`.
        min_throughput: Samples/s; None for no floor.
        budget: Per hour: a number in the pool's currency or a price with its own; None for no limit.
        mode: ``"inference"`` or ``"training"``.
        method: Name of the placement method.
        min_stages: At least so many stages.
        max_stages: At most so many; None for no limit.
        provisioner: One of :data:`PROVISIONERS`.
        synchronisation: One of :data:`SYNCHRONISATIONS`.
        pins: Device type per pattern.
        forbidden: Pairs of pattern and device type.
        seed: Of the search and of generated inputs.
        time_limit: Seconds; None for no limit.

    Raises:
        UnknownNameError: for an unknown objective, mode, provisioner or synchronisation.
        InputError: where a number makes no sense, or options contradict each other.
    """
    if objective not in _OBJECTIVES:
        raise UnknownNameError("objective", objective, OBJECTIVES)
    for what, name, known in (
        ("mode", mode, MODES),
        ("provisioner", provisioner, PROVISIONERS),
        ("synchronisation", synchronisation, SYNCHRONISATIONS),
    ):
        if name not in known:
            raise UnknownNameError(what, name, known)
    if provisioner != PROVISIONERS[0] and objective != "cost":
        raise InputError(f"the provisioner {provisioner!r} is for the objective cost, not {objective!r}")
    if provisioner != PROVISIONERS[0] and not min_throughput:
        raise InputError(f"the provisioner {provisioner!r} needs a throughput floor (--min-throughput)")
    if synchronisation == "parameter-server" and mode != "training":
        raise InputError("parameter servers are for training (--mode training); inference synchronises nothing")
    if mode == "training" and not _OBJECTIVES[objective].in_training:
        raise InputError(f"the objective {objective!r} is for inference; for training ask for cost or throughput")
    floor = 0.0 if min_throughput is None else _number("the throughput floor", min_throughput)
    if not 0 <= floor < float("inf"):
        raise InputError(f"the throughput floor is {min_throughput} samples/s; it must be 0 or more, and finite")
    for what, count, least in (("min_stages", min_stages, 1), ("max_stages", max_stages, 1), ("the seed", seed, 0)):
        if count is not None and (not isinstance(count, int) or count < least):
            raise InputError(f"{what} is {count!r}; it must be a whole number, {least} or more")
    if max_stages is not None and max_stages < min_stages:
        raise InputError(
            f"at least {min_stages} and at most {counted(max_stages, 'stage')} are asked for; no plan has both"
        )
    limit_s = None if time_limit is None else _number("the time limit", time_limit)
    if limit_s is not None and not limit_s > 0:
        raise InputError(f"the time limit is {time_limit} s; it must be above 0")
    return Request(
        objective=objective,
        min_throughput=floor,
        budget_per_hour=_budget(budget, objective, currency),
        mode=mode,
        method=method,
        min_stages=min_stages,
        max_stages=max_stages,
        provisioner=provisioner,
        synchronisation=synchronisation,
        pins=tuple((pins or {}).items()),
        forbidden=tuple(forbidden),
        seed=seed,
        time_limit_s=limit_s,
    )


def _number(what: str, value: float | str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise InputError(f"{what} is {value!r}; it must be a number") from error


def _budget(budget: float | str | None, objective: str, currency: str) -> float | None:
    if budget is None:
        return None
    if not _OBJECTIVES[objective].takes_budget:
        takers = " or ".join(name for name, known in _OBJECTIVES.items() if known.takes_budget)
        raise InputError(f"a budget goes with the objective {takers}, not with {objective!r}; leave one of them out")
    if isinstance(budget, str) and not _NUMBER.fullmatch(budget):
        amount, priced_in = parse_price(budget)
        if priced_in != currency:
            raise InputError(
                f"the budget {budget!r} is in {priced_in}, the pool is priced in {currency}; give it in {currency}"
            )
    else:
        amount = _number("the budget", budget)
    if not 0 < amount < float("inf"):
        raise InputError(f"the budget is {budget}; it must be above 0 {currency}/h, and finite")
    return amount
