"""How a command that reviews ends: with a verdict, also where an error kept it from one.

Left out: what the verdicts are (``plan_diff/verdict.py``).
"""

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

import click

from heterps_compile.errors import HeterpsError
from heterps_compile.escape import one_line
from heterps_compile.plan_diff.verdict import verdict_of_error

from .output import tell

P = ParamSpec("P")


def judged(review: Callable[Concatenate[click.Context, P], int]) -> Callable[Concatenate[click.Context, P], int]:
    """Return a command's function that tells an error in one line and gives the exit code of what it means."""

    @wraps(review)
    def run(ctx: click.Context, /, *args: P.args, **kwargs: P.kwargs) -> int:
        try:
            return review(ctx, *args, **kwargs)
        except HeterpsError as error:
            tell(f"Error: {one_line(str(error))}")
            return verdict_of_error(error)

    return run
