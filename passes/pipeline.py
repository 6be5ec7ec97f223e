"""The passes of a compilation in order, as values and as text.

::

    group-layers,annotate-intensity,pose-problem,place-layers{method=exact,proof_s=5.0},fuse-stages,...

A pass is its name, and in braces its options where they are not the defaults. An option is written by the type of its
field: other text than plain words as JSON; ``true`` and ``false``; words of a tuple with ``+`` between; ``none``.

A third party adds a pass as an entry point of the group ``heterps_compile.passes``: its name, and a callable that gives
a :class:`~.contract.Pass` of that name. The names of the passes here cannot be taken.

Left out: what a pass is and how passes are wired (``contract.py``).
"""

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from importlib.metadata import entry_points
from types import NoneType, UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from heterps_compile.errors import HeterpsError, InputError, PlugInError, UnknownNameError
from heterps_compile.escape import one_line, short
from heterps_compile.plug_ins import make_plug_in, shown

from .annotate_intensity import AnnotateIntensity
from .choose_rules import ChooseRules
from .choose_schedule import ChooseSchedule
from .contract import Observer, Pass, check_wiring, ignore, steps_of
from .drafts import D, Draft, Emitted
from .emit_stages import EmitStages
from .fuse_stages import FuseStages
from .group_layers import GroupLayers
from .place_layers import PlaceLayers
from .pose_problem import PoseProblem
from .provision import Provision

ENTRY_POINT_GROUP = "heterps_compile.passes"

DEFAULT: tuple[Pass, ...] = (
    GroupLayers(),
    AnnotateIntensity(),
    PoseProblem(),
    PlaceLayers(),
    FuseStages(),
    Provision(),
    ChooseRules(),
    ChooseSchedule(),
    EmitStages(),
)
"""The passes that make a plan, from the graph to the stages."""

_OURS = {step.name: step for step in DEFAULT}
_OUR_TYPES = {type(step) for step in DEFAULT}
_PLAIN = re.compile(r"[\w.:/-]+", re.ASCII)
_TOKEN = re.compile(r'\s*(?:([\w.:/-]+)|("(?:[^"\\]|\\.)*")|([,{}=+]))', re.ASCII)
_RESERVED = ("none", "true", "false")


def run_passes(draft: Draft, passes: Sequence[Pass], wanted: type[D], observer: Observer = ignore) -> D:
    """Run passes in order, after a check of their wiring.

    Args:
        draft: Where to begin.
        passes: In order.
        wanted: The step that the last one is to give.
        observer: Called after every pass, for printing and timing.

    Raises:
        HeterpsError: before the first pass runs, where one does not take what the one before it gives.
        PlugInError: where a third party's pass fails, or gives another step than it says.
    """
    check_wiring(type(draft), passes, wanted)
    for step in passes:
        draft = _run(step, draft)
        observer(step, draft)
    return cast(D, draft)  # as the wiring says


def _run(step: Pass, draft: Draft) -> Draft:
    gives = steps_of(step)[1]
    try:
        found = step(draft)
    except HeterpsError:
        raise
    except Exception as error:
        if type(step) in _OUR_TYPES:
            raise  # ours: a bug
        raise PlugInError(
            f"the pass {step.name!r} fails: {one_line(f'{type(error).__name__}: {error}')}; mend it, or leave it out"
        ) from error
    if not isinstance(found, gives):
        raise PlugInError(
            f"the pass {step.name!r} gave a {type(found).__name__}, and must give a {gives.__name__}; mend it, or "
            f"leave it out"
        )
    return found


def run_to(draft: Draft, wanted: type[D]) -> D:
    """Run the default passes from where a draft is to the step that is wanted.

    Raises:
        HeterpsError: where none of them gives it.
    """
    if isinstance(draft, wanted):
        return draft
    left = [step for step in DEFAULT if not issubclass(type(draft), steps_of(step)[1])]
    ends = [index for index, step in enumerate(left, 1) if issubclass(steps_of(step)[1], wanted)]
    return run_passes(draft, left[: ends[0]] if ends else left, wanted)


def as_pipeline(passes: str | Sequence[Pass] | None) -> tuple[Pass, ...]:
    """Return the passes that a compilation runs; None for the default ones.

    Raises:
        HeterpsError: where a text names no passes, or they do not make a plan of a graph.
    """
    if passes is None:
        return DEFAULT
    found = parse_pipeline(passes) if isinstance(passes, str) else tuple(passes)
    check_wiring(Draft, found, Emitted)
    return found


def find_pass(name: str) -> Pass:
    """Return the pass of a name, with its default options.

    Raises:
        UnknownNameError: with the known names, those of third parties included, and the nearest.
        PlugInError: where a third party's does not load, or is no pass of that name.
    """
    if name in _OURS:
        return _OURS[name]
    others = {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
    if name not in others:
        raise UnknownNameError("pass", name, [*_OURS, *sorted(others)])
    made = cast(Pass, make_plug_in(others[name], ("name",)))
    if made.name != name:
        raise PlugInError(f"{shown(others[name])} gives the pass {made.name!r}; both must have one name")
    steps_of(made)
    return made


def pipeline_text(passes: Sequence[Pass]) -> str:
    """Return passes as text that :func:`parse_pipeline` reads."""
    return ",".join(map(pass_text, passes))


def pass_text(step: Pass) -> str:
    """Return a pass as text: its name, and its options that are not the defaults."""
    options = [
        f"{field.name}={_value_text(getattr(step, field.name))}"
        for field in _options(step)
        if getattr(step, field.name) != field.default
    ]
    return step.name + (f"{{{','.join(options)}}}" if options else "")


def _options(step: Pass) -> tuple[Any, ...]:
    return fields(step) if is_dataclass(step) else ()


def _value_text(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "+".join(map(_value_text, value))
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) and value not in _RESERVED else json.dumps(value)
    return str(value).replace("+", "")  # 1e+16


def parse_pipeline(text: str) -> tuple[Pass, ...]:
    """Return the passes of a text.

    Raises:
        UnknownNameError: for an unknown pass or option.
        InputError: where the text is no list of passes, or a value is not what its option takes.
        PlugInError: where a third party's pass does not load, or is none.
    """
    tokens = _Tokens(text)
    passes = [_parse_pass(tokens)]
    while not tokens.is_at_end:
        tokens.take(",")
        passes.append(_parse_pass(tokens))
    return tuple(passes)


def _parse_pass(tokens: "_Tokens") -> Pass:
    step = find_pass(tokens.word("the name of a pass"))
    if tokens.next != "{":
        return step
    tokens.take("{")
    kinds = _kinds(step)
    given: dict[str, Any] = {}
    while True:
        name = tokens.word(f"an option of {step.name!r}")
        if name not in kinds:
            if not kinds:
                raise InputError(f"the pass {step.name!r} has no options; write it without braces")
            raise UnknownNameError(f"option of the pass {step.name!r}", name, kinds)
        if name in given:
            raise InputError(f"the option {name!r} of the pass {step.name!r} is given twice; leave one out")
        tokens.take("=")
        given[name] = _parse_value(f"{step.name}{{{name}}}", kinds[name], tokens)
        if tokens.next == "}":
            break
        tokens.take(",")
    tokens.take("}")
    made: Any = step
    return cast(Pass, replace(made, **given))


def _kinds(step: Pass) -> dict[str, Any]:
    """Return the type of every option of a pass."""
    try:
        hints = get_type_hints(type(step))
    except (NameError, TypeError) as error:
        raise PlugInError(f"the types of the options of the pass {step.name!r} cannot be read: {error}") from error
    return {field.name: hints[field.name] for field in _options(step)}


def _parse_value(what: str, kind: Any, tokens: "_Tokens") -> Any:
    if get_origin(kind) in (UnionType, Union):
        if tokens.next == "none" and NoneType in get_args(kind):
            tokens.take("none")
            return None
        return _parse_value(what, next(one for one in get_args(kind) if one is not NoneType), tokens)
    if get_origin(kind) is tuple:
        values = [] if tokens.next in (",", "}") else [_parse_value(what, str, tokens)]
        while tokens.next == "+":
            tokens.take("+")
            values.append(_parse_value(what, str, tokens))
        return tuple(values)
    written = tokens.value(what)
    if kind is str:
        return json.loads(written) if written.startswith('"') else written
    if kind is bool and written in ("true", "false"):
        return written == "true"
    try:
        if kind is int:
            return int(written)
        if kind is float and not math.isnan(float(written)):
            return float(written)
    except ValueError:
        pass
    kinds = {bool: "true or false", int: "a whole number", float: "a number"}
    raise InputError(f"{what} is {short(written)}; it must be {kinds.get(kind, 'what the pass takes')}")


class _Tokens:
    """The words and signs of a text, one at a time."""

    def __init__(self, text: str) -> None:
        self._tokens, self._place = list(_split(text)), 0

    @property
    def is_at_end(self) -> bool:
        return self._place == len(self._tokens)

    @property
    def next(self) -> str:
        return "" if self.is_at_end else self._tokens[self._place]

    def take(self, sign: str) -> None:
        if self.next != sign:
            raise InputError(f"the passes have {self._found} where {sign!r} is expected; {_EXAMPLE}")
        self._place += 1

    def word(self, what: str) -> str:
        if not _PLAIN.fullmatch(self.next):
            raise InputError(f"the passes have {self._found} where {what} is expected; {_EXAMPLE}")
        self._place += 1
        return self._tokens[self._place - 1]

    def value(self, what: str) -> str:
        if not (_PLAIN.fullmatch(self.next) or self.next.startswith('"')):
            raise InputError(f"the passes have {self._found} where the value of {what} is expected; {_EXAMPLE}")
        self._place += 1
        return self._tokens[self._place - 1]

    @property
    def _found(self) -> str:
        return short(self.next) if self.next else "an end"


_EXAMPLE = "write them like group-layers,place-layers{method=exact,proof_s=5}"


def _split(text: str) -> Iterator[str]:
    place, text = 0, text.rstrip()
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            left = short(text[place:].strip())
            raise InputError(f"the passes have {left}, which is no name, text or sign; {_EXAMPLE}")
        yield next(part for part in match.groups() if part is not None)
        place = match.end()
