"""The package logs under one name, and neither prints nor warns."""

import ast
import logging
from pathlib import Path

import torch
from test_house import modules

import heterps_compile
from heterps_compile.logger import LOG
from heterps_compile.plan.swap import _aside, recover

SPEAK = {
    "frontends.torch_program": "what torch or the model writes to stderr while it is traced, written there later",
    "profiling.crowd_process": "a process that speaks to its parent over a pipe",
    "profiling.link_process": "another",
    "profiling.replica_process": "another",
    "runtime.data.block_cache": "the screen of a rank: a disk that keeps no more of what is read from far away",
    "runtime.data.to_parquet": "the screen of a command: a CSV file that was converted, and where the copy is",
    "runtime.launch.env_rank": "the screen of rank 0: processes that report no device type",
    "runtime.launch.steps_of_run": "the screen of a run under torchrun",
    "runtime.launch.watch": "a rank that ends at once, with its fault",
    "runtime.launch.worker": "the screen of a run under torchrun, and the fault of a rank",
    "tuning.ray_process": "a process that speaks to the search over a pipe",
    "tuning.trial_run": "a trial's output.txt, which is all that its process prints to",
}
"""Modules that write to a standard file though they are no command, and what."""


def spoken(path: Path) -> list[str]:
    tree = ast.parse(path.read_bytes(), str(path))
    called = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    likely = [
        ast.unparse(of) for of in called if getattr(of, "id", getattr(of, "attr", "")) in ("print", "warn", "write")
    ]
    return [call for call in likely if call in ("print", "warnings.warn", "sys.stderr.write", "sys.stdout.write")]


def test_no_library_code_prints_or_warns():
    found = {name for name, path in modules() if not name.startswith(("cli.", "__main__")) and spoken(path)}
    assert sorted(found) == sorted(SPEAK)


def test_the_logger_is_silent_by_itself():
    assert LOG.name == "heterps_compile"
    assert [type(handler) for handler in LOG.handlers] == [logging.NullHandler]
    assert LOG.level == logging.NOTSET  # the program that uses the package says which levels it wants


def test_what_was_compiled_written_and_loaded_is_logged(tmp_path, caplog, capsys):
    caplog.set_level(logging.DEBUG, "heterps_compile")
    out = tmp_path / "o\x1b[31mut"
    compiled = heterps_compile.compile(torch.nn.Linear(8, 2), (torch.ones(4, 8),), method="exact")
    compiled.save(out)
    heterps_compile.load(out)
    ours = [record for record in caplog.records if record.name == "heterps_compile"]
    told = [record.getMessage() for record in ours if record.levelno == logging.INFO]
    assert told[0].startswith("compiled in ")
    assert told[0].endswith(f" s: {compiled.plan!r}")
    shown = str(out).replace("\x1b", "\\x1b")
    assert told[1:] == [f"wrote {shown}", f"loading {shown}, stages: 1"]
    steps = [record.getMessage() for record in ours if record.levelno == logging.DEBUG]
    assert (steps[0], steps[-1]) == ("step 0 of 11: reading", "step 11 of 11: done")
    assert capsys.readouterr() == ("", "")


def test_a_folder_that_is_put_back_is_a_warning(tmp_path, caplog):
    target = tmp_path / "out"
    _aside(target).mkdir()
    recover(target)
    assert target.is_dir()
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", f"put back {target}: an interrupted run had left it aside")
    ]
    recover(target)
    assert len(caplog.records) == 1
