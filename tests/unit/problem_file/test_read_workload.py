"""Workload files: what is read from them, and what is said of bad ones."""

import json
import math
from pathlib import Path

import pytest

from heterps_compile.cost.workload import WorkloadNode
from heterps_compile.errors import InputError
from heterps_compile.problem_file.workload_file import is_workload_file, read_workload

DATA = Path(__file__).parents[3] / "../shared/data/dnn-partitioning"


def node(identity: int, **changes: object) -> dict[str, object]:
    plain = {
        "id": identity,
        "supportedOnFpga": 1,
        "cpuLatency": 30.0,
        "fpgaLatency": 3,
        "isBackwardNode": False,
        "size": 16.0,
        "colorClass": 5,
        "name": "conv",
    }
    return plain | changes


def document(**changes: object) -> dict[str, object]:
    plain = {
        "maxFPGAs": 2,
        "maxCPUs": 1,
        "maxSizePerFPGA": 1024.0,
        "nodes": [node(1), node(7, supportedOnFpga=False, colorClass=None)],
        "edges": [{"sourceId": 1, "destId": 7, "cost": 0.5, "size": 2048}],
    }
    return plain | changes


def written(folder: Path, content: object) -> Path:
    path = folder / "small.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_file_becomes_nodes_edges_and_a_pool(tmp_path):
    workload = read_workload(written(tmp_path, document()))
    assert workload.nodes == (
        WorkloadNode(1, "conv", 3.0, 30.0, 16.0, 0.5, 5, False),
        WorkloadNode(7, "conv", math.inf, 30.0, 16.0, 0.0, None, False),
    )
    assert workload.edges == ((1, 7),)
    assert (workload.name, workload.accelerators, workload.cpus, workload.memory_bytes) == ("small", 2, 1, 1024.0)


def test_size_colour_and_name_may_be_missing(tmp_path):
    bare = {key: value for key, value in node(1).items() if key not in ("size", "colorClass", "name")}
    workload = read_workload(written(tmp_path, document(nodes=[bare], edges=[])))
    assert workload.nodes == (WorkloadNode(1, "node1", 3.0, 30.0),)


def test_the_caller_may_give_another_pool(tmp_path):
    workload = read_workload(written(tmp_path, document()), accelerators=9, cpus=0, memory_bytes=64.0)
    assert (workload.accelerators, workload.cpus, workload.memory_bytes) == (9, 0, 64.0)


@pytest.mark.parametrize(
    ("file", "nodes", "edges", "accelerators", "backward"),
    [
        ("LayerGraphs/bert24_inference", 32, 55, 6, 0),
        ("LayerGraphs/bert24_training", 64, 110, 6, 32),
        ("LayerGraphs/gnmt_inference", 96, 122, 6, 0),
        ("LayerGraphs/resnet50_inference", 177, 193, 6, 0),
        ("OperatorGraphs/bert_l-3_inference", 235, 250, 3, 0),
        ("OperatorGraphs/bert_l-6_inference", 418, 448, 3, 0),
    ],
)
def test_published_workloads_are_read(file, nodes, edges, accelerators, backward):
    path = DATA / f"{file}.json"
    if not path.exists():
        pytest.skip("the published workloads are not here")
    workload = read_workload(path)
    assert (len(workload.nodes), len(workload.edges), workload.accelerators) == (nodes, edges, accelerators)
    assert sum(node.is_backward for node in workload.nodes) == backward
    assert workload.cpus == 1


def test_a_workload_is_told_from_a_model_by_its_first_character(tmp_path):
    assert is_workload_file(written(tmp_path, document()))
    (tmp_path / "model.onnx").write_bytes(b"\x08\x07\x12\x07pytorch")
    assert not is_workload_file(tmp_path / "model.onnx")
    assert not is_workload_file(tmp_path / "missing")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "empty"),
        ("PK\x03", "'PK"),
        ('{"maxFPGAs": 2', r"JSON.*\b1\b.*\b15\b"),
        ('{"nodes": ' + "[" * 100_000, "brackets"),
        ('{"maxFPGAs": 2, "maxFPGAs": 3}', "'maxFPGAs'"),
        (document(maxGPUs=1), "maxGPUs"),
        ({"maxFPGAs": 2}, "maxCPUs"),
        (document(nodes={}), "nodes.*array"),
        (document(nodes=[3]), r"nodes\[0\].*3"),
        (document(nodes=[node(1, gpuLatency=1)]), r"nodes\[0\].gpuLatency"),
        (document(nodes=[node(7)]), r"names.*\b1\b"),
        (document(nodes=[], edges=[]), "'small'.* nodes"),
        (document(nodes=[node(1), node(7), node(1)]), r"nodes.*\b1\b"),
        (document(nodes=[node(True)]), r"nodes\[0\].id.*integer.*True"),
        (document(nodes=[node(1, cpuLatency=math.nan)]), "NaN"),
        (document(nodes=[node(1, fpgaLatency=-3)]), r"fpgaLatency.*\b0\b.*-3"),
        (document(nodes=[node(1, size="1 GB")]), "'1 GB'"),
        (document(nodes=[node(1, size=None)]), "None"),
        (document(nodes=[node(1, supportedOnFpga=2)]), r"supportedOnFpga.*\b1\b.*\b2\b"),
        (document(nodes=[node(1, isBackwardNode="no")]), "isBackwardNode.*'no'"),
        (document(nodes=[node(1, colorClass=1.5)]), "colorClass.*integer.*1.5"),
        (document(nodes=[node(1, name=["x"])]), r"nodes\[0\].name"),
        (document(maxFPGAs=-1), "-1 accelerators"),
        (document(maxFPGAs=0, maxCPUs=0), "accelerator.*CPU"),
        (document(maxSizePerFPGA=math.nan), "NaN"),
        (document(edges=[{"sourceId": 1, "destId": 8, "cost": 0}]), r"\b1\b -> \b8\b.*\b8\b"),
        (document(edges=[{"sourceId": 1, "destId": 7}]), r"edges\[0\].cost"),
        (document(edges=[{"sourceId": 1, "destId": 7, "cost": -1}]), r"edges\[0\].cost.*-1"),
        (document(edges=[{"sourceId": 1, "destId": 1, "cost": 0}]), r"\b1\b -> \b1\b"),
        (
            document(edges=[{"sourceId": a, "destId": b, "cost": 0} for a, b in ((1, 7), (7, 1))]),
            r"\b1\b -> \b7\b -> \b1\b",
        ),
        (
            document(
                nodes=[node(1), node(7), node(8)], edges=[{"sourceId": 1, "destId": d, "cost": d} for d in (7, 8)]
            ),
            r"\b1\b.*7.0.*8.0",
        ),
        (document(nodes=[node(1, isBackwardNode=1), node(7)]), r"\b1\b -> \b7\b.*backward"),
    ],
)
def test_bad_content_is_an_input_error_that_says_where(tmp_path, content, message):
    with pytest.raises(InputError, match=message):
        read_workload(written(tmp_path, content))


def test_files_that_cannot_be_read_are_input_errors(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        read_workload(tmp_path / "missing.json")
    with pytest.raises(InputError, match="directory"):
        read_workload(tmp_path)
    (tmp_path / "binary").write_bytes(b"{\xff\xfe")
    with pytest.raises(InputError, match="UTF-8"):
        read_workload(tmp_path / "binary")


def test_names_in_messages_cannot_reach_the_terminal(tmp_path):
    hostile = document(**{"\x1b[2J": 1})
    with pytest.raises(InputError) as caught:
        read_workload(written(tmp_path, hostile))
    assert "\x1b" not in str(caught.value)
    assert r"\x1b[2J" in str(caught.value)
