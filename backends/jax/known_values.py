"""Which inputs of a stage must be known before it runs, since shapes depend on their elements.

A value is wanted known where a call takes it as a shape or an axis; what shapes are computed with hands that on.

Left out: the same question before anything is built (``data_dependence.py``).
"""

from collections.abc import Iterator, Sequence

from heterps_compile.errors import BackendError
from heterps_compile.escape import printable, shorten

from .program import Call, Ref
from .table import MAKES_KNOWN


def find_known_inputs(index: int, calls: Sequence[Call], inputs: Sequence[str]) -> frozenset[str]:
    """Return the inputs on whose elements shapes depend.

    Raises:
        BackendError: where a shape depends on the elements of what is computed otherwise than from shapes.
    """
    wanted: dict[str, Call] = {}
    _search(index, calls, wanted)
    return frozenset(name for name in inputs if name in wanted)


def _search(index: int, calls: Sequence[Call], wanted: dict[str, Call]) -> None:
    for call in reversed(calls):
        by = next((wanted[name] for name in call.results if name in wanted), None)
        if call.bodies:
            _search_bodies(index, call, by, wanted)
            continue
        if by is not None and call.op.name in MAKES_KNOWN:
            continue
        if by is not None and not call.op.keeps:
            raise _computed(index, by, call)
        for i, argument in enumerate(call.arguments):
            if isinstance(argument, Ref) and (by is not None or i in call.op.known):
                wanted.setdefault(argument.name, by or call)


def _search_bodies(index: int, call: Call, by: Call | None, wanted: dict[str, Call]) -> None:
    """Search the subgraphs of a call; a branch hands on what is wanted of it, a loop what it carries."""
    is_branch = call.op.name == "If"
    if by is not None and not is_branch:
        raise _computed(index, by, call)
    if by is not None:
        for place, name in enumerate(call.results):
            if name in wanted:
                for body in call.bodies.values():
                    _want(body.results[place], wanted, by)
        _want(call.arguments[0], wanted, by)
    if call.op.name == "Loop":
        body = call.bodies["body"]
        if len(body.results) > len(call.arguments[2:]) + 1 and call.arguments:
            for argument in call.arguments[:2]:
                _want(argument, wanted, call)  # as many values are collected as there are trips
    for body in call.bodies.values():
        before = -1
        while len(wanted) > before:
            before = len(wanted)
            _search(index, body.calls, wanted)
            for formal, outside, inside in _carried(call):
                if formal in wanted:
                    if outside is None and inside is None:
                        raise _computed(index, wanted[formal], call)
                    _want(outside, wanted, wanted[formal])
                    _want(inside, wanted, wanted[formal])


def _carried(call: Call) -> Iterator[tuple[str, object, object]]:
    """Yield of every input of a loop's body where it comes from: outside, and the trip before."""
    if call.op.name == "Loop":
        body = call.bodies["body"]
        trips = call.arguments[0] if call.arguments else None
        yield body.inputs[0], trips, trips  # the number of the trip is known where the number of trips is
        given = [*call.arguments[1:], None][: len(body.inputs) - 1]
        yield from zip(body.inputs[1:], given, body.results, strict=False)
    elif call.op.name == "Scan":
        yield from ((name, None, None) for name in call.bodies["body"].inputs)


def _want(argument: object, wanted: dict[str, Call], by: Call) -> None:
    if isinstance(argument, Ref):
        wanted.setdefault(argument.name, by)


def _computed(index: int, by: Call, call: Call) -> BackendError:
    node, maker = (printable(shorten(c.node, 80)) for c in (by, call))
    return BackendError(
        f"stage {index}: node {node!r} ({by.op.name}) takes a shape or axis from what node {maker!r} "
        f"({call.op.name}) computes; jax must know shapes before it runs"
    )
