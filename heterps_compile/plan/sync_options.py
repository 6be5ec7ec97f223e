"""The options of the command ``sync``, which compares rules by which replicas may agree.

Left out: the options of the commands that plan (``command_options.py``), some of which it shares.
"""

from dataclasses import replace

from heterps_compile.options import Command, Option, Repeated

from .command_options import EXPLAIN, PLAN_WITH_MODEL

_OF_EXPLAIN = {option.name: replace(option, subjects=()) for option in EXPLAIN.options}

SYNC = Command(
    "sync",
    (PLAN_WITH_MODEL,),
    (
        replace(_OF_EXPLAIN["plan"], required=True),
        Option(
            name="rules", words="--rule", type=Repeated(), metavar="RULE", default=(),
            help="To compare with all-reduce, in place of all; may be repeated.",
        ),
        _OF_EXPLAIN["cluster"],
        _OF_EXPLAIN["profile"],
        _OF_EXPLAIN["allow_stale"],
        replace(_OF_EXPLAIN["as_json"], help="Print one JSON document, with the numbers of every stage."),
    ),
)  # fmt: skip
