"""Small bugs drawn at random, for `tools/mutate.py --draw`: an operator, a number or a condition made wrong.

A bug is one of: a sum that is a difference (and the reverse, for products too), a comparison that takes its equal case
with it or not, a condition turned round, `and` for `or`, `min` for `max`, `any` for `all`, a whole number one larger, a
statement that is not done. Annotations, texts and what is raised are left alone.

Left out: whether what comes out differs at all. A survivor may be the same program (`<` where nothing is equal, a cache
that is not asked): each has to be read.
"""

import ast
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

_OPERATORS: dict[type[ast.AST], str] = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*"}
_COMPARISONS: dict[type[ast.AST], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.In: "not in",
    ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is",
}  # fmt: skip
_NAMES = {
    "min": "max", "max": "min", "any": "all", "all": "any", "minimum": "maximum", "maximum": "minimum",
    "argmin": "argmax", "argmax": "argmin", "floor": "ceil", "ceil": "floor",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Change:
    """What is put in the place of some text of a file.

    Attributes:
        begin, end: Of the text that goes, in bytes.
        new: What takes its place.
        line: Where it stands, from 1.
    """

    begin: int
    end: int
    new: str
    line: int

    def of(self, source: str) -> str:
        """Return a source with the change made."""
        data = source.encode()
        return (data[: self.begin] + self.new.encode() + data[self.end :]).decode()


def draw_changes(files: list[Path], number: int, seed: int) -> list[tuple[Path, Change]]:
    """Draw changes of files that leave them Python; every place has the same chance, the same seed draws the same."""
    sources = {path: path.read_text("utf-8") for path in sorted(files)}
    places = [(path, change) for path, source in sources.items() for change in changes(source)]
    random.Random(seed).shuffle(places)  # noqa: S311 - no secret
    sound = ((path, change) for path, change in places if _compiles(change.of(sources[path])))
    return list(islice(sound, number))


def changes(source: str) -> list[Change]:
    """Return every change of a source."""
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return [
        Change(starts[first - 1] + begin, starts[last - 1] + end, new, first)
        for first, begin, last, end, new in _of_node(ast.parse(source), source)
    ]


_Place = tuple[int, int, int, int, str]


def _of_node(node: ast.AST, source: str) -> Iterator[_Place]:
    if isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom | ast.Assert):
        return
    yield from _own(node, source)
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "args") and not isinstance(node, ast.Call):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _of_node(child, source)


def _own(node: ast.AST, source: str) -> Iterator[_Place]:
    match node:
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS and not _is_text(left, right):
            yield from _between(left, right, _OPERATORS[type(op)], source)
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            yield from _between(left, right, _COMPARISONS[type(op)], source)
        case ast.BoolOp(op=op, values=[left, right]):
            yield from _between(left, right, "or" if isinstance(op, ast.And) else "and", source)
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield (*_place(node), ast.get_source_segment(source, operand) or "")
        case ast.If(test=test) | ast.IfExp(test=test):
            yield (*_place(test), f"(not ({ast.get_source_segment(source, test)}))")
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            yield (*_place(node), str(value + 1))
        case ast.Name(id=name) if name in _NAMES:
            yield (*_place(node), _NAMES[name])
        case ast.Attribute(value=value, attr=name) if name in _NAMES:
            yield (*_place(node), f"{ast.get_source_segment(source, value)}.{_NAMES[name]}")
        case ast.AugAssign(op=ast.Add() | ast.Sub() as op, target=target, value=value):
            yield from _between(target, value, "-=" if isinstance(op, ast.Add) else "+=", source)
        case ast.Expr(value=ast.Call()):
            yield (*_place(node), "pass")
        case _:
            return


def _is_text(*nodes: ast.AST) -> bool:
    return any(isinstance(node, ast.JoinedStr | ast.List | ast.Tuple) or _is_string(node) for node in nodes)


def _is_string(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _place(node: ast.AST) -> tuple[int, int, int, int]:
    at: ast.expr = node  # type: ignore[assignment] # all that come here have a place
    return at.lineno, at.col_offset, at.end_lineno or at.lineno, at.end_col_offset or at.col_offset


def _between(left: ast.expr, right: ast.expr, new: str, source: str) -> Iterator[_Place]:
    """Yield the change of an operator, which stands between two parts, parentheses aside."""
    _, _, first, begin = _place(left)
    last, end, _, _ = _place(right)
    lines = source.encode().splitlines(keepends=True)
    if first != last:
        return  # a line break or a comment between: rare, and not worth a tokenizer
    text = lines[first - 1][begin:end].decode()
    operator = text.strip(" ()")
    offset = text.index(operator)
    yield first, begin + offset, first, begin + offset + len(operator.encode()), new


def _compiles(source: str) -> bool:
    try:
        compile(source, "", "exec")
    except (SyntaxError, ValueError):
        return False
    return True
