"""What a pass is: a name, its options as fields, and one pure function from a step of the compilation to another.

The types of that function say which step it takes and which it gives (``drafts.py``); :func:`check_wiring`
allows nothing else. Passes never import each other.

Left out: which passes there are, how they are run and written (``pipeline.py``).
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol, get_type_hints

from heterps_compile.errors import HeterpsError, PlugInError

from .drafts import Draft


class Pass(Protocol):
    """A frozen dataclass with a name; its fields are its options.

    Its call names its parameter ``draft``, and has the types of both steps::

        def __call__(self, draft: Layered) -> Annotated: ...
    """

    name: ClassVar[str]

    def __call__(self, draft: Any) -> Draft:
        """Take a draft from one step to another."""
        ...


Observer = Callable[[Pass, Draft], None]


def ignore(_step: Pass, _draft: Draft) -> None:
    """Observe nothing."""


def steps_of(step: Pass) -> tuple[type[Draft], type[Draft]]:
    """Return the step that a pass takes and the one that it gives.

    Raises:
        PlugInError: where it does not say them.
    """
    try:
        hints = get_type_hints(type(step).__call__)
    except (NameError, AttributeError, TypeError):
        hints = {}
    takes, gives = hints.get("draft"), hints.get("return")
    for said in (takes, gives):
        if not (isinstance(said, type) and issubclass(said, Draft)):
            raise PlugInError(
                f"pass {step.name!r} does not say what it takes and gives; annotate its call with steps of "
                f"heterps_compile.passes.drafts: def __call__(self, draft: Layered) -> Layered"
            )
    return takes, gives  # type: ignore[return-value]  # checked above


def check_wiring(given: type[Draft], passes: Sequence[Pass], wanted: type[Draft]) -> None:
    """Check that every pass takes what the one before it gives, and that the last gives what is wanted.

    Raises:
        HeterpsError: naming the pass, what it needs, and the passes before it.
    """
    before: list[str] = []
    for step in passes:
        takes, gives = steps_of(step)
        if not issubclass(given, takes):
            raise HeterpsError(
                f"pass {step.name!r} needs a draft that is {takes.__name__}, and gets one that is {given.__name__}; "
                f"passes before it: {', '.join(before) or 'none'}"
            )
        given = gives
        before.append(step.name)
    if not issubclass(given, wanted):
        raise HeterpsError(
            f"a draft that is {wanted.__name__} is wanted, and the passes {', '.join(before) or '(none)'} give one "
            f"that is {given.__name__}"
        )
