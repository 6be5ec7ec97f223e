"""The structure of a PyTorch model's call or result, out of the tree of types that PyTorch has of it.

Types of libraries are asked for the names of their parts, as PyTorch's pytrees have them.

Left out: what a structure is (``structures.py``).
"""

import dataclasses
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Mapping
from typing import Any, cast

from torch.fx.immutable_collections import immutable_dict, immutable_list
from torch.utils import _pytree as pytree

from heterps_compile.errors import InputError
from heterps_compile.escape import printable, shorten

from .results import Mapped, Named, Record
from .structures import KEY_TYPES, LEAF, Structure


def structure_of(spec: pytree.TreeSpec) -> Structure:
    """Return the structure of a tree whose types are known here.

    Raises:
        InputError: naming a dict's key that no file can hold.
    """
    if spec.is_leaf():
        return Structure(LEAF)
    parts = tuple(map(structure_of, spec.children()))
    kind: Any = spec.type
    if kind in (tuple, list):
        return Structure(kind.__name__, parts)
    if kind is deque:
        return Structure("list", parts)
    if kind is immutable_list:
        return Structure("list", parts)
    if kind in (dict, OrderedDict, defaultdict, immutable_dict):
        keys = tuple(spec.context[1] if kind is defaultdict else spec.context)
        _check_keys(keys)
        return Structure("dict", parts, keys)
    if kind in (Mapped, Record):
        keys, absent = spec.context
        return Structure("mapping" if kind is Mapped else "record", parts, keys, absent)
    if kind is Named:
        return Structure("named", parts, spec.context)
    if kind is namedtuple:
        return Structure("named", parts, tuple(spec.context._fields), type=spec.context.__name__)
    if issubclass(kind, tuple):  # torch.return_types
        names = tuple(getattr(kind, "__match_args__", ()))[: len(parts)]
        return Structure("named", parts, names, type=kind.__name__) if names else Structure("tuple", parts)
    return _of_library(kind, spec.context, parts)


def _check_keys(keys: tuple[Any, ...]) -> None:
    for key in keys:
        if type(key) not in KEY_TYPES:
            raise InputError(
                f"the model takes or returns a dict with the key {shorten(printable(repr(key)), 80)}, a "
                f"{type(key).__name__}, which no file can hold; make it text or a number"
            )


def _of_library(kind: type, context: Any, parts: tuple[Structure, ...]) -> Structure:
    """Return the structure of a type that a library or the model's owner has registered."""
    keys, are_items = _keys_of(kind, context, len(parts))
    if keys is None:
        return Structure("tuple", parts, type=kind.__name__)
    fields = [field.name for field in dataclasses.fields(cast(Any, kind))] if dataclasses.is_dataclass(kind) else []
    absent = tuple(name for name in fields if name not in keys)
    is_mapping = issubclass(kind, Mapping) or (are_items and not fields)
    return Structure("mapping" if is_mapping else "record", parts, keys, absent, kind.__name__)


def _keys_of(kind: type, context: Any, count: int) -> tuple[tuple[str, ...] | None, bool]:
    """Return the names of the parts of such a type, and whether they are items rather than attributes."""
    node = pytree.SUPPORTED_NODES[kind]
    pairs: Any = ()
    if node.flatten_with_keys_fn is not None:
        try:
            pairs, _ = node.flatten_with_keys_fn(node.unflatten_fn([object()] * count, context))
        except Exception:  # noqa: BLE001 - code of the type's owner, which may want other values
            pairs = ()
    found = [path for path, _ in pairs]
    names = [getattr(key, "key", getattr(key, "name", None)) for key in found]
    if len(names) != count or not all(isinstance(name, str) for name in names):
        names = list(context) if isinstance(context, (list, tuple)) else []
    if len(names) != count or not count or not all(isinstance(name, str) for name in names):
        return None, False
    return tuple(map(str, names)), any(isinstance(key, pytree.MappingKey) for key in found)


def _flatten_mapped(value: Mapped) -> tuple[list[Any], Any]:
    return list(value.values()), (tuple(value), value.__dict__["absent_fields"])


def _flatten_record(value: Record) -> tuple[list[Any], Any]:
    names = value.__dict__["_names"]
    absent = tuple(name for name in value.__dict__ if name != "_names" and name not in names)
    return [value.__dict__[name] for name in names], (names, absent)


def _flatten_named(value: Named) -> tuple[list[Any], Any]:
    return list(value), value._fields


pytree.register_pytree_node(
    Mapped, _flatten_mapped, lambda values, context: Mapped(zip(context[0], values, strict=True), context[1])
)
pytree.register_pytree_node(
    Record, _flatten_record, lambda values, context: Record([*zip(context[0], values, strict=True)], context[1])
)
pytree.register_pytree_node(Named, _flatten_named, lambda values, context: Named(zip(context, values, strict=True)))
