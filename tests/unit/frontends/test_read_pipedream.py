"""PipeDream's profile text: what a node becomes in inference and in training, and what is said of bad lines."""

import math
from pathlib import Path

import pytest

from heterps_compile.cluster.load import load_cluster
from heterps_compile.cost.workload import WorkloadNode
from heterps_compile.errors import HeterpsError, InputError, UnknownNameError
from heterps_compile.problem_file.pipedream_problem import read_pipedream
from heterps_compile.problem_file.workload_file import is_workload_file, read_workload

DATA = Path(__file__).parents[3] / "../shared/data/pipedream"

TEXT = """\
node1 -- ReLU -- forward_compute_time=0.000, backward_compute_time=0.000, activation_size=0.0, parameter_size=0.000
node2 -- LSTM(4 -- 8) -- forward_compute_time=3.0, backward_compute_time=5.0, \
activation_size=[6000.0; 2000.0], parameter_size=1e3
\tnode1 -- node2
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "tiny.graph.txt"
    path.write_text(text)
    return path


def test_inference_takes_the_forward_time_and_moves_activations_once(tmp_path):
    path = written(tmp_path, TEXT)
    workload = read_workload(path, accelerators=2, mode="inference", bandwidth_bytes_per_s=8e6)
    assert workload.nodes[1] == WorkloadNode(2, "LSTM(4 -- 8)", 3.0, math.inf, 9000.0, 1.0)
    assert (workload.name, workload.edges, workload.accelerators, workload.cpus) == ("tiny", ((1, 2),), 2, 0)


def test_training_adds_the_backward_time_and_the_gradients_that_come_back(tmp_path):
    workload = read_workload(written(tmp_path, TEXT), accelerators=2, bandwidth_bytes_per_s=8e6)
    assert workload.nodes[1] == WorkloadNode(2, "LSTM(4 -- 8)", 8.0, math.inf, 18000.0, 2.0)


def test_several_nodes_without_an_edge_are_a_file_that_was_cut_off_and_one_node_is_none(tmp_path):
    first, second, _ = TEXT.splitlines(keepends=True)
    with pytest.raises(InputError, match=r"\b2\b"):
        read_workload(written(tmp_path, first + second), accelerators=2)
    assert len(read_workload(written(tmp_path, second), accelerators=2).nodes) == 1


def test_parts_that_no_edge_joins_are_told(tmp_path):
    first, second, edge = TEXT.splitlines(keepends=True)
    path = written(tmp_path, first + second + second.replace("node2", "node3", 1) + edge)
    told = "2 parts that no edge joins (was the file cut off?)"
    assert read_workload(path, accelerators=2).assumptions[0] == told
    assert read_pipedream(path, load_cluster("heterps-paper")).assumptions[0] == told


def test_data_loading_and_unread_outputs_are_no_layers_and_are_named(tmp_path):
    loading = TEXT.splitlines()[1].replace("node2 -- LSTM(4 -- 8)", "node7 -- Input") + "\n"
    unread = "".join(loading.replace("node7 -- Input", f"node{i} -- __getitem__({i})") for i in range(10, 15))
    edges = "\tnode7 -- node1\n" + "".join(f"\tnode2 -- node{i}\n" for i in range(10, 15))
    path = written(tmp_path, loading + TEXT.replace("\tnode1", unread + "\tnode1") + edges)
    for read in (read_workload(path, accelerators=2), read_pipedream(path, load_cluster("heterps-paper"))):
        first, second = read.assumptions[:2]
        assert "node7 (8 ms)" in first
        assert "node10, node11, node12, 2 more (40 ms)" in second
    alone = read_workload(written(tmp_path, TEXT), accelerators=2)
    assert (read_workload(path, accelerators=2).nodes, alone.edges) == (alone.nodes, ((1, 2),))


def test_what_the_file_does_not_say_is_listed(tmp_path):
    workload = read_workload(written(tmp_path, TEXT), accelerators=2)
    assert workload.assumptions == (
        "transfers at 12 GB/s",
        "read as training",
        "no times on CPUs",
        "16 GiB of memory per accelerator",
    )


@pytest.mark.parametrize(("file", "nodes", "edges"), [("vgg16", 40, 40), ("resnet50", 176, 192), ("gnmt", 37, 46)])
def test_published_profiles_are_read(file, nodes, edges):
    path = DATA / f"{file}.graph.txt"
    if not path.exists():
        pytest.skip("the published profiles are not here")
    assert is_workload_file(path)
    workload = read_workload(path, accelerators=4)
    assert (workload.name, len(workload.nodes), len(workload.edges)) == (file, nodes, edges)
    assert all(node.accelerator_ms < math.inf for node in workload.nodes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("node1 -- a -- forward_compute_time=1.0\n", r"line 1\b.*nodeN"),
        ("node1\n", r"line 1\b.*nodeN"),
        (TEXT.replace("node2 -- LSTM", "nodeX -- LSTM"), r"line 2\b.*'nodeX'"),
        (TEXT.replace("node2 -- LSTM", "node1 -- LSTM"), r"line 2\b.*\bnode1\b"),
        (TEXT.replace("=3.0", "=nan"), r"line 2\b.*nan"),
        (TEXT.replace("=3.0", "=-3.0"), r"line 2\b.*-3.0.*\b0\b"),
        (TEXT.replace("=3.0", "=3.0.0"), r"line 2\b.*'3.0.0'"),
        (TEXT.replace("6000.0;", "many;"), r"line 2\b.*'many'"),
        (TEXT.replace("\tnode1 -- node2", "\tnode1 node2"), r"line 3\b"),
        (TEXT.replace("\tnode1 -- node2", "\tnode1 -- node9"), r"\b9\b"),
        (TEXT + "\tnode2 -- node1\n", "cycle"),
        (TEXT.replace("ReLU", "Input").replace("LSTM", "Input") + "\tnode2 -- node1\n", "cycle"),
    ],
)
def test_bad_lines_are_input_errors_that_say_where(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        read_workload(written(tmp_path, text), accelerators=2)


def test_the_number_of_accelerators_is_the_callers(tmp_path):
    with pytest.raises(InputError):
        read_workload(written(tmp_path, TEXT))


def test_options_are_checked(tmp_path):
    path = written(tmp_path, TEXT)
    with pytest.raises(InputError, match=r"bandwidth.*\b0\b"):
        read_workload(path, accelerators=2, bandwidth_bytes_per_s=0)
    with pytest.raises(UnknownNameError, match="'training'"):
        read_workload(path, accelerators=2, mode="trainig")
    with pytest.raises(HeterpsError, match="-2"):
        read_workload(path, accelerators=-2)
