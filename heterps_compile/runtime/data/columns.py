"""The columns of a batch as a training file's functions see them: asking for one that is missing tells which are there.

Left out: what the model takes of them (``wanted.py``).
"""

from torch import Tensor

from heterps_compile.errors import InputError
from heterps_compile.escape import printable


class Columns(dict[str, Tensor]):
    """A dict of columns."""

    def __missing__(self, name: str) -> Tensor:
        """Refuse a name, as ``batch["label"]`` asks for it.

        Raises:
            InputError: always, with the names there are.
        """
        there = ", ".join(repr(printable(column)) for column in self)
        raise InputError(
            f"the batch has no column {printable(str(name))!r} (it has {there}); name one of these, or make it in "
            f"prepare(batch)"
        )
