"""The options of a run, written again: for the lines of other machines, and for the ranks of this one.

Left out: options that are not of the run (``--on``), and which machine this is (``--host``).
"""

import os
from collections.abc import Collection
from typing import Any

import click

from heterps_compile.options import UNBOUNDED
from heterps_compile.runtime.launch.run_options import RUN
from heterps_compile.units import plain_number

_PATHS = frozenset({
    "train", "data", "validate", "weights", "checkpoint", "server_directory", "hosts", "trace", "log", "telemetry",
    "tensorboard", "output",
})  # fmt: skip


def given_words(ctx: click.Context, *, without: Collection[str] = ()) -> list[str]:
    """Return the options of the run that were given, but for some, as they are to be written again."""
    written = {option.name for option in RUN.options} - {"host", *without}
    words: list[str] = []
    for param in ctx.command.params:
        name = param.name or ""
        if name not in written or not isinstance(param, click.Option):
            continue
        source = ctx.get_parameter_source(name)
        if source is None or source.name != "COMMANDLINE":
            continue
        words += [param.opts[-1]] if param.is_flag else [param.opts[-1], _as_written(name, ctx.params[name])]
    return words


def _as_written(name: str, value: Any) -> str:
    from heterps_compile.runtime.data.open_source import is_random  # noqa: PLC0415 - torch only when it runs

    if name in _PATHS and not (name in ("data", "validate") and is_random(value)):
        return os.path.abspath(str(value))  # the lines are typed wherever a shell happens to be
    if name == "server_memory":
        return f"{value} B"
    if name == "staleness":
        return UNBOUNDED if value is None else str(value)
    if name == "speeds":
        return ";".join(",".join(map(plain_number, part)) for part in value)
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return plain_number(value) if isinstance(value, float) else str(value)
