"""Names of local variables in written source.

A name from a model becomes part of the source only as what its plain ASCII letters make; the name itself stands there
as a string literal, in ASCII.

Left out: names of files, which are made of stage indices alone.
"""

import builtins
import keyword
import re
from collections.abc import Iterable

_LONGEST = 48
_MODULE_LEVEL = frozenset(
    {
        "params", "key", "stage", "step", "load", "Path", "INPUTS", "OUTPUTS", "KNOWN_INPUTS", "PARAMS", "WEIGHTS",
        "UPDATED", "DRAWS", "TIED_AS",
    }
)  # fmt: skip
RESERVED = frozenset({*keyword.kwlist, *keyword.softkwlist, *dir(builtins), *_MODULE_LEVEL})


class LocalNames:
    """Gives every value of a function a variable name of its own."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = {*RESERVED, *taken}
        self._names: dict[str, str] = {}

    def of(self, value: str) -> str:
        """Give the variable of a value; the same value has the same one."""
        if value not in self._names:
            self._names[value] = self.new(value)
        return self._names[value]

    def new(self, value: str) -> str:
        """Give a variable of its own to what has no name in the model."""
        base = re.sub(r"[^A-Za-z0-9_]+", "_", value[:1000], flags=re.ASCII).strip("_")[:_LONGEST].rstrip("_")
        if not base or base[0].isdigit():
            base = f"v{base}"
        name, count = base, 1
        while name in self._taken:
            name, count = f"{base}_{count}", count + 1
        self._taken.add(name)
        return name
