"""The source of the functions a stage calls, and of what these call in turn: a written stage carries it with it.

A function's source may use jax, numpy, a few modules of Python itself, numbers, and other such functions.

Left out: classes and closures.
"""

import ast
import dis
import inspect
import operator
import re
import textwrap
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.nn
from jax import lax
from jax import numpy as jnp

from heterps_compile.errors import BackendError

IMPORTS: dict[str, str] = {
    "functools": "import functools",
    "itertools": "import itertools",
    "math": "import math",
    "Callable": "from collections.abc import Callable",
    "Any": "from typing import Any",
    "jax": "import jax",
    "np": "import numpy as np",
    "lax": "from jax import lax",
    "jnp": "from jax import numpy as jnp",
}
"""What a function's source may import, by the name it has there, in the order of the lines."""

INFIX = {
    operator.add: "+", operator.sub: "-", operator.mul: "*", operator.eq: "==", operator.gt: ">", operator.ge: ">=",
    operator.lt: "<", operator.le: "<=", operator.and_: "&", operator.or_: "|", operator.xor: "^",
}  # fmt: skip
PREFIX = {operator.neg: "-", operator.invert: "~"}
_LIBRARIES = (("jnp", jnp), ("jax.nn", jax.nn), ("lax", lax))
_NUMBERS = (int, float, str, bool, tuple, type(None))
_OUR_REMARKS = re.compile(r"  # (?:noqa|type:|fmt:).*$", re.MULTILINE)


def spelled(function: Callable[..., Any]) -> str:
    """Return the name of a library's function as source has it, or "" where its own source must be carried."""
    name = getattr(function, "__name__", "")
    for prefix, library in _LIBRARIES:
        if name and getattr(library, name, None) is function:
            return f"{prefix}.{name}"
    return ""


class Carried:
    """Collects functions, what they call, and what they import."""

    def __init__(self) -> None:
        self.sources: dict[str, str] = {}
        self.imports: set[str] = {"jax", "np", "jnp"}
        self.numbers: dict[str, Any] = {}
        self._functions: dict[str, Any] = {}

    def add(self, function: Any) -> None:
        """Take in a function and all it calls.

        Raises:
            BackendError: where its source is not at hand, or uses what a written stage does not have.
        """
        if function in INFIX or function in PREFIX:
            return
        if spelled(function):
            self.imports.add(spelled(function).split(".")[0])
            return
        name = getattr(function, "__name__", repr(function))
        if self._functions.get(name, function) is not function:
            raise BackendError(f"two functions of the op table are called {name!r}; rename one")
        if name in self._functions:
            return
        if not isinstance(function, types.FunctionType) or function.__closure__ or name == "<lambda>":
            raise BackendError(
                f"{name!r} of the op table is no plain function, so that a stage cannot carry its source"
            )
        self._functions[name] = function
        try:
            source = textwrap.dedent(inspect.getsource(function)).rstrip()
        except OSError as error:
            raise BackendError(f"the source of {name!r} of the op table cannot be found: {error}") from error
        for used in names_of(function, source):
            self._use(function, used)
        self.sources[name] = _OUR_REMARKS.sub("", source)

    def _use(self, function: types.FunctionType, used: str) -> None:
        if used not in function.__globals__:
            return
        value = function.__globals__[used]
        if used in IMPORTS:
            self.imports.add(used)
        elif isinstance(value, types.FunctionType):
            if value.__name__ != used:
                raise BackendError(f"{function.__name__!r} of the op table calls {value.__name__!r} by another name")
            self.add(value)
        elif isinstance(value, _NUMBERS):
            self.numbers[used] = value
        elif used != "Array":
            raise BackendError(
                f"{function.__name__!r} of the op table uses {used!r}, which a written stage does not have "
                f"(it has {', '.join(IMPORTS)})"
            )


def names_of(function: types.FunctionType, source: str) -> Iterator[str]:
    """Yield the names a function looks up outside of it, when it runs and when it is defined."""
    pending = [function.__code__]
    while pending:
        code = pending.pop()
        yield from (i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
        pending += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    (definition,) = ast.parse(source).body
    if isinstance(definition, ast.FunctionDef):
        outside = [definition.args, *([definition.returns] if definition.returns else [])]
        yield from (n.id for part in outside for n in ast.walk(part) if isinstance(n, ast.Name))
