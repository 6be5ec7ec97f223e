"""The options of a run, written again: for the lines of other machines, and for the ranks of this one.

Left out: which machine a line is for (``engines/launch_lines.py``).
"""

import os
from typing import Any

from heterps_compile.options import Flag, Option
from heterps_compile.units import plain_number

from .run_options import RUN, RunOptions

_PATHS = frozenset({
    "train", "data", "validate", "weights", "checkpoint", "server_directory", "trace", "log", "telemetry",
    "tensorboard", "output",
})  # fmt: skip


def option_words(options: RunOptions) -> list[str]:
    """Return the options of a run that have another value than their default, as they are to be written again."""
    values = options.by_name
    words: list[str] = []
    for option in RUN.options:
        value = values[option.name]
        if value == option.default:
            continue
        word = option.words.split(", ")[-1]
        words += [word] if isinstance(option.type, Flag) else [word, _as_written(option, value)]
    return words


def _as_written(option: Option, value: Any) -> str:
    from heterps_compile.runtime.data.open_source import is_random  # noqa: PLC0415 - torch only when it runs
    from heterps_compile.runtime.data.remote_file import is_remote  # noqa: PLC0415 - as above

    name = option.name
    is_no_path = name in ("data", "validate") and (is_random(value) or is_remote(value))
    if name in _PATHS and not is_no_path:
        return os.path.abspath(str(value))  # the lines are typed wherever a shell happens to be
    if name == "server_memory":
        return f"{value} B"
    if name == "speeds":
        return ";".join(",".join(map(plain_number, part)) for part in value)
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return plain_number(value) if isinstance(value, float) else str(value)
