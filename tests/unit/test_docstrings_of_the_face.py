"""What ``help()`` says of the package's face: it fits a terminal, and its examples run."""

import doctest
import inspect

import pytest

import heterps_compile

WIDEST = 76  # of 80 columns, of which pydoc takes 4
RUN = ["compile", "load", "CompiledModel", "Plan", "Training"]


@pytest.mark.parametrize("name", sorted({*RUN, "run", "hash_ids", "HeterpsError"}))
def test_docstrings_fit_a_terminal(name):
    said = inspect.getdoc(getattr(heterps_compile, name))
    assert said
    assert [line for line in said.splitlines() if len(line) > WIDEST] == []


@pytest.mark.parametrize("name", RUN)
def test_the_example_in_help_runs(name):
    (example,) = doctest.DocTestFinder(recurse=False).find(getattr(heterps_compile, name), name, globs={})
    results = doctest.DocTestRunner(verbose=False).run(example)
    assert results.attempted > 3
    assert results.failed == 0
