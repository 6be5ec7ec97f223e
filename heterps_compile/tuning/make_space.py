"""Make a space of parameters: in order, and checked.

Left out: the laws (``space_laws.py``).
"""

from collections.abc import Iterable

from heterps_compile.errors import InputError

from .parameters import Clause, Parameter
from .space import Space
from .space_laws import check_parameters, check_space, named


def make_space(parameters: Iterable[Parameter], forbidden: Iterable[tuple[Clause, ...]] = ()) -> Space:
    """Make a space of parameters in any order.

    Raises:
        InputError: with the first law that is broken (``space_laws.py``).
    """
    given = tuple(parameters)
    check_parameters(given)
    space = Space(_parents_first(given), tuple(forbidden))
    check_space(space)
    return space


def _parents_first(parameters: tuple[Parameter, ...]) -> tuple[Parameter, ...]:
    by_name = {parameter.name: parameter for parameter in parameters}
    done: dict[str, Parameter] = {}
    open_: set[str] = set()

    def visit(parameter: Parameter) -> None:
        if parameter.name in done:
            return
        if parameter.name in open_:
            raise InputError(f"{named(parameter.name)} is active depending on itself; break the circle")
        open_.add(parameter.name)
        for clauses in parameter.when:
            for clause in clauses:
                visit(by_name[clause.name])
        done[parameter.name] = parameter

    for parameter in parameters:
        visit(parameter)
    return tuple(done.values())
