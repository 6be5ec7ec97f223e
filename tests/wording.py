"""Sentences that tests match messages with; the list of messages alone pins wording."""

import ast
import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

# Three plain words in a row are wording, which the list of messages pins. The system's own words are values.
WORDING = re.compile(r"(?<![\w'./\\-])[a-z]+(?:[,;:]? [a-z]+){2,}(?![\w.'=-])")
OF_THE_SYSTEM = re.compile("|".join(os.strerror(number) for number in errno.errorcode))


ERRORS = {"err", "stderr"}


def names(text: str, *values: str) -> bool:
    """Tell whether one line of a text names all values, in order."""
    return re.search(".*".join(map(re.escape, values)), text) is not None


def patterns(path: Path) -> Iterator[tuple[int, str]]:
    """Yield each pattern that a test file matches messages with: in place, or in a table of cases, with its line."""
    lines = path.read_text("utf-8").split("\n")
    if not any("match=" in line for line in lines):
        return
    for function in ast.walk(ast.parse("\n".join(lines))):
        if not isinstance(function, ast.FunctionDef):
            continue
        if not any("match=" in line for line in lines[function.lineno - 1 : function.end_lineno]):
            continue
        inside = list(ast.walk(function))
        matched = [node.value for node in inside if isinstance(node, ast.keyword) and node.arg == "match"]
        names = {node.id for value in matched for node in ast.walk(value) if isinstance(node, ast.Name)}
        columns = [cell for names_, rows in tables(inside) for cell in cells(names_, rows, names)]
        for part in (part for value in (*matched, *columns) for part in ast.walk(value)):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part.lineno, part.value


def asserted(path: Path) -> Iterator[tuple[int, str]]:
    """Yield each text that a test file compares with the errors of a command, with its line."""
    text = path.read_text("utf-8")
    for node in ast.walk(ast.parse(text)) if any(f".{name}" in text for name in ERRORS) else ():
        if isinstance(node, ast.Assert):
            inside = list(ast.walk(node.test))
            if any(isinstance(part, ast.Attribute) and part.attr in ERRORS for part in inside):
                yield from (
                    (p.lineno, p.value) for p in inside if isinstance(p, ast.Constant) and isinstance(p.value, str)
                )


def tables(nodes: list[ast.AST]) -> Iterator[tuple[list[str], ast.expr]]:
    """Yield the columns and the rows of parametrised tests, and of loops over cases."""
    for node in nodes:
        match node:
            case ast.Call(func=ast.Attribute(attr="parametrize"), args=[names, rows, *_]):
                found = [part.value for part in ast.walk(names) if isinstance(part, ast.Constant)]
                yield [name.strip() for text in found for name in text.split(",")], rows
            case ast.For(target=target, iter=rows):
                yield [part.id for part in ast.walk(target) if isinstance(part, ast.Name)], rows


def cells(columns: list[str], rows: ast.expr, names: set[str]) -> Iterator[ast.expr]:
    """Yield the cells of the named columns of a table that is written out."""
    for row in rows.elts if isinstance(rows, ast.List | ast.Tuple) else []:
        values = row.elts if isinstance(row, ast.Tuple) else [row]
        yield from (value for name, value in zip(columns, values, strict=False) if name in names)


def wording(folder: Path) -> list[str]:
    return [
        f"{path.name}:{line}: {text}"
        for path in sorted(folder.rglob("*.py"))
        for line, text in (*patterns(path), *asserted(path))
        if WORDING.search(OF_THE_SYSTEM.sub("", text))
    ]
