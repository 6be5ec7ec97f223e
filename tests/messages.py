"""List the messages of errors in sources: module, class and template, without running anything.

A template is the text of a message with its fields in braces, as in ``line {line} of {str(path)!r} is {value}``.
Alternatives are ``(one|other)``; ``<words()>`` is a text of the function ``words``, listed under that name.
Local variables that are texts are written out.
"""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

_LONGEST_FIELD = 40
_USAGE = ("UsageError", "BadParameter", "ClickException")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Message:
    """One message: where it is raised, as which class or by which function, and its template."""

    module: str
    function: str
    kind: str
    template: str

    def __str__(self) -> str:
        text = self.template.replace("\\", "\\\\").replace("\n", "\\n")
        return f"{self.module}: {self.kind}: {text}"


def error_classes(modules: Iterable[Iterable[ast.AST]], root: str) -> set[str]:
    """Return the names of the class ``root`` and of all classes that inherit from it."""
    bases = {
        node.name: {_name(base) for base in node.bases}
        for nodes in modules
        for node in nodes
        if isinstance(node, ast.ClassDef)
    }
    found = {root}
    while new := {name for name, parents in bases.items() if parents & found} - found:
        found |= new
    return found


def messages_of(modules: dict[str, tuple[ast.AST, ...]], root: str) -> list[Message]:
    """Return the messages of all modules, sorted; modules map a dotted name to the nodes of its file."""
    errors = error_classes(modules.values(), root)
    sources = {module: _Source(module, nodes, errors) for module, nodes in modules.items()}
    found = {message for source in sources.values() for message in source.raised()}
    seen: set[tuple[str, str]] = set()
    while new := {wanted for source in sources.values() for wanted in source.called} - seen:
        seen |= new
        found |= {message for module, name in new if module in sources for message in sources[module].returned(name)}
    return sorted(found, key=str)


class _Source:
    """One module: its functions, its imports, and the messages in it."""

    def __init__(self, module: str, nodes: tuple[ast.AST, ...], errors: set[str]) -> None:
        self.module = module
        self.nodes = nodes
        self.errors = errors
        self.called: set[tuple[str, str]] = set()  # (module, function) of texts that a message takes whole
        self._texts: dict[Function | None, dict[str, ast.expr]] = {}

    @cached_property
    def functions(self) -> list[Function]:
        return [node for node in self.nodes if isinstance(node, Function)]

    @cached_property
    def imports(self) -> dict[str, str]:
        """Return the module, inside the package, of each name that is imported from one."""
        return {
            alias.asname or alias.name: (node.module or "").partition(".")[2]
            for node in self.nodes
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }

    def raised(self) -> Iterator[Message]:
        """Yield the messages of errors that are made or raised here."""
        raised = {id(node.exc) for node in self.nodes if isinstance(node, ast.Raise)}
        for call in self.nodes:
            if not isinstance(call, ast.Call):
                continue
            name = _name(call.func)
            is_super = name == "__init__" and isinstance(call.func, ast.Attribute) and _is_super(call.func.value)
            is_other = id(call) in raised and (name.endswith("Error") or name in _USAGE or self._has_words(call))
            if not (name in self.errors or is_other or is_super):
                continue
            function = self._around(call)
            kind = name if name.strip("_")[:1].isupper() else f"{name}()"
            if is_super:
                owner = self._class_around(call)
                if owner not in self.errors:
                    continue
                kind = owner
            template = self._arguments(call, function)
            if not (is_super and template.startswith("{")):
                yield Message(self.module, function.name if function else "", kind, template)

    def returned(self, name: str) -> Iterator[Message]:
        """Yield the texts that a function of this module returns."""
        for function in self.functions:
            if function.name == name:
                for node in ast.walk(function):
                    if isinstance(node, ast.Return) and node.value is not None and _is_text(node.value):
                        yield Message(self.module, name, f"{name}()", self._text(node.value, function, frozenset()))

    def _arguments(self, call: ast.Call, function: Function | None) -> str:
        """Return a message's template; all arguments are in it where the first is not the message."""
        if not call.args:
            return ""
        parts = call.args if _name(call.func) == "UnknownNameError" else call.args[:1]
        return ", ".join(self._text(part, function, frozenset()) for part in parts)

    def _has_words(self, call: ast.Call) -> bool:
        return bool(call.args) and _is_text(call.args[0])

    def _around(self, node: ast.Call) -> Function | None:
        """Return the innermost function with a call."""
        inside = [one for one in self.functions if one.lineno <= node.lineno <= (one.end_lineno or 0)]
        return max(inside, key=lambda one: one.lineno, default=None)

    def _class_around(self, node: ast.Call) -> str:
        classes = [one for one in self.nodes if isinstance(one, ast.ClassDef)]
        inside = [one for one in classes if one.lineno <= node.lineno <= (one.end_lineno or 0)]
        return max(inside, key=lambda one: one.lineno).name if inside else ""

    def _local(self, function: Function | None, name: str) -> ast.expr | None:
        """Return the text that a name is set to, once, in a function or else at the top of the module."""
        for scope in dict.fromkeys((function, None)):
            if scope not in self._texts:
                nodes = ast.walk(scope) if scope else (node for node in self.nodes if _at_top(node))
                values: dict[str, list[ast.expr]] = {}
                for node in nodes:
                    target, value = _assigned(node)
                    if target:
                        values.setdefault(target, []).append(value)
                self._texts[scope] = {
                    key: found[0] for key, found in values.items() if len(found) == 1 and _is_text(found[0])
                }
            if name in self._texts[scope]:
                return self._texts[scope][name]
        return None

    def _text(self, node: ast.expr, function: Function | None, above: frozenset[str]) -> str:
        """Return the template of an expression; ``above`` are the local texts that it is part of."""
        match node:
            case ast.Constant(value=str(text)):
                return text
            case ast.JoinedStr(values=parts):
                return "".join(self._text(part, function, above) for part in parts)
            case ast.FormattedValue(value=value, conversion=conversion, format_spec=spec):
                if (
                    conversion == -1
                    and spec is None
                    and (_is_text(value) or self._is_local_text(value, function, above))
                ):
                    return self._text(value, function, above)
                end = f"!{chr(conversion)}" if conversion != -1 else ""
                end += f":{self._text(spec, function, above)}" if spec is not None else ""
                return f"{{{_field(value)}{end}}}"
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self._text(left, function, above) + self._text(right, function, above)
            case ast.IfExp(body=body, orelse=orelse):
                return f"({self._text(body, function, above)}|{self._text(orelse, function, above)})"
            case ast.BoolOp(values=values):
                return f"({'|'.join(self._text(value, function, above) for value in values)})"
            case ast.Name(id=name) if self._is_local_text(node, function, above):
                text = self._local(function, name)
                assert text is not None
                return self._text(text, function, above | {name})
            case ast.Call(func=ast.Name(id=name)) if name not in ("str", "repr"):
                self.called.add((self.imports.get(name, self.module), name))
                return f"<{name}()>"
            case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name)):
                self.called.add((self.module, name))
                return f"<{name}()>"
        return f"{{{_field(node)}}}"

    def _is_local_text(self, node: ast.expr, function: Function | None, above: frozenset[str]) -> bool:
        return isinstance(node, ast.Name) and node.id not in above and self._local(function, node.id) is not None


def _name(node: ast.expr) -> str:
    """Return the last name of ``a.b.c``."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and _name(node.func) == "super"


def _is_text(node: ast.expr) -> bool:
    """Return whether an expression has words of a message in it."""
    match node:
        case ast.Constant(value=str(text)):
            return bool(text)
        case ast.JoinedStr():
            return True
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _is_text(left) or _is_text(right)
        case ast.IfExp(body=body, orelse=orelse):
            return _is_text(body) or _is_text(orelse)
    return False


def _at_top(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign | ast.AnnAssign) and node.col_offset == 0


def _assigned(node: ast.AST) -> tuple[str, ast.expr]:
    """Return the name and the value of an assignment to one name; an empty name for anything else."""
    match node:
        case (
            ast.Assign(targets=[ast.Name(id=name)], value=value) | ast.NamedExpr(target=ast.Name(id=name), value=value)
        ):
            return name, value
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
            return name, value
        case ast.AugAssign(target=ast.Name(id=name), value=value) | ast.For(target=ast.Name(id=name), iter=value):
            return name, ast.Name(id=name)
    return "", ast.Name(id="")


def _field(node: ast.expr) -> str:
    """Return a field's short name: the expression, or the function of a long one."""
    text = ast.unparse(node)
    if len(text) <= _LONGEST_FIELD and not any(isinstance(part, ast.JoinedStr) for part in ast.walk(node)):
        return text  # how f-strings are printed depends on Python's version
    return f"{_name(node.func)}()" if isinstance(node, ast.Call) and _name(node.func) else "..."
