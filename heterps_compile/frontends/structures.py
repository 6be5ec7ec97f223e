"""The structure of a call or a result as data: what a file has of it, and what is made of it where the file is read.

In a file a structure is a tree of small dicts. Types of libraries are kept by what they offer their users: names of
entries, whether those are items or attributes, order::

    {"kind": "mapping", "type": "BaseModelOutput", "keys": ["last_hidden_state"], "parts": ["*"], "absent": [...]}

Reading imports nothing and looks nothing up by a name in the file.

Left out: the values (``torch_call.py``), and what of a library's type becomes its structure (``torch_structure.py``).
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heterps_compile.errors import InputError
from heterps_compile.escape import printable, shorten

from .results import Mapped, Named, Record

LEAF = "leaf"
_PLAIN = ("tuple", "list")
_KEYED = ("dict", "mapping", "record", "named")
_DEPTH = 60  # deeper than any model's, and than no interpreter's stack
_OLDER = {
    "builtins.tuple": "tuple",
    "builtins.list": "list",
    "builtins.dict": "dict",
    "collections.OrderedDict": "dict",
}
_AGAIN = "compile the model again"
KEY_TYPES = (str, int, float, bool, type(None))


@dataclass(frozen=True, slots=True)
class Structure:
    """A tree of values.

    Attributes:
        kind: ``leaf``, ``tuple``, ``list``, ``dict``, ``mapping`` (entries are attributes too), ``record`` (attributes
            alone) or ``named`` (a tuple with names).
        parts: What is in it, in order.
        keys: Names of the parts.
        absent: Names of further attributes, which are None.
        type: Name of the type that it stands for, to be shown.
    """

    kind: str
    parts: tuple["Structure", ...] = ()
    keys: tuple[Any, ...] = ()
    absent: tuple[str, ...] = ()
    type: str = ""

    @property
    def leaves(self) -> int:
        """Return how many values it has."""
        return 1 if self.kind == LEAF else sum(part.leaves for part in self.parts)

    def build(self, values: Sequence[Any]) -> Any:
        """Return plain objects of this structure with these values in order."""
        return self._build(iter(values))

    def _build(self, values: Iterator[Any]) -> Any:
        if self.kind == LEAF:
            return next(values)
        made = [part._build(values) for part in self.parts]
        entries = list(zip(self.keys, made, strict=True)) if self.kind in _KEYED else []
        if self.kind == "mapping":
            return Mapped(entries, self.absent)
        if self.kind == "record":
            return Record(entries, self.absent)
        if self.kind == "named":
            return Named(entries)
        if self.kind == "dict":
            return dict(entries)
        return tuple(made) if self.kind == "tuple" else made

    def takes(self, other: "Structure") -> bool:
        """Say whether a value of another structure can be given for one of this: the same parts by the same names.

        A dict may be given for what has names, and a tuple for one with names.
        """
        shape, given = (
            _PLAIN[0] if s.kind == "named" else "dict" if s.kind in _KEYED else s.kind for s in (self, other)
        )
        return (
            shape == given
            and (shape != "dict" or self.keys == other.keys)
            and len(self.parts) == len(other.parts)
            and all(map(Structure.takes, self.parts, other.parts))
        )

    def to_json(self) -> Any:
        """Return what :func:`structure_from_json` reads."""
        if self.kind == LEAF:
            return "*"
        content: dict[str, Any] = {"kind": self.kind}
        if self.type:
            content["type"] = self.type
        if self.kind in _KEYED:
            content["keys"] = list(self.keys)
        content["parts"] = [part.to_json() for part in self.parts]
        if self.absent:
            content["absent"] = list(self.absent)
        return content

    def __str__(self) -> str:
        """Print it on one line, with a star for every value."""
        if self.kind == LEAF:
            return "*"
        names = [f"{key!r}: " for key in self.keys] if self.kind in _KEYED else [""] * len(self.parts)
        inside = ", ".join(f"{name}{part}" for name, part in zip(names, self.parts, strict=True))
        return printable(f"{self.type or self.kind}({inside})")


def structures_of_call(content: Mapping[str, Any]) -> tuple[Structure, Structure]:
    """Return the structures of what a model takes and returns, out of a plan's signature.

    Raises:
        InputError: where one is no structure, or has other values than the signature names.
    """
    found = []
    for what, names in (("takes", "inputs"), ("returns", "outputs")):
        try:
            structure, count = structure_from_json(content[what]), len(content[names])
        except (InputError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"the plan does not say how the model is called: {printable(str(error))}") from error
        if structure.leaves != count:
            raise InputError(
                f"the plan does not say how the model is called: it {what} {shorten(str(structure), 200)} with "
                f"{structure.leaves} values, and {count} are named; {_AGAIN}"
            )
        found.append(structure)
    takes, returns = found
    return takes, returns


def structure_from_json(content: Any, depth: int = 0) -> Structure:
    """Return the structure out of what :meth:`Structure.to_json` gave, or out of the text that older files have.

    Raises:
        InputError: where it is no structure.
    """
    if isinstance(content, str) and content != "*":
        return _from_older(content)
    if content == "*":
        return Structure(LEAF)
    if depth > _DEPTH:
        raise InputError(f"the plan has a structure that is more than {_DEPTH} levels deep; {_AGAIN}")
    if not isinstance(content, dict) or content.get("kind") not in (*_PLAIN, *_KEYED):
        raise InputError(f"{shorten(printable(str(content)), 60)} is no structure; {_AGAIN}")
    parts = tuple(structure_from_json(part, depth + 1) for part in content["parts"])
    keys, absent = tuple(content.get("keys", ())), tuple(map(str, content.get("absent", ())))
    is_keyed = content["kind"] in _KEYED
    if len(keys) != (len(parts) if is_keyed else 0) or not all(type(key) in KEY_TYPES for key in keys):
        raise InputError(f"a {content['kind']} in the plan has {len(parts)} parts and {len(keys)} names")
    if is_keyed and content["kind"] != "dict" and not all(isinstance(key, str) for key in keys):
        raise InputError(f"a {content['kind']} in the plan has names that are no text")
    return Structure(content["kind"], parts, keys, absent, str(content.get("type", "")))


def _from_older(text: str) -> Structure:
    """Read what PyTorch wrote of a structure, as it stands in folders of before."""
    try:
        _, tree = json.loads(text)
        return _older(tree)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise InputError(f"{shorten(printable(text), 60)} is no structure; {_AGAIN}") from error


def _older(tree: Any) -> Structure:
    if tree["type"] is None:
        return Structure(LEAF)
    parts, context = tuple(map(_older, tree["children_spec"])), json.loads(tree["context"])
    kind, name = _OLDER.get(tree["type"]), str(tree["type"])
    if kind in _PLAIN:
        return Structure(kind, parts)
    is_record = isinstance(context, list) and len(context) == 2 and all(isinstance(names, list) for names in context)
    keys, absent = context if is_record else (context, ())
    content = {
        "kind": kind or ("record" if is_record else "mapping"),
        "keys": keys,
        "absent": absent,
        "parts": "*" * len(parts),
    }
    read = structure_from_json(content | {"type": "" if kind else name.rpartition(".")[2]})
    return dataclasses.replace(read, parts=parts)


@dataclass(frozen=True, slots=True)
class Accepts:
    """What an input may be.

    Attributes:
        dtype: Of the tensor, as in ``"float32"``; None for a number, or for a tensor of any dtype and shape.
        shape: Of the tensor, None for a dimension that may vary, its name where it has one; None for any shape.
    """

    dtype: str | None = None
    shape: tuple[int | str | None, ...] | None = None


def accepts_to_json(accepts: Mapping[str, Accepts]) -> dict[str, Any]:
    """Return dtype and shape of every input as JSON has them."""
    return {name: (each.dtype, each.shape) for name, each in accepts.items()}


def accepts_from_json(content: Mapping[str, Any]) -> dict[str, Accepts]:
    """Return what :func:`accepts_to_json` wrote.

    Raises:
        TypeError, ValueError, AttributeError: if it is not such a thing.
    """
    found = {}
    for name, (dtype, shape) in content.items():
        sizes = None if shape is None else tuple(shape)
        if not isinstance(dtype, str | None) or not all(isinstance(size, int | str | None) for size in sizes or ()):
            raise ValueError(f"input {name!r} has no dtype and shape")
        found[str(name)] = Accepts(dtype, sizes)
    return found
