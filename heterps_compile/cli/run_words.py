"""The options of a run, written again: for the lines of other machines, and for the ranks of this one.

Left out: options that are not of the run (``--host``, ``--no-check``).
"""

import os
from typing import Any

import click

from heterps_compile.units import plain_number

_PATHS = frozenset({
    "train", "data", "weights", "checkpoint", "server_directory", "hosts", "trace", "log", "telemetry", "tensorboard",
    "output",
})  # fmt: skip


def given_words(ctx: click.Context) -> list[str]:
    """Return the options that were given, as they are to be written again."""
    words: list[str] = []
    for param in ctx.command.params:
        name = param.name or ""
        if name in ("directory", "host", "no_check") or not isinstance(param, click.Option):
            continue
        source = ctx.get_parameter_source(name)
        if source is None or source.name != "COMMANDLINE":
            continue
        words += [param.opts[-1]] if param.is_flag else [param.opts[-1], _as_written(name, ctx.params[name])]
    return words


def _as_written(name: str, value: Any) -> str:
    from heterps_compile.runtime.data.open_source import is_random  # noqa: PLC0415 - torch only when it runs

    if name in _PATHS and not (name == "data" and is_random(value)):
        return os.path.abspath(str(value))  # the lines are typed wherever a shell happens to be
    if name == "server_memory":
        return f"{value} B"
    if name == "speeds":
        return ";".join(",".join(map(plain_number, part)) for part in value)
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return plain_number(value) if isinstance(value, float) else str(value)
