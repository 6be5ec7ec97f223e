"""The summary of a step of a GitHub workflow: Markdown, appended to the file that the runner names.

Left out: the Markdown itself (``report/``).
"""

import os
from pathlib import Path

from heterps_compile.errors import InputError

_VARIABLE = "GITHUB_STEP_SUMMARY"


def append_summary(markdown: str) -> None:
    """Append to the step's summary; nothing where no runner asks for one.

    Raises:
        InputError: where the file cannot be written.
    """
    target = os.environ.get(_VARIABLE)
    if not target:
        return
    try:
        with Path(target).open("a", encoding="utf-8") as file:
            file.write(markdown + "\n")
    except OSError as error:
        raise InputError(f"cannot write the step summary {target!r} ({_VARIABLE}): {error.strerror}") from error
