"""The options of the command ``machines``, which chooses what to rent.

Left out: the options of the commands that plan (``command_options.py``), some of which it shares.
"""

from typing import Any

from heterps_compile.options import Amount, Command, CountRange, Flag, Option, Text, Whole

from .command_options import COMPILE, OFFERS, ONNX
from .request import OPTIONS as REQUEST

_OF_COMPILE = {option.name: option for option in COMPILE.options}
_OF_OFFERS = {option.name: option for option in OFFERS.options}


def _option(name: str, words: str, type_: Any, help_text: str, metavar: str = "", **more: Any) -> Option:
    return Option(name=name, words=words, type=type_, help=help_text, metavar=metavar, **more)


MACHINES = Command(
    "machines",
    (ONNX,),
    (
        _option("samples", "--samples", Amount(above_zero=True), "To train on, over all epochs.", "N", required=True),
        _option(
            "batch", "--batch", CountRange(),
            "Samples in one step, or the least and the most of a range to choose from, in doublings.", "N|MIN:MAX",
            default_words="the model's",
        ),
        _option("deadline", "--deadline", Text(), "By when; the cheapest set is chosen.", "24h"),
        _option(
            "money", "--budget", Text(), "For how much in all; without a deadline the fastest set is chosen.",
            "'300 USD'",
        ),
        _option("spot", "--spot", Flag(), "Choose transient machines too.", default=False),
        _option(
            "lifetime", "--lifetime", Text(),
            "Of a transient machine: the mean where it is lost at a constant rate, or scale and shape of a Weibull.",
            "20h|20h,0.6", default_words="115h,0.53", needs_one=("spot", "resume"),
        ),
        _option(
            "lifetimes", "--lifetimes", Text(), "Lifetimes that were seen: a law is fitted to every kind of GPU.",
            "FILE.csv", needs_one=("spot", "resume"),
        ),
        _option(
            "trace", "--trace", Text(),
            "When transient machines were there: what policies under the deadline cost on it with the set chosen.",
            "FILE.csv", needs=("spot", "deadline"), against=("resume",),
        ),
        _option(
            "start_up", "--start-up", Text(),
            "Until a machine that is rented computes; it counts for all machines.", "3min",
            default_words="3min; nothing where no machine is lost or moved to",
        ),
        _option("max_machines", "--max-machines", Whole(1, 256), "In a set.", "N", default=16),
        _option(
            "learn", "--learn", Text(), "Measured steps, which correct what is predicted, kind by kind of GPU.",
            "FILE.csv",
        ),
        *(_OF_OFFERS[name] for name in ("catalogue", "gpu", "region", "provider")),
        _OF_COMPILE["shapes"],
        REQUEST["precision"],
        REQUEST["optimizer"],
        REQUEST["seed"],
        _option(
            "resume", "--resume", Text(),
            "Decide for a run that goes on from there: stay, move or wait, the deadline from now.", "CHECKPOINT",
            needs=("plan",), against=("pareto",),
        ),
        _option("plan", "--plan", Text(), "What it runs: a folder that -o wrote.", "DIR", needs=("resume",)),
        _option("spent", "--spent", Text(), "What it has cost so far.", "'120 USD'", needs=("resume",)),
        _option(
            "lost", "--lost", Text(), "How many of its machines are lost; of several kinds by instance.",
            "N|INSTANCE=N", needs=("resume",),
        ),
        _option(
            "wait", "--wait", Text(), "Until others can be had in their place.", "30min", default_words="0s",
            needs=("lost",),
        ),
        _option("output", "-o, --output", Text(), "Folder to write: pool.toml, plan and stages.", "DIR"),
        _option(
            "force", "--force", Flag(), "Replace DIR, also where no compilation wrote it.", default=False,
            needs=("output",),
        ),
        _option(
            "backend", "--backend", Text(), "What the stages run on.", "NAME", default_words="what trains",
            needs=("output",),
        ),
        _option(
            "pareto", "--pareto", Text(), "Write a page with money against time as a picture; it fetches nothing.",
            "FILE.html",
        ),
        _OF_COMPILE["as_json"],
    ),
)  # fmt: skip
