"""A pipe or a device in place of any file that a user names is refused by its kind, without waiting."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from heterps_compile.cli.given import is_problem_file
from heterps_compile.cluster.load import load_cluster
from heterps_compile.cost.profile_file import read_profile
from heterps_compile.errors import InputError
from heterps_compile.frontends.onnx import import_onnx
from heterps_compile.machines.measured_runs import read_measured
from heterps_compile.machines.seen_lifetimes import read_lifetimes
from heterps_compile.offers.catalogue import read_catalogue
from heterps_compile.plain_file import read_plain
from heterps_compile.plan.source import read_plan
from heterps_compile.problem_file.read_problem import read_problem
from heterps_compile.problem_file.workload_file import is_workload_file, read_workload
from heterps_compile.review.manifest.manifest_file import read_manifest
from heterps_compile.runtime.data.data_file import local_file
from heterps_compile.runtime.launch.training_file import parse_training_file
from heterps_compile.transient.availability import read_trace
from heterps_compile.tuning.space_file import read_space

READERS: dict[str, Callable[[Path], object]] = {
    "plan.json": lambda path: read_plan(str(path)),
    "pool.toml": load_cluster,
    "profile.json": read_profile,
    "model.onnx": import_onnx,
    "workload.json": read_workload,
    "problem.json": read_problem,
    "catalogue.csv": read_catalogue,
    "measured.csv": lambda path: list(read_measured(path)),
    "lifetimes.csv": read_lifetimes,
    "samples.csv": local_file,
    "train.py": parse_training_file,
    "trace.csv": read_trace,
    "space.toml": read_space,
    "heterps.toml": lambda path: read_manifest(str(path)),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_regular_file_is_refused(tmp_path: Path, name: str, make: Callable[[Path], object]) -> None:
    path = tmp_path / name
    make(path)
    with pytest.raises(InputError, match=rf"{name}.*(pipe|device)"):
        READERS[name](path)


def test_to_look_at_a_pipe_does_not_wait_and_what_the_shell_opened_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert not is_problem_file(str(tmp_path / "pipe"))
    assert not is_workload_file(tmp_path / "pipe")
    reading, writing = os.pipe()
    os.write(writing, b"as of a process substitution")
    os.close(writing)
    assert read_plain(f"/dev/fd/{reading}") == b"as of a process substitution"
    os.close(reading)
