"""A random module as data: inputs, steps, outputs; JSON and a listing of it.

Left out: what a step does (``table.py`` and its rows), drawing (``draw.py``), running (``module.py``).
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

_DEFAULT: dict[str, Any] = {
    "high": 10, "value": None, "by_name": False, "options": (), "count": 1, "shares": None, "hook": "", "frozen": False,
    "constant": None, "parts": (), "training": False, "unused": False, "tied_weight": None,
}  # fmt: skip

Options = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Input:
    """One argument of ``forward``: a tensor of a dtype and shape, or where ``value`` is given that number.

    Attributes:
        kind: ``"float"``, ``"int"`` (0 to ``high`` - 1), ``"bool"`` or ``"number"``.
        by_name: Whether it is given as a keyword.
    """

    kind: str
    shape: tuple[int, ...] = ()
    high: int = 10
    value: float | int | None = None
    by_name: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One operation; what it makes is appended to the values.

    Attributes:
        op: Its row in ``OPS``.
        args: Places of the values it reads: inputs first, then what steps made.
        options: Of the row.
        count: How many values it makes.
        shares: The step whose submodule it uses as well; None where it has its own.
        hook: Of its submodule: see ``HOOKS`` in ``layers.py``; "" for none.
        frozen: Whether its parameters ask for no gradient.
    """

    op: str
    args: tuple[int, ...]
    options: Options = ()
    count: int = 1
    shares: int | None = None
    hook: str = ""
    frozen: bool = False


@dataclass(frozen=True, slots=True)
class Output:
    """One node of the result's structure.

    Attributes:
        kind: ``"value"`` (``at`` is its place), ``"parameter"`` (``at`` counts them), ``"constant"``, or a key
            of ``CONTAINERS`` in ``module.py``.
    """

    kind: str
    at: int = 0
    constant: Any = None
    parts: "tuple[Output, ...]" = ()


@dataclass(frozen=True, slots=True)
class Description:
    """A whole module and how it is called.

    Attributes:
        seed: Of its weights and inputs.
        training: Whether it is compiled in training mode.
        unused: Whether it has a parameter and a submodule that nothing reads.
        tied_weight: A pair of steps: the weight of the second is that of the first.
    """

    seed: int
    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    output: Output
    training: bool = False
    unused: bool = False
    tied_weight: tuple[int, int] | None = None
    stages: int = 2

    def to_json(self) -> str:
        """Return it on one line."""
        return json.dumps(_sparse(asdict(self)), separators=(",", ":"))

    def listing(self) -> str:
        """Print it as one reads a forward."""
        lines = []
        for place, given in enumerate(self.inputs):
            what = f"{given.kind} {given.value}" if given.value is not None else f"{given.kind}{list(given.shape)}"
            lines.append(f"v{place} = {what}{' by name' if given.by_name else ''}")
        place = len(self.inputs)
        for index, step in enumerate(self.steps):
            made = ", ".join(f"v{place + i}" for i in range(step.count))
            given = [f"v{arg}" for arg in step.args] + [f"{key}={value!r}" for key, value in step.options]
            marks = [f"with {step.hook}"] * bool(step.hook) + ["frozen"] * step.frozen
            marks += [f"sharing step {step.shares}"] * (step.shares is not None)
            tied = self.tied_weight
            if tied is not None and tied[1] == index:
                marks.append(f"weight of step {tied[0]}")
            lines.append(f"{made} = {step.op}({', '.join(given)}){''.join(', ' + mark for mark in marks)}")
            place += step.count
        lines.append(f"return {_shown(self.output)}")
        mode = "train" if self.training else "eval"
        return "\n".join([*lines, f"# mode {mode}, {self.stages} stages, seed {self.seed}" + ", unused" * self.unused])


def _sparse(raw: Any) -> Any:
    """Leave out what is as it is by default."""
    if isinstance(raw, dict):
        return {key: _sparse(value) for key, value in raw.items() if key not in _DEFAULT or value != _DEFAULT[key]}
    return [_sparse(value) for value in raw] if isinstance(raw, (list, tuple)) else raw


def leaves(output: Output) -> Iterator[Output]:
    """Yield the leaves of a structure in order."""
    if output.parts:
        for part in output.parts:
            yield from leaves(part)
    else:
        yield output


def with_leaves(output: Output, keep: Any) -> Output | None:
    """Return a structure with every leaf replaced by ``keep(leaf)``, those without one left out; None for none."""
    if not output.parts:
        kept: Output | None = keep(output)
        return kept
    parts = tuple(part for part in (with_leaves(old, keep) for old in output.parts) if part is not None)
    return replace(output, parts=parts) if parts else None


def from_json(text: str) -> Description:
    """Return what ``to_json`` wrote."""
    raw = {**_DEFAULT, **json.loads(text)}
    tied = raw["tied_weight"]
    steps = [{"options": (), **step} for step in raw["steps"]]
    return Description(
        seed=raw["seed"],
        inputs=tuple(Input(**{**given, "shape": tuple(given.get("shape", ()))}) for given in raw["inputs"]),
        steps=tuple(Step(**{**s, "args": tuple(s["args"]), "options": _options(s["options"])}) for s in steps),
        output=_output(raw["output"]),
        training=raw["training"],
        unused=raw["unused"],
        tied_weight=None if tied is None else (tied[0], tied[1]),
        stages=raw["stages"],
    )


def _options(raw: Any) -> Options:
    return tuple((key, _tuples(value)) for key, value in raw)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _output(raw: Any) -> Output:
    return Output(raw["kind"], raw.get("at", 0), raw.get("constant"), tuple(map(_output, raw.get("parts", ()))))


def _shown(output: Output) -> str:
    if output.parts:
        return f"{output.kind}({', '.join(map(_shown, output.parts))})"
    if output.kind == "value":
        return f"v{output.at}"
    return f"parameter {output.at}" if output.kind == "parameter" else repr(output.constant)
