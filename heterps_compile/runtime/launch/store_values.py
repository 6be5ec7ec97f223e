"""Values that ranks write to the store of a run and read, each checked against a grammar: a name is never a path.

Left out: the store (``run_store.py``), and who writes what (``watch.py``, ``preflight.py``,
``checkpoint/collective.py``).
"""

import re
from typing import TYPE_CHECKING

from heterps_compile.errors import RunError
from heterps_compile.strict_json import adapter_of

if TYPE_CHECKING:
    from heterps_compile.runtime.c10d import Store

_NUMBER = re.compile(r"-?[0-9]{1,18}")
_SHOWN = 80


def to_send(value: object) -> str:
    """Write a value of a schema as text for other ranks, who read it by ``received`` of ``strict_json.py``."""
    return str(adapter_of(type(value)).dump_json(value), "utf-8")


def read_word(store: "Store", key: str, pattern: re.Pattern[str], what: str) -> str:
    """Wait for a value and return it.

    Args:
        store: Of the run.
        key: Of the value.
        pattern: That the value has to match.
        what: Its name in the message.

    Raises:
        RunError: if it does not match.
    """
    content = bytes(store.get(key))
    text = content.decode("utf-8", "replace")
    if not pattern.fullmatch(text):
        raise RunError(
            f"the store of the run has {content[:_SHOWN]!r} where {what} is due; do all ranks run the same version?"
        )
    return text


def read_number(store: "Store", key: str, what: str, *, least: int = 0) -> int:
    """Wait for a number and return it.

    Raises:
        RunError: if it is no number, or too small.
    """
    number = int(read_word(store, key, _NUMBER, what))
    if number < least:
        raise RunError(
            f"the store of the run has {number} where {what} is due, which is {least} or more; do all ranks run the "
            f"same version?"
        )
    return number
