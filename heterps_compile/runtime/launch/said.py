"""What ranks leave in the store for one another, checked against a grammar when it is read.

Only those who know the secret of the run can write there; still a number is a number, and a name is never a path.

Left out: what has a form of its own (``faults.py``, ``task.py``, ``agree.py``).
"""

import re
from typing import TYPE_CHECKING

from heterps_compile.errors import RunError

if TYPE_CHECKING:
    from heterps_compile.runtime.c10d import Store

_NUMBER = re.compile(r"-?[0-9]{1,18}")
_SHOWN = 80


def said_word(store: "Store", key: str, pattern: re.Pattern[str], what: str) -> str:
    """Wait for a value and give it.

    Args:
        store: Of the run.
        key: Of the value.
        pattern: That all of it must match.
        what: A word for it.

    Raises:
        RunError: where it does not match.
    """
    content = bytes(store.get(key))
    text = content.decode("utf-8", "replace")
    if not pattern.fullmatch(text):
        raise RunError(
            f"the store of the run has {content[:_SHOWN]!r} where {what} is due; do all ranks run the same version?"
        )
    return text


def said_number(store: "Store", key: str, what: str, *, least: int = 0) -> int:
    """Wait for a number and give it.

    Raises:
        RunError: where it is none, or too small.
    """
    number = int(said_word(store, key, _NUMBER, what))
    if number < least:
        raise RunError(
            f"the store of the run has {number} where {what} is due, which is {least} or more; do all ranks run the "
            f"same version?"
        )
    return number
