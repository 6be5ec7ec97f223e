"""Machine code of loops: kept where that is possible, and compiled by another process meanwhile."""

import logging
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import pytest
from small_problems import linked, small_problem

from heterps_compile.passes.placement import best, compiled_loops
from heterps_compile.passes.placement.best import Best, Turns
from heterps_compile.passes.placement.compiled_loops import NOT_COMPILED, CompiledBeside, compiled, is_kept
from heterps_compile.passes.placement.local.kept_loops import compile_loop_beside
from heterps_compile.passes.placement.proof.effort import EFFORT
from heterps_compile.passes.placement.proof.exact import OPEN, TIME_UP
from heterps_compile.passes.placement.steps.anneal_steps import compile_steps_beside
from heterps_compile.passes.placement.steps.step_loops import anneal_steps

TOY = """
from heterps_compile.passes.placement.compiled_loops import compiled

FACTOR = 2

def law(number):
    return FACTOR * number

def twice(number):
    return law(number)

def compile_twice():
    assert compiled(twice)(21) == 42
"""


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """Return a module with a loop, whose code is kept in a folder that is empty."""
    (tmp_path / "toy_of_loops.py").write_text(TOY)
    (tmp_path / "kept").mkdir()
    monkeypatch.setattr("numba.core.config.CACHE_DIR", str(tmp_path / "kept"))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kept"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.syspath_prepend(tmp_path)
    compiled_loops._dispatcher.cache_clear()
    yield import_module("toy_of_loops")
    compiled_loops._dispatcher.cache_clear()
    del sys.modules["toy_of_loops"]


def test_another_process_compiles_once_and_here_the_code_is_read(toy: Any) -> None:
    assert not is_kept(toy.twice)
    first = CompiledBeside([toy.twice], toy.__name__, "compile_twice")
    assert first._process is not None
    assert first.is_ready(60)
    assert is_kept(toy.twice)
    assert CompiledBeside([toy.twice], toy.__name__, "compile_twice")._process is None
    toy.compile_twice()
    assert sum(cast("Any", compiled(toy.twice)).stats.cache_hits.values()) == 1


@pytest.mark.parametrize(("name", "upgraded"), [("FACTOR", 3), ("law", lambda number: 3 * number)])
def test_what_a_loop_takes_from_other_files_compiles_it_again(
    toy: Any, monkeypatch: pytest.MonkeyPatch, name: str, upgraded: object
) -> None:
    toy.compile_twice()
    assert is_kept(toy.twice)
    monkeypatch.setattr(toy, name, upgraded)
    assert not is_kept(toy.twice)
    compiled_loops._dispatcher.cache_clear()
    assert compiled(toy.twice)(21) == 63


def test_where_the_other_process_fails_the_loop_is_compiled_here(toy: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "heterps_compile")
    assert CompiledBeside([toy.twice], toy.__name__, "no_such_function").is_ready(60)
    assert "status 1" in caplog.text
    toy.compile_twice()


def test_where_no_folder_can_be_written_every_process_compiles_and_that_is_told(
    toy: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("numba.core.caching.CacheImpl._locator_classes", [])
    toy.compile_twice()
    assert CompiledBeside([toy.twice], toy.__name__, "compile_twice")._process is None
    assert "'twice' cannot be kept" in caplog.text


def test_a_time_limit_holds_while_the_loop_is_compiled_which_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Never:
        """Is never done."""

        def is_ready(self, wait_s: float = 0.0) -> bool:
            return False

    monkeypatch.setattr(best, "compile_loop_beside", Never)
    monkeypatch.setattr(best, "Anneal", None)
    without_tree = replace(EFFORT, links=replace(EFFORT.links, most_work=0, most_enumerated=0))
    is_open = linked(small_problem(1, layers=6, types=3, memory=False), 1)
    found = Best(effort=without_tree, turns=Turns(alone_share=0.0))(is_open, time_limit_s=0.2)
    assert found.notes in ((f"{TIME_UP}; {NOT_COMPILED}",), (f"{OPEN}; {NOT_COMPILED}",))  # as fast as the machine is
    assert Best(turns=Turns(alone_share=0.0))(is_open, time_limit_s=60.0).gap == 0  # the proof goes on, and closes it


def test_the_annealing_is_compiled_as_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[tuple[object, ...]]()
    monkeypatch.setattr(CompiledBeside, "__init__", lambda _, *given: asked.append(given))
    compile_loop_beside.__wrapped__()
    compile_steps_beside.__wrapped__()
    (functions, module, call), of_steps = asked
    assert of_steps == ((anneal_steps,), "heterps_compile.passes.placement.steps.anneal_steps", "compile_steps")
    assert [getattr(function, "__name__", "") for function in cast("Any", functions)] == [
        "anneal",
        "segment_talk",
        "cheapest_paths",
    ]
    assert (module, call) == ("heterps_compile.passes.placement.local.kept_loops", "compile_loop")
