"""Write a stage as Python source: one pure function, the parameters under their own names.

The source needs nothing but jax and numpy to be imported, and safetensors to read its parameters. The functions of the
op table that it calls stand in it.

Left out: the parameters themselves (``weights.py``).
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from heterps_compile.backends.local_names import LocalNames
from heterps_compile.errors import BackendError
from heterps_compile.escape import printable, shorten

from .function_source import IMPORTS, INFIX, PREFIX, Carried, spelled
from .literals import literal
from .program import Body, Call, Param, Program, Ref, every_call
from .stage_template import TEMPLATE

MODULE_LEVEL = frozenset(
    {
        "params", "key", "stage", "step", "load", "Path", "INPUTS", "OUTPUTS", "KNOWN_INPUTS", "PARAMS", "WEIGHTS",
        "UPDATED", "DRAWS", "TIED_AS",
    }
)  # fmt: skip
"""Words that a written stage has for itself: no value is named so."""


def print_stage(program: Program, model: str) -> str:
    """Write a stage's source.

    Args:
        program: The stage.
        model: Name of the model it is of.

    Raises:
        BackendError: naming stage, node and op of what has no source.
    """
    carried = Carried()
    for call in every_call(program.calls):
        try:
            carried.add(call.op.function)
        except BackendError as error:
            raise BackendError(f"stage {program.index} cannot be written: {_place(call)}: {error}") from error
    carried.imports.add("Any")
    parameters = {n: f"({a.dtype.name!a}, {literal(tuple(a.shape))})" for n, a in program.parameters.items()}
    parts = {
        "INDEX": str(program.index),
        "MODEL": ascii(model)[1:-1].replace("\\", "/").replace('"', "'"),
        "IMPORTS": _imports(carried),
        "INPUTS": _names(program.inputs),
        "OUTPUTS": _names(program.outputs),
        "KNOWN": _names(tuple(name for name in program.inputs if name in program.known_inputs)),
        "PARAMS": _table(parameters),
        "WEIGHTS": _names(tuple(name for name in program.parameters if name in program.weights)),
        "UPDATED": _table({name: literal(momentum) for name, momentum in program.momentum.items()}),
        "DRAWS": repr(program.draws),
        "TIED_AS": _table({name: ascii(storage) for name, storage in program.tied_as.items()}),
        "NUMBERS": "".join(f"{name} = {literal(value)}\n" for name, value in carried.numbers.items()),
        "FUNCTIONS": "".join(f"\n\n{source}\n" for source in carried.sources.values()),
        "STAGE": "\n".join(_lines(program, carried)),
    }
    # one pass, so that a placeholder's name inside what was put in stays as it is
    pieces = TEMPLATE.split("@@")
    return "".join(parts[piece] if i % 2 else piece for i, piece in enumerate(pieces))


def _imports(carried: Carried) -> str:
    lines = [line for name, line in IMPORTS.items() if name in carried.imports]
    ours = ("jax", "numpy")
    first = [line for line in lines if not re.search(rf"\b({'|'.join(ours)})\b", line)]
    first = sorted([*first, "from pathlib import Path"], key=lambda line: (line.startswith("from"), line))
    return "\n".join([*first, "", *(line for line in lines if line not in first)])


def _names(names: tuple[str, ...]) -> str:
    return "".join(["(\n", *(f"    {name!a},\n" for name in names), ")"]) if names else "()"


def _table(entries: Mapping[str, str]) -> str:
    return "".join(["{\n", *(f"    {name!a}: {text},\n" for name, text in entries.items()), "}"]) if entries else "{}"


def _lines(program: Program, carried: Carried) -> Iterator[str]:
    local = LocalNames({*MODULE_LEVEL, *carried.sources, *carried.numbers, *IMPORTS, "Array"})
    taken = [local.of(name) for name in program.inputs]
    takes = ", ".join(["params", *taken, *(["*", "key"] if program.draws else [])])
    run = '    """Run the stage; give a tuple of the values named in OUTPUTS."""'
    if program.updates:
        yield f"def stage({takes}):"
        yield run
        yield f"    return step({takes.replace('*, key', 'key=key')})[0]"
        yield ""
        yield ""
        yield f"def step({takes}):"
        yield '    """Run the stage; give the same tuple, and a dict of the new values of what is named in UPDATED."""'
    else:
        yield f"def stage({takes}):"
        yield run
    for name, variable in zip(program.inputs, taken, strict=True):
        convert = "np.asarray" if name in program.known_inputs else "jnp.asarray"
        yield f"    {variable} = {convert}({variable}){_comment(program, name)}"
    yield from _calls(program, program.calls, local)
    given = _tuple(program.results, local)
    if not program.updates:
        yield f"    return {given}"
        return
    yield f"    return {given}, {{"
    yield from (f"        {name!a}: {_argument(value, local)}," for name, value in program.updates.items())
    yield "    }"


def _tuple(results: tuple[Any, ...], local: LocalNames) -> str:
    written = [_argument(result, local) for result in results]
    return f"({', '.join(written)}{',' if len(written) == 1 else ''})"


def _calls(program: Program, calls: tuple[Call, ...], local: LocalNames) -> Iterator[str]:
    for call in calls:
        functions = {name: local.new(name) for name in call.bodies}
        for name, body in call.bodies.items():
            yield from _function(program, functions[name], body, local)
        try:
            yield _statement(program, call, local, functions)
        except TypeError as error:
            raise BackendError(f"stage {program.index} cannot be written: {_place(call)}: {error}") from error


def _function(program: Program, name: str, body: Body, local: LocalNames) -> Iterator[str]:
    """Write a subgraph as a function inside the stage's: it sees the variables before it."""
    yield ""
    yield f"    def {name}({', '.join(map(local.of, body.inputs))}):"
    yield from (f"    {line}" if line else "" for line in _calls(program, body.calls, local))
    yield f"        return {_tuple(body.results, local)}"
    yield ""


def _statement(program: Program, call: Call, local: LocalNames, functions: Mapping[str, str]) -> str:
    arguments = [_argument(argument, local) for argument in call.arguments]
    options = [f"{name}={literal(value)}" for name, value in call.options.items()]
    options += ["key=key"] if call.draws else []
    options += [f"{name}={function}" for name, function in functions.items()]
    function = call.op.function
    if function in INFIX:
        written = f" {INFIX[function]} ".join(arguments)
    elif function in PREFIX:
        written = f"{PREFIX[function]}{arguments[0]}"
    else:
        written = f"{spelled(function) or function.__name__}({', '.join(arguments + options)})"
    targets = ", ".join(local.of(name) if name else "_" for name in call.results)
    if call.bodies and len(call.results) == 1:  # they always give a tuple
        targets = f"({targets},)"
    read = [name for name in call.results if name]
    return f"    {targets} = {written}{_comment(program, *read)}"


def _argument(argument: Any, local: LocalNames) -> str:
    if isinstance(argument, Ref):
        return local.of(argument.name)
    return f"params[{argument.name!a}]" if isinstance(argument, Param) else literal(argument)


def _comment(program: Program, *names: str) -> str:
    known = [program.described[name] for name in names if name in program.described]
    return f"  # {', '.join(ascii(text)[1:-1] for text in known)}" if known else ""


def _place(call: Call) -> str:
    return f"node {printable(shorten(call.node, 80))!r} ({call.op.name})"
