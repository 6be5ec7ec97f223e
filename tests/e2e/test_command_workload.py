"""``heterps-compile WORKLOAD``: a cost-only graph becomes a plan, and no code."""

import json
from pathlib import Path

import pytest
from commands import heterps


def node(name: int, ms: float) -> dict[str, object]:
    return {
        "id": name,
        "supportedOnFpga": 1,
        "cpuLatency": 100.0,
        "fpgaLatency": ms,
        "isBackwardNode": 0,
        "size": 8.0,
    }


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    """A chain of three nodes of 1, 2 and 3 ms, transfers of 0.5 ms, two accelerators: 1 + 2 + 0.5 against 0.5 + 3."""
    document = {
        "maxFPGAs": 2,
        "maxCPUs": 0,
        "maxSizePerFPGA": 100.0,
        "nodes": [node(1, 1.0), node(2, 2.0), node(3, 3.0)],
        "edges": [{"sourceId": 1, "destId": 2, "cost": 0.5}, {"sourceId": 2, "destId": 3, "cost": 0.5}],
    }
    path = tmp_path / "chain.json"
    path.write_text(json.dumps(document))
    return path


def test_a_workload_becomes_a_plan_and_a_split(workload: Path) -> None:
    done = heterps(workload, "-o", "out", cwd=workload.parent)
    assert (done.returncode, done.stderr) == (0, "")
    assert "largest load  3.5000 ms (contiguous)" in done.stdout
    assert "no contiguous split is better" in done.stdout
    split = json.loads((workload.parent / "out" / "split.json").read_text())
    assert [entry["nodes"] for entry in split["fpgas"]] == [[1, 2], [3]]
    assert split["cpus"] == []


def test_json_says_what_was_found_and_proven(workload: Path) -> None:
    done = heterps(workload, "--objective", "max-load", "--json", cwd=workload.parent)
    document = json.loads(done.stdout)
    assert document["objective"] == {"name": "max-load", "value": 3.5, "unit": "ms"}
    assert (document["bound"], document["gap"], document["contiguous"]) == (3.5, 0.0, True)
    assert sorted(p.name for p in workload.parent.iterdir()) == ["chain.json"]


def test_what_is_no_model_by_its_name_is_read_as_a_workload(tmp_path: Path) -> None:
    (tmp_path / "x.pb").write_bytes(b"\x08\x07")
    done = heterps("x.pb", "--objective", "max-load", cwd=tmp_path)
    assert done.returncode == 1
    assert "Error: workload file 'x.pb'" in done.stderr
    assert "Traceback" not in done.stderr
