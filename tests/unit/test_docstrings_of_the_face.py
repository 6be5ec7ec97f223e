"""What ``help()`` says of the package's face: it fits a terminal, and its examples run."""

import doctest
import inspect
from functools import cached_property

import pytest

import heterps_compile

FUNCTION, CLASS, METHOD = 76, 76, 72  # of 80 columns, what pydoc's frame leaves
RUN = ["compile", "load", "CompiledModel", "Plan", "RunView", "Training"]


def said_in_help(name):
    """Yield the docstrings that help() shows of a name, with the columns that each has."""
    thing = getattr(heterps_compile, name)
    if not inspect.isclass(thing):
        yield inspect.getdoc(thing), FUNCTION
        return
    yield inspect.getdoc(thing), CLASS
    for member, what in vars(thing).items():
        if not member.startswith("_") and (callable(what) or isinstance(what, property | cached_property)):
            yield inspect.getdoc(what), METHOD


@pytest.mark.parametrize("name", [name for name in heterps_compile.__all__ if callable(getattr(heterps_compile, name))])
def test_docstrings_fit_a_terminal(name):
    for said, columns in said_in_help(name):
        assert said
        assert [line for line in said.splitlines() if len(line) > columns] == []


@pytest.mark.parametrize("name", RUN)
def test_the_example_in_help_runs(name):
    (example,) = doctest.DocTestFinder(recurse=False).find(getattr(heterps_compile, name), name, globs={})
    results = doctest.DocTestRunner(verbose=False).run(example)
    assert results.attempted > 3
    assert results.failed == 0
