"""Small bugs drawn at random, for `tools/mutate.py --draw`: an operator, a number or a condition made wrong.

A bug is one of: a sum that is a difference (and the reverse, for products too), a comparison that takes its equal
case with it or not, a condition turned round, `and` for `or`, `min` for `max`, `any` for `all`, a whole number one
larger, a statement that is not done. Annotations, texts and what is raised are left alone.

A draw is stratified: every folder contributes in proportion to its places. A bug is known by its file, its line
before and after, and a count among equal ones; the seed orders the bugs of a folder by a hash of that. So a draw of
100 is part of a draw of 500, and another file, or another line of the same file, leaves the rest of the draw as it
was.

Left out: whether what comes out differs at all. A survivor may be the same program (`<` where nothing is equal, a
cache that is not asked): each has to be read.
"""

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import PurePosixPath

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


@dataclass(frozen=True, slots=True)
class Drawn:
    """A drawn bug.

    Attributes:
        path: File, relative to the package.
        change: Text that is replaced.
        said: The line before and after.
        key: Hash that identifies the bug in another commit.
    """

    path: str
    change: Change
    said: str
    key: str

    def __str__(self) -> str:
        return f"{self.key} {self.path}:{self.change.line}: {self.said}"


def folder_of(path: str) -> str:
    """Name the folder of a file, two levels deep: "passes/placement"; "." for a module of the package itself."""
    return str(PurePosixPath(*PurePosixPath(path).parent.parts[:2]))


def draw_changes(sources: Mapping[str, str], number: int, seed: int) -> list[Drawn]:
    """Draw changes of sources, by path; each leaves Python that compiles, and each place has the same chance.

    Returns:
        At most `number` bugs, in the order that the seed gives them.
    """
    places: dict[str, list[tuple[str, Drawn]]] = defaultdict(list)
    for path, source in sources.items():
        for bug in _keyed(path, source):
            places[folder_of(path)].append((_hash(f"{seed}|{bug.key}"), bug))
    drawn: list[tuple[str, Drawn]] = []
    for folder, quota in shares_of({folder: len(each) for folder, each in places.items()}, number).items():
        ordered = sorted(places[folder], key=lambda place: place[0])
        drawn += islice((each for each in ordered if _compiles(each[1].change.of(sources[each[1].path]))), quota)
    return [bug for _, bug in sorted(drawn, key=lambda place: place[0])]


def shares_of(sizes: Mapping[str, int], number: int) -> dict[str, int]:
    """Divide a number in proportion to sizes: the largest remainders are rounded up."""
    total = sum(sizes.values())
    number = min(number, total)
    shares = {name: number * size // total for name, size in sizes.items()}
    remainders = sorted(sizes, key=lambda name: (-(number * sizes[name] % total), name))
    return {name: share + (name in remainders[: number - sum(shares.values())]) for name, share in shares.items()}


def _keyed(path: str, source: str) -> Iterator[Drawn]:
    before: Counter[str] = Counter()
    data = source.encode() + b"\n"
    for change in changes(source):
        begin = data.rfind(b"\n", 0, change.begin) + 1
        end = data.find(b"\n", change.end)
        wrong = data[begin : change.begin] + change.new.encode() + data[change.end : end]
        right, wrong = (text.split(b"\n")[0].decode().strip() for text in (data[begin:end], wrong))
        said = f"{right}  ->  {wrong}"
        yield Drawn(path, change, said, _hash(f"{path}|{said}|{before[said]}"))
        before[said] += 1


def _hash(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:10]


def changes(source: str) -> list[Change]:
    """Return every change of a source."""
    lines = source.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    return [
        Change(starts[first - 1] + begin, starts[last - 1] + end, new, first)
        for first, begin, last, end, new in _of_node(ast.parse(source), lines)
    ]


_Place = tuple[int, int, int, int, str]


def _of_node(node: ast.AST, lines: list[bytes]) -> Iterator[_Place]:
    if isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom | ast.Assert):
        return
    yield from _own(node, lines)
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "args") and not isinstance(node, ast.Call):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _of_node(child, lines)


def _own(node: ast.AST, lines: list[bytes]) -> Iterator[_Place]:
    match node:
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS and not _is_text(left, right):
            yield from _between(left, right, _OPERATORS[type(op)], lines)
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            yield from _between(left, right, _COMPARISONS[type(op)], lines)
        case ast.BoolOp(op=op, values=[left, right]):
            yield from _between(left, right, "or" if isinstance(op, ast.And) else "and", lines)
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield (*_place(node), _text(operand, lines))
        case ast.If(test=test) | ast.IfExp(test=test):
            yield (*_place(test), f"(not ({_text(test, lines)}))")
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            yield (*_place(node), str(value + 1))
        case ast.Name(id=name) if name in _NAMES:
            yield (*_place(node), _NAMES[name])
        case ast.Attribute(value=value, attr=name) if name in _NAMES:
            yield (*_place(node), f"{_text(value, lines)}.{_NAMES[name]}")
        case ast.AugAssign(op=ast.Add() | ast.Sub() as op, target=target, value=value):
            yield from _between(target, value, "-=" if isinstance(op, ast.Add) else "+=", lines)
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


def _text(node: ast.expr, lines: list[bytes]) -> str:
    """Return the source of an expression; ast.get_source_segment splits the file anew each time."""
    first, begin, last, end = _place(node)
    rows = lines[first - 1 : last]
    rows[-1] = rows[-1][:end]
    rows[0] = rows[0][begin:]
    return b"".join(rows).decode()


def _between(left: ast.expr, right: ast.expr, new: str, lines: list[bytes]) -> Iterator[_Place]:
    """Yield the change of an operator, which stands between two parts, parentheses aside."""
    _, _, first, begin = _place(left)
    last, end, _, _ = _place(right)
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
