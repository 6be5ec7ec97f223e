"""The answer of ``machines`` for people and for programs: text with tables, and one JSON document.

Left out: the picture (``report/machines_page.py``).
"""

import datetime as dt
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from heterps_compile.columns.column import COUNT, LABEL, MONEY_PER_HOUR, Column, Unit
from heterps_compile.columns.terminal import terminal_table
from heterps_compile.escape import printable
from heterps_compile.offers.offer import CURRENCY
from heterps_compile.plan.command_options import OFFERS
from heterps_compile.units import counted, format_duration, format_money, format_percent, format_seconds, rate_number

from .chosen_file import FORMAT, VERSION, machine_records, transience_record
from .goal import Goal, described
from .learned import PREDICTION_ERROR
from .nothing_found import hours, whole
from .option import Option, excess
from .search import Answer
from .traced import Compared, PolicyCost
from .traced import document as policies_document
from .traced import told as told_of_policies

DURATION, MONEY, RATE = Unit(format_duration), Unit(format_money), Unit(rate_number)

_POLICIES: list[Column[PolicyCost]] = [
    Column("policy", lambda cost: cost.name),
    Column(CURRENCY, lambda cost: cost.money, MONEY),
    Column("over the optimum", lambda cost: 100 * cost.over, Unit(format_percent)),
    Column("missed", lambda cost: cost.missed, COUNT),
]

_ALIKE = 5e-4  # relative; below it percentages are printed as none
_REGIONS = 3  # that are told by name
_FRESH_DAYS: int = OFFERS.option("fresh_days").default


def print_answer(console: Console, answer: Answer, compared: Compared | None = None) -> None:
    """Print the set that wins and why, those that come next, the first that fails, the front, and policies."""
    for line in told(answer):
        console.print(Text(printable(line)))
    console.print()
    console.print(_table(answer, rows(answer), console.width))
    console.print()
    console.print(Text("no other set that was searched beats these in both time and money:"))
    console.print(_table(answer, [("", option) for option in answer.front], console.width))
    if compared is not None:
        console.print()
        print_policies(console, compared)
    for note in answer.notes:
        console.print(Text(printable(f"note: {note}")))


def stale_prices(answer: Answer, today: dt.date, fresh_days: int = _FRESH_DAYS) -> tuple[str, ...]:
    """Return a note where prices of the set that is chosen, or of those that come next, were read long ago."""
    rentals = [rental for option in (answer.best, *answer.runners_up) for rental, _ in option.machines.parts]
    old = {r.offer.title: r.offer for r in rentals if (today - r.offer.price_date).days > fresh_days}
    if not old:
        return ()
    worst = min(old.values(), key=lambda offer: offer.price_date)
    return (
        f"prices of {counted(len(old), 'offer')} above are older than {fresh_days} days on {today}, the oldest, of "
        f"{worst.title}, of {worst.price_date}; ask the provider before money depends on them",
    )


def print_policies(console: Console, compared: Compared) -> None:
    """Print what policies under the deadline cost on a trace."""
    for line in told_of_policies(compared):
        console.print(Text(line))
    if not compared.policies:
        return
    console.print(terminal_table(_POLICIES, compared.policies, console.width, currency=CURRENCY))


def told(answer: Answer) -> Iterator[str]:
    """Yield in sentences what wins, why, how good it is, and what fails."""
    best, goal, outlook = answer.best, answer.goal, answer.best.outlook
    yield f"asked: {described(goal)}"
    dates = sorted({rental.offer.price_date.isoformat() for rental, _ in best.machines.parts})
    price = f"{format_money(best.machines.price_per_hour)} {CURRENCY}/h"
    yield f"rent {best.machines.title}: {price}, as it was on {' and '.join(dates)}"
    yield (
        f"time {format_duration(outlook.median_s)} in the median, {format_duration(outlook.most_s)} in nine of ten "
        f"runs; money {format_money(outlook.median_money)} and {format_money(outlook.most_money)} {CURRENCY}"
    )
    yield (
        f"plan: {best.step.words}, {counted(best.step.micro_batches, 'micro-batch')} of a batch of {best.batch:,} "
        f"samples by {best.step.schedule}; {format_seconds(best.step.step_s)} a step, "
        f"{rate_number(best.samples_per_s)} samples/s"
    )
    if learned := best.machines.learned.corrections:
        source = printable(best.machines.learned.source)
        yield f"learned: {'; '.join(each.words for each in learned)}" + (f" ({source})" if source else "")
    yield why(answer)
    if answer.elsewhere:
        yield where_else(answer)
    yield how_good(answer)
    yield what_fails(answer)


def why(answer: Answer) -> str:
    """Return why the set wins: by how much the next best is worse, and in what it differs."""
    goal, best = answer.goal, answer.best
    if not answer.runners_up:
        return f"why: no set with other machines keeps all limits, of those that were searched ({answer.searched:,})"
    following = answer.runners_up[0]
    value, other = best.outlook.value(goal), following.outlook.value(goal)
    worse, alike = ("dearer", "as cheap") if goal.minimises_money else ("slower", "as fast")
    gap = other / value - 1
    price = following.machines.price_per_hour / best.machines.price_per_hour - 1
    rate = following.samples_per_s / best.samples_per_s - 1
    how = alike if gap < _ALIKE else f"{format_percent(100 * gap)} {worse}"
    batch = "" if following.batch == best.batch else f" with a batch of {counted(following.batch, 'sample')}"
    more = _change(rate).replace("much", "many").replace("less", "fewer")
    return (
        f"why: the next best, {following.machines.title}{batch}, is {how}: an hour of it costs {_change(price)}, and "
        f"it makes {more} samples/s"
    )


def where_else(answer: Answer) -> str:
    """Return where else the machines can be had, and for how much more."""
    price = answer.best.machines.price_per_hour
    shown = [
        f"in {option.machines.parts[0][0].offer.region} for {_change(option.machines.price_per_hour / price - 1)}"
        for option in answer.elsewhere
    ]
    others = f", and in {counted(len(shown) - _REGIONS, 'other region')}" if len(shown) > _REGIONS else ""
    return f"elsewhere: an hour of the same machines is to be had {', '.join(shown[:_REGIONS])}{others}"


def how_good(answer: Answer) -> str:
    """Return what is proven of the answer."""
    sets = f"of {counted(answer.looked_at, 'set')} of one kind or two"
    better = answer.goal.better
    if answer.gap <= 0:
        return f"bound: none {sets} is {better} by its bound"
    if answer.gap_of_one_kind <= 0:
        one_kind = f", and none of one kind {better}"
    elif answer.gap_of_one_kind < answer.gap:
        one_kind = f" ({format_percent(100 * answer.gap_of_one_kind)} of one kind)"
    else:
        one_kind = ""
    searched = f"plans were searched for on {answer.searched:,}"
    if answer.left:
        searched += f", and not on {answer.left:,} whose bounds would allow a better one"
    return f"bound: none {sets} can be more than {format_percent(100 * answer.gap)} {better}{one_kind}; {searched}"


def what_fails(answer: Answer) -> str:
    """Return a set that fails, by how much, and what would let it in."""
    option, goal = answer.failing, answer.goal
    if option is None:
        return f"fails: no limit is broken by any set that was searched ({answer.searched:,})"
    outlook, best = option.outlook, answer.best.outlook
    over = {
        "deadline": f"the deadline by {format_percent(100 * _over(outlook.most_s, goal.deadline_s))} "
        f"(--deadline {hours(outlook.most_s)})",
        "budget": f"the budget by {format_percent(100 * _over(outlook.most_money, goal.budget))} "
        f"(--budget '{whole(outlook.most_money)} {CURRENCY}')",
    }
    gain = 1 - outlook.value(goal) / best.value(goal)
    would = (
        f"would be {format_percent(100 * gain)} {goal.better}, and" if gain > 0 else "comes nearest of those that fail:"
    )
    verb = "misses" if gain > 0 else "it misses"
    return f"fails: {option.machines.title} {would} {verb} {' and '.join(over[name] for name in option.fails)}"


def _over(value: float, limit: float | None) -> float:
    return 0.0 if limit is None else value / limit - 1


def _change(change: float) -> str:
    if abs(change) < _ALIKE:
        return "as much" if change == 0 else "about as much"
    return f"{format_percent(100 * abs(change))} {'more' if change > 0 else 'less'}"


def rows(answer: Answer) -> list[tuple[str, Option]]:
    """Return the options that are told in a table, and what each is."""
    found = [("chosen", answer.best), *((f"next {n}", o) for n, o in enumerate(answer.runners_up, 1))]
    return found if answer.failing is None else [*found, ("fails", answer.failing)]


def figures(goal: Goal) -> list[Column[Option]]:
    """Return the columns of a table of options, without their names."""
    columns: list[Column[Option]] = [
        Column("batch", lambda option: option.batch, COUNT),
        Column("price", lambda option: option.machines.price_per_hour, MONEY_PER_HOUR),
        Column("samples/s", lambda option: option.samples_per_s, RATE),
        Column("time", lambda option: option.outlook.median_s, DURATION),
        Column("9 of 10", lambda option: option.outlook.most_s, DURATION),
        Column(CURRENCY, lambda option: option.outlook.median_money, MONEY),
        Column("9 of 10", lambda option: option.outlook.most_money, MONEY),
    ]
    return columns if len(goal.batches) > 1 else columns[1:]


def _table(answer: Answer, options: Sequence[tuple[str, Option]], width: int) -> Table:
    names = {id(option): name for name, option in options}
    columns: list[Column[Option]] = [Column("machines", lambda option: option.machines.title), *figures(answer.goal)]
    if any(names.values()):
        columns = [Column("", lambda option: names[id(option)], LABEL), *columns]
    return terminal_table(columns, [option for _, option in options], width, currency=CURRENCY)


def answer_document(answer: Answer, directory: str | None = None, compared: Compared | None = None) -> str:
    """Return the answer as one JSON document; times in seconds, money in US dollars."""
    goal = answer.goal
    document = {
        "format": FORMAT,
        "version": VERSION,
        "asked": {
            "samples": goal.samples,
            "batches": list(goal.batches),
            "deadline_s": goal.deadline_s,
            "budget_usd": goal.budget,
            "max_machines": goal.most_machines,
            "spot": goal.spot,
            "counts_start": goal.counts_start,
            "transience": transience_record(goal.transience),
        },
        "chosen": _option(answer.best),
        "runners_up": [_option(option) for option in answer.runners_up],
        "fails": None if answer.failing is None else _option(answer.failing) | {"excess": excess(answer.failing, goal)},
        "elsewhere": [_option(option) for option in answer.elsewhere],
        "front": [_option(option) for option in answer.front],
        "bound": {
            ("usd" if goal.minimises_money else "seconds"): answer.bound,
            "gap": answer.gap,
            "gap_of_one_kind": answer.gap_of_one_kind,
        },
        "sets": {
            "looked_at": answer.looked_at,
            "searched": answer.searched,
            "left": answer.left,
            "kinds": answer.kinds,
        },
        "prediction_error": answer.best.machines.late,
        "learned": {
            "source": answer.best.machines.learned.source,
            "corrections": [asdict(each) for each in answer.best.machines.learned.corrections],
            "without": PREDICTION_ERROR,
        },
        "told": list(told(answer)),
        "notes": list(answer.notes),
        "folder": directory,
    }
    if compared is not None:
        document["policies"] = policies_document(compared)
    return json.dumps(document, indent=2)


def _option(option: Option) -> dict[str, Any]:
    outlook, step = option.outlook, option.step
    return {
        "machines": machine_records(option.machines),
        "batch": option.batch,
        "usd_per_hour": option.machines.price_per_hour,
        "step_s": step.step_s,
        "samples_per_s": option.samples_per_s,
        "stages": [{"units": units, "machines": part} for units, part in step.stages],
        "shares": list(step.shares),
        "micro_batches": step.micro_batches,
        "schedule": step.schedule,
        "time_s": {"median": outlook.median_s, "most": outlook.most_s},
        "usd": {"median": outlook.median_money, "most": outlook.most_money},
        "breaks": list(option.fails),
    }
