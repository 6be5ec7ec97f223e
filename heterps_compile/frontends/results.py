"""What a model read from a file returns where its own result types are not imported: plain objects with the same names.

::

    transformers' ModelOutput     -> Mapped     out["logits"], out.logits, out[0], out[:2], len(out), **out
    a dataclass                   -> Record     out.logits
    a namedtuple, torch.topk's    -> Named      out.values, out[0], values, indices = out

Names are data: nothing is imported, looked up or made from them. All are pytrees (``torch_structure.py``), as the types
they stand for are.

Left out: methods of the types they stand for, and their place in ``isinstance``.
"""

from collections.abc import Iterable, Sequence
from typing import Any


class Mapped(dict[str, Any]):
    """A mapping whose entries are attributes too, and by number or slice its values in order.

    Fields that the model left out are None as attributes and are no entries, as in transformers.
    """

    def __init__(self, entries: Iterable[tuple[str, Any]], absent: Sequence[str] = ()) -> None:
        super().__init__(entries)
        self.__dict__["absent_fields"] = tuple(absent)

    def __getitem__(self, key: Any) -> Any:
        """Return an entry by name, or values by number or slice."""
        return self.to_tuple()[key] if isinstance(key, (int, slice)) else super().__getitem__(key)

    def __getattr__(self, name: str) -> Any:
        """Return an entry by name."""
        if name in self:
            return super().__getitem__(name)
        if name in self.__dict__.get("absent_fields", ()):
            return None
        raise AttributeError(f"the model returned no {name!r}; it returned {', '.join(map(repr, self))}")

    def to_tuple(self) -> tuple[Any, ...]:
        """Return the values in order."""
        return tuple(self.values())


class Record:
    """An object with nothing but attributes."""

    def __init__(self, entries: Iterable[tuple[str, Any]], absent: Sequence[str] = ()) -> None:
        self.__dict__.update(dict.fromkeys(absent))
        self.__dict__.update(entries)
        self.__dict__["_names"] = tuple(name for name, _ in entries)

    def __repr__(self) -> str:
        """Return the attributes."""
        return f"Record({', '.join(f'{name}={self.__dict__[name]!r}' for name in self.__dict__['_names'])})"


class Named(tuple[Any, ...]):
    """A tuple whose elements have names."""

    _fields: tuple[str, ...]

    def __new__(cls, entries: Iterable[tuple[str, Any]]) -> "Named":
        """Make one of names and elements."""
        pairs = tuple(entries)
        made = super().__new__(cls, (value for _, value in pairs))
        made.__dict__["_fields"] = tuple(name for name, _ in pairs)
        return made

    def __getattr__(self, name: str) -> Any:
        """Return an element by name."""
        fields = self.__dict__.get("_fields", ())
        if name in fields:
            return self[fields.index(name)]
        raise AttributeError(f"the model returned no {name!r}; it returned {', '.join(map(repr, fields))}")

    def _asdict(self) -> dict[str, Any]:
        return dict(zip(self._fields, self, strict=True))
