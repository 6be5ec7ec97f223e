"""What can be told of a training file from its syntax tree, without running it.

A file that lacks what a run needs, has functions that cannot be called as a run calls them, or a function that nobody
calls under nearly the name of one that a run looks for, is refused before any process starts.

Left out: running the file (``training.py``), where what the tree leaves open is checked again.
"""

import ast
import difflib
import inspect
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

from heterps_compile.errors import InputError
from heterps_compile.escape import printable, shorten

NEEDED = ("loss", "optimizer")
ARGUMENTS = MappingProxyType({
    "loss": ("outputs", "batch"), "optimizer": ("parameters",), "prepare": ("batch",), "data": (),
    "scheduler": ("optimizer",),
})  # fmt: skip
"""The functions of a training file, and what each is called with."""

_MAY_DEFINE_ANY = frozenset({"globals", "exec", "setattr", "vars"})
_ALIKE = 0.75  # of difflib: "lose" and "loss", "schedular" and "scheduler"
_SHOWN = 60

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def parse_training_file(file: Path) -> ast.Module:
    """Read a training file without running it.

    Raises:
        InputError: where it is not there, or is no Python.
    """
    path = str(file)
    if not file.is_file():
        fault = "is a folder" if file.is_dir() else "does not exist"
        raise InputError(f"the training file {path!r} {fault}; expected a Python file with loss and optimizer")
    if file.suffix != ".py":
        raise InputError(f"the training file {path!r} is no Python file; its name must end in .py")
    try:
        return ast.parse(file.read_bytes(), path)
    except OSError as error:
        raise InputError(f"the training file {path!r} cannot be read: {error.strerror}") from error
    except (SyntaxError, ValueError, RecursionError) as error:
        line = f" (line {error.lineno})" if isinstance(error, SyntaxError) and error.lineno else ""
        what = error.msg if isinstance(error, SyntaxError) else error
        raise InputError(f"the training file {path!r} fails: {type(error).__name__}: {what}{line}") from error


def check_training_file(path: str | Path, data: str) -> None:
    """Check, without running it, that a training file is there, is Python, and has what a run needs of it.

    Args:
        path: Of the file.
        data: What ``--data`` names; "" for nothing.

    Raises:
        InputError: where it does not.
    """
    parsed = parse_training_file(Path(path))
    known = {name for name in ARGUMENTS if _may_define(parsed, name)}
    refuse_misnamed(path, parsed, known, has_data=bool(data))
    missing = next((name for name in NEEDED if name not in known), None)
    if missing is not None:
        raise InputError(f"the training file {str(path)!r} has no function {missing!r}; it needs loss and optimizer")
    functions = dict(_functions(parsed))
    for name, function in functions.items():
        if name in ARGUMENTS:
            _refuse_arguments(path, name, function)
    imported = {alias.asname or alias.name for n in parsed.body if isinstance(n, ast.ImportFrom) for alias in n.names}
    if data and "data" in {*functions, *imported}:
        raise InputError(two_sources(f"the training file {str(path)!r}", data))
    if not data and "data" not in known:
        raise InputError(
            f"there are no data: name some (--data FILE), or define data() in the training file {str(path)!r}"
        )


def two_sources(of: str, data: str) -> str:
    """Say that there are data twice."""
    return (
        f"data() of {of} and --data {printable(shorten(data, _SHOWN))} both give the samples, and a run reads one of "
        f"them; leave --data out, or take data() out of the file"
    )


def may_define(path: str | Path, name: str) -> bool:
    """Tell, without running it, whether a training file that was checked may define a name."""
    return _may_define(ast.parse(Path(path).read_bytes(), str(path)), name)


def refuse_misnamed(path: str | Path, parsed: ast.Module, known: Collection[str], *, has_data: bool) -> None:
    """Refuse a public function that nobody calls and whose name is nearly that of one that a run looks for.

    Args:
        path: Of the training file.
        parsed: Its syntax tree.
        known: Names that the file has, or may have: what is nearly one of these is a function of the user's own.
        has_data: Whether data are named, so that nobody looks for ``data``.

    Raises:
        InputError: naming both.
    """
    missing = [name for name in ARGUMENTS if name not in known and not (name == "data" and has_data)]
    used = {n.id for n in ast.walk(parsed) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    used |= {n.value for n in ast.walk(parsed) if isinstance(n, ast.Constant) and isinstance(n.value, str)}  # __all__
    for name, function in _functions(parsed):
        if name in ARGUMENTS or name.startswith("_") or name in used or _is_decorated(function):
            continue
        near = _nearest(name, missing)
        if near is not None:
            raise InputError(
                f"the training file {str(path)!r} has a function {printable(shorten(name, _SHOWN))!r} (line "
                f"{function.lineno}) that nothing calls, and no {near!r}; call it {_called(near)}, or "
                f"begin its name with '_' where it is something else"
            )


def refuse_uncallable(name: str, function: Callable[..., Any]) -> None:
    """Refuse a function of a training file that cannot be called as a run calls it.

    Raises:
        InputError: with what it takes, and what it is called with.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # written in C: nobody can tell
    if inspect.iscoroutinefunction(function):
        raise InputError(_uncallable(name, f"async {name}{signature}", ""))
    try:
        signature.bind(*ARGUMENTS[name])
    except TypeError as error:
        raise InputError(_uncallable(name, f"{name}{signature}", "")) from error


def _refuse_arguments(path: str | Path, name: str, function: "_Function | ast.ClassDef") -> None:
    if isinstance(function, ast.ClassDef) or _is_decorated(function):
        return
    taken, count = function.args, len(ARGUMENTS[name])
    positional = len(taken.posonlyargs) + len(taken.args)
    has_keyword = any(default is None for default in taken.kw_defaults)
    fits = positional - len(taken.defaults) <= count and (count <= positional or taken.vararg is not None)
    is_async = isinstance(function, ast.AsyncFunctionDef)
    if is_async or has_keyword or not fits:
        has = f"{'async ' if is_async else ''}{name}({ast.unparse(taken)})"
        raise InputError(_uncallable(name, has, f" {str(path)!r} (line {function.lineno})"))


def _uncallable(name: str, has: str, where: str) -> str:
    called = _called(name)
    return (
        f"{printable(shorten(has, _SHOWN))} of the training file{where} cannot be called as {called}, which is how a "
        f"run calls it; write def {called}"
    )


def _called(name: str) -> str:
    return f"{name}({', '.join(ARGUMENTS[name])})"


def _nearest(name: str, missing: Collection[str]) -> str | None:
    """Return the missing name that a name is nearly, or has as one of its words."""
    words = [word for word in name.casefold().split("_") if word]
    close = difflib.get_close_matches(name.casefold(), missing, n=1, cutoff=_ALIKE)
    whole = (one for one in missing if one in words)
    return close[0] if close else next(whole, None)


def _functions(parsed: ast.Module) -> Iterator[tuple[str, "_Function | ast.ClassDef"]]:
    """Yield the functions and classes at the top of a file."""
    for node in parsed.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    yield target.id, node.value


def _is_decorated(function: "_Function | ast.ClassDef") -> bool:
    return not isinstance(function, ast.Lambda) and bool(function.decorator_list)


def _may_define(parsed: ast.Module, name: str) -> bool:
    found: set[str] = set()
    for node in ast.walk(parsed):
        if isinstance(node, ast.Global):
            found.update(node.names)
        elif isinstance(node, ast.Name) and node.id in _MAY_DEFINE_ANY:
            return True
    for node in _of_module(parsed):
        found.update(_names_of(node))
    return name in found or "*" in found


def _of_module(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what is of the module's scope: what stands in functions and classes is theirs."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, _Function | ast.ClassDef):
            yield from _of_module(child)


def _names_of(node: ast.AST) -> tuple[str, ...]:
    """Return the names that a piece of a file binds."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return (node.name,)
    if isinstance(node, ast.Import | ast.ImportFrom):
        return tuple((alias.asname or alias.name).partition(".")[0] for alias in node.names)
    return (node.id,) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else ()
