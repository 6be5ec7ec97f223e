"""Names of local variables in written source.

A name from a model becomes part of the source only as what its plain ASCII letters make.

Left out: which words a written stage has for itself (each backend's ``naming.py``).
"""

import builtins
import keyword
import re
from collections.abc import Iterable

_PYTHON_WORDS = frozenset({*keyword.kwlist, *keyword.softkwlist, *dir(builtins)})
"""What no variable is to be called."""

_LONGEST = 48
_READ = 1000


class LocalNames:
    """Gives every value of a function a variable name of its own."""

    def __init__(self, taken: Iterable[str]) -> None:
        """Set up.

        Args:
            taken: Names that are none of a value's.
        """
        self._taken = {*_PYTHON_WORDS, *taken}
        self._names: dict[str, str] = {}

    def of(self, value: str) -> str:
        """Return the variable of a value; the same value has the same one."""
        if value not in self._names:
            self._names[value] = self.new(value)
        return self._names[value]

    def new(self, wish: str) -> str:
        """Return a free name like the wished one."""
        base = re.sub(r"[^A-Za-z0-9_]+", "_", wish[:_READ], flags=re.ASCII).strip("_")[:_LONGEST].rstrip("_")
        if not base or base[0].isdigit():
            base = f"v{base}"
        name, count = base, 1
        while name in self._taken:
            name, count = f"{base}_{count}", count + 1
        self._taken.add(name)
        return name
