"""Which workers of a search have one node of a Ray cluster, which several; what is told when its process is gone."""

import json
import sys
from pathlib import Path

import pytest

from heterps_compile.cluster.load import load_cluster
from heterps_compile.errors import RunError
from heterps_compile.tuning import ray_engine
from heterps_compile.tuning.ray_engine import RayEngine
from heterps_compile.tuning.ray_process import RayWorker, answers, joined, spanning
from heterps_compile.tuning.trial_engine import workers_of
from heterps_compile.tuning.worker_classes import worker_classes

PAIR = RayWorker("pair", (("v100", True, 1), ("cpu-core", False, 2)))
POOL = load_cluster("heterps-paper")


def test_a_worker_takes_its_types_and_as_many_cores_as_units() -> None:
    assert joined(PAIR.bundles(counts_gpus=True)) == {"heterps_v100": 1, "heterps_cpu-core": 2, "CPU": 3, "GPU": 1}
    assert PAIR.bundles(counts_gpus=False)[0] == {"heterps_v100": 1, "CPU": 1}
    assert PAIR.units == 3


def test_workers_span_nodes_where_none_has_room() -> None:
    both = {"heterps_v100": 1.0, "heterps_cpu-core": 2.0, "CPU": 4.0}
    apart = [{"heterps_v100": 1.0, "CPU": 4.0}, {"heterps_cpu-core": 2.0, "CPU": 4.0}]
    assert spanning([PAIR], [both], counts_gpus=False) == set()
    assert spanning([PAIR], apart, counts_gpus=False) == {"pair"}
    assert spanning([PAIR], [both], counts_gpus=True) == {"pair"}  # the node has no GPU of Ray's


def test_the_largest_workers_choose_first() -> None:
    large, small = RayWorker("large", (("core", False, 4),)), RayWorker("small", (("core", False, 2),))
    nodes = [{"heterps_core": 4.0, "CPU": 4.0}, {"heterps_core": 2.0, "CPU": 2.0}]
    assert spanning([small, large], nodes, counts_gpus=False) == set()
    assert spanning([small, large, RayWorker("more", small.devices)], nodes, counts_gpus=False) == {"more"}


def test_nobody_answers_at_what_is_no_address() -> None:
    assert not any(answers(address, 0.1) for address in ("", "nowhere", "127.0.0.1:99999", "127.0.0.1:x"))


def stands_for_ray(monkeypatch: pytest.MonkeyPatch, folder: Path, *said: object, last: str = "") -> RayEngine:
    """Return the engine with a process in place of Ray's, which says these lines, prints some, and leaves."""
    module = folder / "stands_for_ray.py"
    lines = "".join(f"{json.dumps(one)}\n" for one in said)
    module.write_text(
        f"import sys\nfor line in {lines!r}.splitlines(True):\n    sys.stdin.readline()\n    sys.stdout.write(line)\n"
        f"    sys.stdout.flush()\nsys.stdin.readline()\nprint({last!r}, file=sys.stderr)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setattr(ray_engine, "_MODULE", module.stem)
    monkeypatch.setattr(ray_engine, "need", lambda *_: None)
    return RayEngine(workers_of(worker_classes(POOL, "pair=1x1:v100+2:cpu-core")), None, folder)


def test_what_the_process_says_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with stands_for_ray(monkeypatch, tmp_path, {"notes": ["two nodes"]}, {"left": [["pair-0", "it died"]]}) as engine:
        assert engine.notes == ("two nodes",)
        (left,) = engine.wait(0.1)
    assert (left.worker.name, left.cause) == ("pair-0", "it died")


@pytest.mark.parametrize(
    ("said", "last", "fault"),
    [
        (
            {"lost": "the head\nis gone"},
            "",
            "head",
        ),
        (
            None,
            "C++ gave up\x1b[31m",
            r"Ray.*C\+\+.*up\\x1b\[31m.*ray\.txt",
        ),
        ({"error": "the workers take 3 of 'x'"}, "", r"\b3\b.*'x'"),
    ],
)
def test_a_process_that_is_gone_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: object, last: str, fault: str
) -> None:
    with stands_for_ray(monkeypatch, tmp_path, {"notes": []}, *([said] if said else []), last=last) as engine:
        with pytest.raises(RunError, match=fault) as error:
            engine.wait(0.1)
        assert "\n" not in str(error.value)


def test_the_engine_needs_its_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(Exception, match="'ray'"):
        RayEngine((), None, tmp_path)
