"""What a user asks for, as a value; it is hashed into the plan and can be sent elsewhere.

Each field of :class:`Request` declares its option: how it is called and written, its default and its help, and how a
value given in Python is accepted. The options of the commands, the keywords of ``compile()`` and the plan's request
part are made from these declarations.

Left out: options that do not become part of a plan's request (``command_options.py``).
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from heterps_compile.cost.memory import NEVER, OPTIMIZERS, RECOMPUTATIONS, USUAL_OPTIMIZER
from heterps_compile.cost.objective import OBJECTIVES as _OBJECTIVES
from heterps_compile.cost.precision import FULL, PRECISIONS
from heterps_compile.errors import InputError, UnknownNameError
from heterps_compile.escape import printable, short
from heterps_compile.options import SEED, Amount, Choice, Flag, Option, OptionType, Pairs, Pins, Text, Whole
from heterps_compile.sync_rules.assignment import AUTO as CHOSEN
from heterps_compile.sync_rules.assignment import Assignment, choice_text, parse_assignment, parse_choice
from heterps_compile.sync_rules.rule import EXACTNESSES, SyncRule, allowed_classes
from heterps_compile.sync_rules.rule_text import rule_text
from heterps_compile.sync_rules.rules import ALIASES
from heterps_compile.sync_rules.rules import USUAL as USUAL_RULE
from heterps_compile.units import NUMBER, counted, parse_price

MODES = ("inference", "training")
OBJECTIVES = tuple(_OBJECTIVES)
DEFAULT_CLUSTER = "heterps-paper"
DEFAULT_METHOD = "best"
PROVISIONERS = ("exact", "closed-form", "newton")
USUAL_SYNCHRONISATION = rule_text(USUAL_RULE)
AUTO, HELD, SERVED, CHEAPEST = "auto", "held", "served", "cheapest"
TABLES = (AUTO, HELD, SERVED, CHEAPEST)
USUAL_TABLES = AUTO
STEADY, ALONE = "steady-state", "one-batch-alone"
READINGS = (STEADY, ALONE)

_NUMBER = re.compile(NUMBER, re.ASCII)

Accept = Callable[[Any, str], Any]
"""Turns a value given in Python into the field's, with the pool's currency; raises a HeterpsError."""


def _one_of(what: str, names: tuple[str, ...]) -> Accept:
    def accept(name: Any, _currency: str) -> Any:
        if name not in names:
            raise UnknownNameError(what, name, names)
        return name

    return accept


def _whole(what: str, of: Whole) -> Accept:
    def accept(count: Any, _currency: str) -> Any:
        if count is not None:
            of.check(what, count)
        return count

    return accept


def _yes_or_no(what: str) -> Accept:
    def accept(value: Any, _currency: str) -> Any:
        if not isinstance(value, bool):
            raise InputError(f"{what} is {value!r}; it must be True or False")
        return value

    return accept


def _number(what: str, value: Any) -> float:
    try:
        if not isinstance(value, bool):
            return float(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise InputError(f"{what} is {short(value)}; it must be a number")


def _floor(value: Any, _currency: str) -> float:
    floor = 0.0 if value is None else _number("the throughput floor", value)
    if not 0 <= floor < float("inf"):
        raise InputError(f"the throughput floor is {value} samples/s; it must be 0 or more, and finite")
    return floor


def _limit_s(value: Any, _currency: str) -> float | None:
    limit_s = None if value is None else _number("the time limit", value)
    if limit_s is not None and not limit_s > 0:
        raise InputError(f"the time limit is {value} s; it must be above 0")
    return limit_s


def _budget(value: Any, currency: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, str) and not _NUMBER.fullmatch(value):
        amount, priced_in = parse_price(value)
        if priced_in != currency:
            raise InputError(
                f"the budget {value!r} is in {priced_in}, the pool is priced in {currency}; give it in {currency}"
            )
    else:
        amount = _number("the budget", value)
    if not 0 < amount < float("inf"):
        raise InputError(f"the budget is {value}; it must be above 0 {currency}/h, and finite")
    return amount


def _pairs(value: Any, _currency: str) -> tuple[tuple[str, str], ...]:
    return tuple(value.items()) if isinstance(value, Mapping) else tuple(value or ())


def _option(
    words: str, kind: OptionType, help_text: str, *, accept: Accept = lambda value, _: value, **more: Any
) -> Any:
    """Return a field with its option; ``name`` is what it is asked for by, where the field has another name.

    ``default`` is that of the option, ``kept`` that of the field where it keeps it in another form.
    """
    kept = more.pop("kept", more.get("default"))
    option = Option(name=more.pop("name", ""), words=words, type=kind, help=help_text, **more)
    return field(default=kept, metadata={"option": option, "accept": accept})


@dataclass(frozen=True, slots=True)
class Request:
    """The options of one compilation; the help of each says what it is."""

    objective: str = _option(
        "--objective", Choice(OBJECTIVES),
        "What the plan is the best in: cost of a million samples; price of an hour at the floor (--min-throughput); "
        "throughput; latency of a batch; max-load, the load "
        "of the busiest device with one unit a stage, which is what a workload is solved for.",
        accept=_one_of("objective", OBJECTIVES), default=OBJECTIVES[0],
    )  # fmt: skip
    min_throughput: float = _option(
        "--min-throughput", Amount(), "Throughput the plan must reach.", accept=_floor, metavar="SAMPLES/S", kept=0.0
    )
    budget_per_hour: float | None = _option(
        "--budget", Text(), "Most the units may cost, such as '5 USD/h': throughput, latency.", accept=_budget,
        name="budget", metavar="PRICE/H",
    )  # fmt: skip
    mode: str = _option(
        "--mode", Choice(MODES), "What the stages are for.", accept=_one_of("mode", MODES), default=MODES[0]
    )
    reading: str | None = _option(
        "--reading", Choice(READINGS),
        "What is minimised, and held to the floor: the time from batch to batch, or the step of one batch alone.",
        accept=lambda name, _: name if name is None else _one_of("reading", READINGS)(name, _),
        default_words="steady-state; in training one-batch-alone",
    )  # fmt: skip
    precision: str = _option(
        "--precision", Choice(tuple(PRECISIONS)),
        "What a run computes in: float32, products in TF32, or mixed with bfloat16 or float16 (stages of torch).",
        accept=_one_of("precision", tuple(PRECISIONS)), default=FULL,
    )  # fmt: skip
    optimizer: str = _option(
        "--optimizer", Choice(tuple(OPTIMIZERS)), "Whose states a training holds in memory.",
        accept=_one_of("optimizer", tuple(OPTIMIZERS)), default=USUAL_OPTIMIZER,
    )  # fmt: skip
    recompute: str = _option(
        "--recompute", Choice(RECOMPUTATIONS),
        "Which stages compute activations again in the backward of a training: auto, those that fit no other way.",
        accept=_one_of("recomputation", RECOMPUTATIONS), default=RECOMPUTATIONS[0],
    )  # fmt: skip
    method: str = _option(
        "--method", Text(), "Search method: best, exact, rl, …; of a workload, exact or sample.", metavar="NAME",
        default=DEFAULT_METHOD,
    )  # fmt: skip
    min_stages: int = _option(
        "--min-stages", Whole(), "Cut into so many or more.", accept=_whole("min_stages", Whole()), metavar="N",
        default=1,
    )  # fmt: skip
    max_stages: int | None = _option(
        "--max-stages", Whole(), "Cut into so many or fewer.", accept=_whole("max_stages", Whole()), metavar="N"
    )
    mixed_stages: bool = _option(
        "--mixed-stages", Flag(), "Let replicas of a stage be of several device types, fed by their speed.",
        accept=_yes_or_no("mixed_stages"), default=False,
    )  # fmt: skip
    provisioner: str = _option(
        "--provisioner", Choice(PROVISIONERS),
        "How stages get replicas; the rules of the HeterPS paper need --min-throughput.",
        accept=_one_of("provisioner", PROVISIONERS), default=PROVISIONERS[0],
    )  # fmt: skip
    synchronisation: str = _option(
        "--sync", Text(),
        "How replicas agree in training, stage by stage: 'embedding=servers, *=topk(density=0.01)', a rule for all, or "
        "auto.",
        accept=lambda text, _: synchronisation_text(text), metavar="RULES", default=USUAL_SYNCHRONISATION,
    )  # fmt: skip
    allow: str = _option(
        "--allow", Choice(EXACTNESSES),
        "What rules --sync auto may choose: exact, as one process trains; bounded, what is late or left out comes "
        "later; any.",
        accept=_one_of("class of synchronisation rules", EXACTNESSES), default=EXACTNESSES[0],
    )  # fmt: skip
    tables: str = _option(
        "--tables", Choice(TABLES),
        "Where embedding tables lie: on parameter servers if no unit holds them (auto), in their stages (held), on "
        "servers (served), or wherever the plan is the best (cheapest).",
        accept=_one_of("place for tables", TABLES), default=TABLES[0],
    )  # fmt: skip
    pins: tuple[tuple[str, str], ...] = _option(
        "--pin", Pins(), "Device type for layers, by name, kind, intensity (data-intensive) or pattern.",
        accept=_pairs, metavar="PATTERN=DEVICE", default={}, kept=(),
    )  # fmt: skip
    forbidden: tuple[tuple[str, str], ...] = _option(
        "--forbid", Pairs(), "Device type that layers must not go to.", accept=_pairs, metavar="PATTERN=DEVICE",
        default=(),
    )  # fmt: skip
    seed: int = _option(
        "--seed", SEED, "Of search and verification.", accept=_whole("the seed", SEED), metavar="N",
        default=0,
    )  # fmt: skip
    time_limit_s: float | None = _option(
        "--time-limit", Amount(above_zero=True), "Stop the search with the best plan so far.", accept=_limit_s,
        name="time_limit", metavar="SECONDS",
    )  # fmt: skip

    @property
    def purpose(self) -> str:
        """Say what the stages are for, in words: the mode, a precision other than float32, an optimizer but Adam."""
        words = self.mode if self.precision == FULL else f"{self.mode} in {self.precision}"
        return words if self.optimizer == USUAL_OPTIMIZER else f"{words} with {self.optimizer}"

    @property
    def minimises_step(self) -> bool:
        """Return whether values are of one batch alone: as asked, else in training, where steps cannot overlap.

        The paper's rules for replicas and parameter servers are known in the steady state alone, and so is what is
        asked for with them.
        """
        if self.reading is not None:
            return self.reading == ALONE
        is_usual = self.provisioner == PROVISIONERS[0] and not self.sync_rules.uses_servers
        return self.mode == "training" and is_usual and _OBJECTIVES[self.objective].has_readings

    @property
    def reads(self) -> str:
        """Return the name of the reading that values are of."""
        return ALONE if self.minimises_step else STEADY

    @property
    def chooses_rules(self) -> bool:
        """Return whether the rules by which replicas agree are left to the planner."""
        return _parsed_choice(self.synchronisation) is not None

    @property
    def rules_named(self) -> tuple[SyncRule, ...]:
        """Return the rules that the planner is to choose from; none where it chooses from those that are usual."""
        return _parsed_choice(self.synchronisation) or ()

    @property
    def sync_rules(self) -> Assignment:
        """Return the rules by which replicas agree; the default where they are left to the planner."""
        return _RULES_CHOSEN if self.chooses_rules else _parsed_rules(self.synchronisation)

    @property
    def is_all_reduced(self) -> bool:
        """Return whether the replicas of every stage all-reduce, as asked."""
        return not self.chooses_rules and self.sync_rules.is_usual

    @property
    def trains_with(self) -> str | None:
        """Return the optimizer whose states are held; None for inference."""
        return self.optimizer if self.mode == "training" else None

    @property
    def recomputes(self) -> str:
        """Return which stages compute their activations again; none in inference."""
        return self.recompute if self.mode == "training" else NEVER

    def asked(self) -> dict[str, Any]:
        """Return the keywords that ask ``compile()`` for this."""
        values = {
            option.name: getattr(self, of.name) for option, of in zip(OPTIONS.values(), fields(self), strict=True)
        }
        return values | {"pins": dict(self.pins)}


_RULES_CHOSEN = Assignment()
_parsed_rules = lru_cache(maxsize=64)(parse_assignment)
_parsed_choice = lru_cache(maxsize=64)(parse_choice)


def synchronisation_text(text: Any) -> str:
    """Return rules in the form in which plans have them; a name that earlier versions had stays.

    Raises:
        HeterpsError: where the text is no rules.
    """
    if not isinstance(text, str):
        raise InputError(f"the synchronisation is {short(text)}; give rules as text, such as 'topk(density=0.01)'")
    chosen = None if text in ALIASES else parse_choice(text)
    if chosen is not None:
        return choice_text(chosen)
    return text if text in ALIASES else str(parse_assignment(text))


def _declared(of: "Field[Any]") -> Option:
    option: Option = of.metadata["option"]
    return replace(option, name=option.name or of.name)


OPTIONS: Mapping[str, Option] = MappingProxyType({_declared(of).name: _declared(of) for of in fields(Request)})
"""The options of a request by the names they are asked for by, in the order of its fields."""


def make_request(currency: str, **asked: Any) -> Request:
    """Check what a user asks for and return it as a value.

    Args:
        currency: Of the pool.
        asked: Values of :data:`OPTIONS` by name; those left out have their defaults.

    Raises:
        TypeError: for a keyword that is no option.
        UnknownNameError: for an unknown objective, mode, provisioner or synchronisation rule.
        InputError: where a number makes no sense, or options contradict each other.
    """
    unknown = sorted(set(asked) - set(OPTIONS))
    if unknown:
        raise TypeError(f"a request has no option {unknown[0]!r}; it has {', '.join(OPTIONS)}")
    request = Request(
        **{
            of.name: of.metadata["accept"](asked[name], currency)
            for name, of in zip(OPTIONS, fields(Request), strict=True)
            if name in asked
        }
    )
    for fault in _contradictions(request):
        raise InputError(fault)
    return request


def _rules_that_cannot_be(request: Request, sync: str) -> Iterator[str]:
    """Say which rules of synchronisation cannot be asked for, or not together with others."""
    if request.sync_rules.uses_servers and request.mode != "training":
        yield "parameter servers are for training (--mode training); inference synchronises nothing"
    if not request.is_all_reduced and request.mode != "training":
        yield f"{sync} is for training (--mode training); inference synchronises nothing"
    for rule in (*request.rules_named, *request.sync_rules.rules):
        if rule.never_planned:
            yield f"{rule_text(rule)} is in no plan (--sync): {rule.never_planned}"
    for entry in request.sync_rules.entries:
        if entry.names_stage:
            yield (
                f"{sync} names {entry.pattern} by its number, which stages have once there is a plan; name layers, "
                f"such as 'fc*={rule_text(entry.rule)}', or give the rule to a run of the plan "
                f"(run PLAN --sync {str(entry)!r})"
            )
    if request.allow != EXACTNESSES[0] and not request.chooses_rules:
        yield f"--allow {request.allow} is for --sync {CHOSEN}, which chooses rules; leave it out, or --sync {CHOSEN}"
    for rule in request.rules_named:
        if rule.uses_servers:
            yield f"{sync} names {rule_text(rule)}, and servers have a price and are not chosen; leave it out"
        elif rule.exactness not in allowed_classes(request.allow):
            yield f"{sync} names {rule_text(rule)}, which is {rule.exactness}; take --allow {rule.exactness}"
        elif rule.is_of_whole_models:
            yield (
                f"{sync} names {rule_text(rule)}, which is a rule of whole models, and rules are chosen stage by "
                f"stage; ask for it alone (--sync '{rule_text(rule)}')"
            )
    for rule in request.sync_rules.rules:
        if rule.is_of_whole_models and len(request.sync_rules.rules) > 1:
            yield (
                f"{sync} has a rule of whole models, {rule_text(rule)}, for some stages; give it to all of "
                f"them (--sync '{rule_text(rule)}'), or to none"
            )


def _contradictions(request: Request) -> Iterator[str]:
    """Say which options cannot be asked for together, the worst first."""
    objective, provisioner = _OBJECTIVES[request.objective], request.provisioner
    if provisioner != PROVISIONERS[0] and request.objective != "cost":
        yield f"the provisioner {provisioner!r} is for the objective cost, not {request.objective!r}"
    if provisioner != PROVISIONERS[0] and not request.min_throughput:
        yield f"the provisioner {provisioner!r} needs a throughput floor (--min-throughput)"
    sync, has_servers = f"--sync {printable(request.synchronisation)}", request.sync_rules.uses_servers
    yield from _rules_that_cannot_be(request, sync)
    if request.tables in (SERVED, CHEAPEST) and has_servers:
        yield f"--tables {request.tables} and {sync} are not planned together; leave one of them out"
    if request.tables in (SERVED, CHEAPEST) and provisioner != PROVISIONERS[0]:
        yield f"--tables {request.tables} needs the exact provisioner, which counts servers; leave out {provisioner!r}"
    if request.optimizer != USUAL_OPTIMIZER and request.mode != "training":
        yield f"the optimizer {request.optimizer!r} is for training (--mode training); inference holds no states"
    if request.recompute != RECOMPUTATIONS[0] and request.mode != "training":
        yield f"--recompute {request.recompute} is for training (--mode training); inference has no backward"
    if request.mode == "training" and not objective.in_training:
        yield f"the objective {request.objective!r} is for inference; for training ask for cost, price or throughput"
    if request.max_stages is not None and request.max_stages < request.min_stages:
        most = counted(request.max_stages, "stage")
        yield f"at least {request.min_stages} and at most {most} are asked for; no plan has both"
    if request.reading is not None and not objective.has_readings:
        yield f"the objective {request.objective!r} is a time of its own, in no reading of a plan; leave --reading out"
    if request.reading == ALONE and provisioner != PROVISIONERS[0]:
        yield f"the provisioner {provisioner!r} is a rule of the steady state; leave it out, or --reading {ALONE}"
    if request.reading == ALONE and has_servers:
        yield f"what parameter servers take is known in the steady state; leave them out, or --reading {ALONE}"
    if request.mixed_stages and not objective.has_readings:
        helped = ", ".join(name for name, known in _OBJECTIVES.items() if known.has_readings)
        yield (
            f"stages of several device types do not help the objective {request.objective!r}; ask for {helped}, or "
            f"leave --mixed-stages out"
        )
    if request.mixed_stages and provisioner != PROVISIONERS[0]:
        yield f"--mixed-stages needs the exact provisioner, which counts units of every type; leave out {provisioner!r}"
    if request.mixed_stages and has_servers:
        yield (
            f"--mixed-stages and {sync} are not planned together, as parameter servers are counted for stages of one "
            f"device type; leave one of them out"
        )
    if request.mixed_stages and request.tables in (SERVED, CHEAPEST):
        yield f"--mixed-stages and --tables {request.tables} are not planned together; leave one of them out"
    if objective.needs_floor and not request.min_throughput:
        yield (
            f"the objective {request.objective!r} needs a throughput floor (--min-throughput), without which the "
            f"cheapest hour is that of the slowest plan; give the samples/s that must be met, or ask for --objective "
            f"{objective.other}"
        )
    if request.budget_per_hour is not None and not objective.takes_budget:
        takers = " or ".join(name for name, known in _OBJECTIVES.items() if known.takes_budget)
        yield f"a budget goes with the objective {takers}, not with {request.objective!r}; leave one of them out"
