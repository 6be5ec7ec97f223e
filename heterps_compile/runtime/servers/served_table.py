"""A table that is served: what stands in a stage where the weight of an embedding stood.

It has the weight's shape and no memory. An embedding or a bag of embeddings on it is collected by the client and
gives :class:`PulledRows`, which become tensors when anything asks for them: 26 look-ups of 26 tables are one pull.
The very function that was called then runs on the pulled rows, with every id replaced by where its row came to lie,
so that every option of it (padding, weights of samples, means, maxima) means what it meant.

Left out: tables that a stage also uses otherwise, as the output layer of a language model does; ``max_norm``, which
writes to the table while it reads.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from heterps_compile.errors import RunError

from .client import Client
from .pending_pull import Lookup
from .spec import TableSpec
from .tiered_cache import Ints
from .trace_lookups import BAG, EMBEDDING, LOOK_UPS, find_lookup_ids

# What may be asked of a tensor without its numbers.
_HARMLESS = frozenset(
    {"size", "dim", "ndimension", "numel", "element_size", "is_floating_point", "is_complex", "stride"}
)


class HasTables(Protocol):
    """What is known of servers whose tables are looked up."""

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        """In the order of their numbers."""
        ...


class PullsRows(Protocol):
    """What a served table asks for its rows: a client, or what has them at hand."""

    @property
    def spec(self) -> HasTables:
        """The tables."""
        ...

    def look_up(self, table: int, ids: Tensor, finish: Callable[[Tensor, Tensor, Ints], Any]) -> Lookup:
        """Collect a look-up in a table, or finish it where its rows are there."""
        ...

    def pull(self) -> None:
        """Get the rows of all look-ups collected so far, and finish them."""
        ...


class ServedTable(Tensor):
    """Stands for a table on parameter servers.

    Attributes:
        client: Who pulls its rows.
        number: Which table of the client's.
    """

    client: PullsRows
    number: int

    @staticmethod
    def __new__(cls, client: PullsRows, number: int, device: torch.device) -> "ServedTable":
        """Make the stand-in for a table of the client's."""
        table = client.spec.tables[number]
        self: ServedTable = torch.Tensor._make_wrapper_subclass(
            cls, (table.rows, table.width), dtype=torch.float32, device=device, requires_grad=table.trained
        )
        self.client, self.number = client, number
        return self

    def __repr__(self) -> str:  # type: ignore[override]  # torch's option is for itself
        """Name the table; there are no numbers to show."""
        table = self.client.spec.tables[self.number]
        return f"ServedTable({table.shown}, {table.rows} x {table.width})"

    def run(self, func: Callable[..., Any], given: Mapping[str, Any]) -> Any:
        """Run the function of a look-up on rows that were pulled."""
        return func(**given)

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        """Collect look-ups; refuse what would need the numbers."""
        names = LOOK_UPS.get(func)
        given: dict[str, Any] = dict(kwargs or {})
        if names is not None:
            return _look_up(func, dict(zip(names, args, strict=False)) | given)
        name = getattr(func, "__name__", str(func))
        if name not in _HARMLESS and name != "__get__":
            raise _refusal([*args, *given.values()], name)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **given)

    @classmethod
    # torch declares an instance method and calls the class's
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Refuse what comes past ``__torch_function__``: there are no numbers."""
        raise _refusal(args, str(func))


class PulledRows(Tensor):
    """What a look-up gives, before it is known: any use of it pulls, and goes on with a plain tensor.

    Attributes:
        client: Who pulls.
        lookup: The look-up whose result this is.
        item_number: Which item of the result, where it is a tuple.
    """

    client: PullsRows
    lookup: Lookup
    item_number: int | None

    @staticmethod
    def __new__(cls, client: PullsRows, lookup: Lookup, item_number: int | None) -> "PulledRows":
        """Make the stand-in."""
        self: PulledRows = torch.Tensor._make_wrapper_subclass(cls, (0,))
        self.client, self.lookup, self.item_number = client, lookup, item_number
        return self

    def tensor(self) -> Tensor:
        """Return the tensor, pulling it and all that was collected if need be."""
        if self.lookup.result is None:
            self.client.pull()
        result = self.lookup.result
        return result if self.item_number is None else result[self.item_number]  # type: ignore[no-any-return]  # a Tensor

    def __repr__(self) -> str:  # type: ignore[override]  # torch's option is for itself
        """Show the tensor."""
        return repr(self.tensor())

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        """Go on with plain tensors."""
        return func(*pulled(tuple(args)), **pulled(dict(kwargs or {})))

    @classmethod
    # torch declares an instance method and calls the class's
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Refuse what comes past ``__torch_function__``; a stage's outputs are plain tensors."""
        raise RunError(f"{func} was called on rows that are not pulled yet; this is a bug of the runtime")


def pulled(value: Any) -> Any:
    """Return a value with plain tensors in place of all pulled rows in it, in lists, tuples and dicts too."""
    if isinstance(value, PulledRows):
        return value.tensor()
    if type(value) in (list, tuple):
        return type(value)(pulled(item) for item in value)
    if type(value) is dict:
        return {key: pulled(item) for key, item in value.items()}
    return value


def serve_tables(
    stage: nn.Module, client: Client, names: Sequence[str] | None = None, *, prefetches: bool = True
) -> tuple[str, ...]:
    """Put served tables in place of a stage's embedding weights, under every name they have in it.

    They are no parameters of the stage any more: an optimiser never sees them.

    Args:
        stage: What ``read_stage`` gave; its weights are dropped unread.
        client: Whose spec holds the tables.
        names: Which; None for all of the client's that are in the stage.
        prefetches: Whether rows may be requested ahead of the stage, which runs on every micro-batch that is.

    Returns:
        The names of those put in place.

    Raises:
        RunError: where a name is no weight of the stage or no table of the client's.
    """
    numbers = {table.name: number for number, table in enumerate(client.spec.tables)}
    weights = dict(stage.named_parameters(remove_duplicate=False))
    chosen = [name for name in weights if name in numbers] if names is None else list(names)
    if not chosen:
        return ()
    known = find_lookup_ids(stage, chosen)
    for name in chosen:
        if name not in weights or name not in numbers:
            where = "the stage" if name not in weights else "the parameter servers"
            raise RunError(f"table {name!r} is not in {where}; it cannot be served")
        weight = weights[name]
        served = ServedTable(client, numbers[name], weight.device)
        if weight.shape != served.shape:
            raise RunError(f"table {name!r} is {list(weight.shape)} in its stage, {list(served.shape)} on servers")
        for block in stage.modules():
            for last in [key for key, one in block._parameters.items() if one is weight]:
                _replace(block, last, served)
    if known is not None and prefetches:
        inputs: tuple[str, ...] = getattr(stage, "inputs", ())
        get_rows = client.expect(inputs, [numbers[name] for name in known.tables], known.compute)
        stage.register_forward_pre_hook(lambda _module, values: get_rows(*values))
    stage.register_forward_hook(lambda _module, _inputs, outputs: pulled(outputs))
    return tuple(chosen)


def _replace(block: nn.Module, last: str, served: ServedTable) -> None:
    """Put a served table where a parameter stood, without making it part of the module's state."""
    del block._parameters[last]
    block.__dict__[last] = served
    find = getattr(type(block), "at", None)  # a block of a written stage, which also finds its tensors by name
    if find is not None:
        before = block.__dict__.get("at", lambda name: find(block, name))
        block.__dict__["at"] = lambda name: served if name == last else before(name)


def _look_up(func: Callable[..., Any], given: dict[str, Any]) -> Any:
    """Collect a call of an embedding function on a served table."""
    table = given["weight"]
    ids_name = "indices" if "indices" in given else "input"
    ids = pulled(given[ids_name])
    if not isinstance(table, ServedTable) or isinstance(ids, ServedTable):
        raise _refusal([table, ids], func.__name__)
    if given.get("max_norm") is not None:
        raise _refusal([table], f"{func.__name__} with max_norm")
    given = {name: pulled(value) for name, value in given.items() if name != "weight"}
    spec = table.client.spec.tables[table.number]
    padding = given.get("padding_idx")
    if padding is not None and padding < 0:  # counted from the end, but for torch.embedding, where it means none
        padding = None if LOOK_UPS[func] is EMBEDDING else padding + spec.rows
    device = table.device

    def finish(rows: Tensor, positions: Tensor, distinct: Ints) -> Any:
        call = dict(given)
        call["weight"] = rows.to(device)
        call[ids_name] = positions.reshape(ids.shape).to(device=ids.device, dtype=ids.dtype)
        if "padding_idx" in call:
            call["padding_idx"] = _position(padding, distinct, -1 if LOOK_UPS[func] is EMBEDDING else None)
        if call.get("sparse"):
            call["sparse"] = False  # rows that were pulled are few: a dense gradient of them is what is pushed
        return table.run(func, call)

    lookup = table.client.look_up(table.number, ids, finish)
    if LOOK_UPS[func] is BAG:
        return tuple(PulledRows(table.client, lookup, item) for item in range(4))
    return PulledRows(table.client, lookup, None)


def _position(padding: int | None, distinct: Ints, none: int | None) -> int | None:
    """Return where the row that pads came to lie, ``none`` where it was not pulled."""
    if padding is None:
        return none
    place = int(np.searchsorted(distinct, padding))
    return place if place < len(distinct) and distinct[place] == padding else none


def _refusal(given: Sequence[Any], what: str) -> RunError:
    served = [table for table in given if isinstance(table, ServedTable)]
    spec: TableSpec | None = served[0].client.spec.tables[served[0].number] if served else None
    named = f"table {spec.shown}" if spec is not None else "a table"
    return RunError(
        f"{named} lies on parameter servers, which look rows up and do nothing else: {what!r} is not "
        f"possible on it; keep it in its stage"
    )
