"""The resources that workers take of a Ray cluster, and clusters that do not answer."""

import sys
from pathlib import Path

import pytest

from heterps_compile.cluster.load import load_cluster
from heterps_compile.errors import MissingPackageError, RunError
from heterps_compile.tuning.ray_engine import RayEngine, silence, taken_by
from heterps_compile.tuning.ray_process import has_room
from heterps_compile.tuning.trial_engine import workers_of
from heterps_compile.tuning.worker_classes import worker_classes

WORKERS = workers_of(worker_classes(load_cluster("heterps-paper"), "pair=2x1:v100+2:cpu-core"))


def test_workers_take_their_types_and_as_many_cores_as_units() -> None:
    takes = taken_by(WORKERS[0])
    assert takes == {"heterps_v100": 1, "heterps_cpu-core": 2, "CPU": 3, "GPU": 1}
    assert has_room({**takes, "CPU": 4}, takes)
    assert not has_room({"heterps_v100": 1, "GPU": 1, "CPU": 4}, takes)


def test_an_address_without_a_cluster_is_refused(tmp_path: Path) -> None:
    assert all(silence(address) for address in ("", "nowhere", "127.0.0.1:99999", "127.0.0.1:x"))
    pytest.importorskip("ray")
    with pytest.raises(RunError, match=r"'127\.0\.0\.1:1'.*--address"):
        RayEngine(WORKERS, "127.0.0.1:1", tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_engine_needs_its_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingPackageError, match="'ray'"):
        RayEngine((), None, tmp_path)
