"""``heterps-compile tune --engine ray`` for real: workers on several nodes; a trial, a node and the head are killed."""

import json
from contextlib import contextmanager

import pytest
from commands import heterps
from processes import PATIENCE_S, begin_command, end_of, wait_for
from tuned import ROOT, WORDS, check_nothing_ran_twice, kill_trial, told, written

from heterps_compile.plan.source import read_plan
from heterps_compile.tuning.search_state import TOLD

pytestmark = pytest.mark.slow  # Ray's own processes take long to start

STORE_BYTES = 80 * 2**20
POOL = """
description = "a GPU that the table does not fit, and cores"
currency = "USD"
[[device]]
name = "cpu-core"
kind = "cpu"
price = "0.04 USD/h"
price_source = "of this test"
price_date = "2026"
max_units = 8
memory = "8 GiB"
peak = { float32 = "70 GFLOP/s" }
memory_bandwidth = "10 GB/s"
network_bandwidth = "100 Gbit/s"
network_latency = "1 us"
input_bandwidth = "2 GB/s"
launch = "2 us"
efficiency = 0.6
compute_parallel = 0.95
data_parallel = 0.95
[[device]]
name = "small-gpu"
kind = "gpu"
price = "2 USD/h"
price_source = "of this test"
price_date = "2026"
max_units = 8
memory = "32 MiB"
peak = { float32 = "15 TFLOP/s" }
memory_bandwidth = "900 GB/s"
network_bandwidth = "100 Gbit/s"
network_latency = "1 us"
input_bandwidth = "2 GB/s"
launch = "2 us"
efficiency = 0.6
compute_parallel = 0.95
data_parallel = 0.95
"""
MODEL = """
import torch
from torch import nn


class Wide(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.rows = nn.Embedding(200_000, 16)
        first, second = nn.Linear(66, width), nn.Linear(width, width)
        self.dense = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Linear(width, 1))

    def forward(self, ids, numbers):
        return self.dense(torch.cat([self.rows(ids).flatten(1), numbers], 1)).squeeze(1)


def build(config):
    return Wide(config["width"]), (torch.zeros(32, 4, dtype=torch.int64), torch.zeros(32, 2))
"""
SPACE = """
[train]
lr = { float = [1e-3, 3e-1], log = true }
optimizer = "adam"
[model]
width = { choice = [256, 512] }
[plan]
schedule = "1f1b"
"""


@contextmanager
def cluster_of(monkeypatch, *nodes):
    """Start nodes with these resources, each with the cores it names."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    cluster = pytest.importorskip("ray.cluster_utils").Cluster()
    try:
        for index, resources in enumerate(nodes):
            given = {"include_dashboard": False} if index == 0 else {}
            cluster.add_node(num_cpus=1, resources=resources, object_store_memory=STORE_BYTES, **given)
        yield cluster
    finally:
        for node in reversed(cluster.list_all_nodes()):
            cluster.remove_node(node, allow_graceful=False)


def test_a_trial_is_a_pipeline_over_nodes_of_two_types(tmp_path, monkeypatch):
    """No node has both types, and the table does not fit the GPU: its rank runs on one node, the other on another."""
    folder = written(tmp_path)
    for name, text in {"pool.toml": POOL, "model.py": MODEL, "space.toml": SPACE}.items():
        (folder / name).write_text(text)
    words = ("--trials", "2", "--method", "random", "--retries", "3", "--validate-every", "2", "--pool", "pool.toml")
    with cluster_of(monkeypatch, {"heterps_cpu-core": 1}, {"heterps_small-gpu": 1}) as cluster:
        where = ("--engine", "ray", "--address", cluster.address, "--workers", "pair=1x1:cpu-core+1:small-gpu")
        code, out, err = end_of(begin_command(folder, *WORDS, *words, *where), PATIENCE_S)
    assert code == 0, err + out + (folder / "run" / "ray.txt").read_text()
    assert "no node has what one of these workers takes, so that a trial of theirs runs on several: pair-0\n" in err
    state = check_nothing_ran_twice(folder)
    assert state.count(TOLD) == 2
    for trial in state.trials:
        job = json.loads((folder / "run" / "trials" / str(trial.number) / "attempt-0" / "job.json").read_text())
        assert [stage.device for stage in read_plan(job["plan"]).stages] == ["cpu-core", "small-gpu"]
        assert len(trial.curve) == (trial.fidelity - before_of(state, trial)) / 2
    assert f"weights of trial {state.best.number} written to " in err


def before_of(state, trial):
    """Return how far the trial had trained that one goes on from."""
    return 0 if trial.continues is None else state.trials[trial.continues].fidelity


def test_the_head_of_a_cluster_dies_and_nothing_that_ended_is_lost(tmp_path, monkeypatch):
    folder = written(tmp_path)
    with cluster_of(monkeypatch, {"heterps_core": 1}) as cluster:
        address = cluster.address
        where = ("--engine", "ray", "--address", address, "--workers", "core=1x1")
        process = begin_command(folder, *WORDS, "--trials", "500", *where)
        wait_for(lambda: bool(told(folder)), process)
        cluster.head_node.kill_gcs_server(check_alive=False)
        code, out, err = end_of(process, PATIENCE_S)
    assert code == 1, err + out
    last = err.splitlines()[-1]
    assert last.startswith(f"Error: the head of the Ray cluster at {address} has not answered for ")
    assert last.endswith(
        ", and the trials there are lost; no trial that ended is: go on with --resume, on another cluster (--address "
        "HOST:PORT) or on this machine (--engine local)"
    )
    assert "Traceback" not in err
    before = told(folder)
    trials = max(7, len(before) + 2)  # the seventh is the first of the longest
    resumed = heterps("tune", "-o", "run", "--resume", "--engine", "local", "--trials", str(trials), cwd=folder)
    assert resumed.returncode == 0, resumed.stderr
    check_nothing_ran_twice(folder)
    assert told(folder)[: len(before)] == before


def test_a_node_that_is_lost_takes_no_result_along(tmp_path, monkeypatch):
    folder = written(tmp_path)
    with cluster_of(monkeypatch, {}, {"heterps_core": 1}, {"heterps_core": 1}) as cluster:
        lost = sorted(cluster.list_all_nodes(), key=lambda node: node.node_id)[-1]
        lost = next(node for node in (lost, *cluster.list_all_nodes()) if node is not cluster.head_node)
        where = ("--engine", "ray", "--address", cluster.address, "--workers", "core=1x1", "--retries", "3")
        process = begin_command(folder, *WORDS, "--trials", "4", "--method", "random", *where)
        wait_for(lambda: bool(told(folder)), process)
        cluster.remove_node(lost, allow_graceful=False)
        code, out, err = end_of(process, PATIENCE_S)
    assert code == 0, err + out
    assert check_nothing_ran_twice(folder).count(TOLD) == 4


def test_a_search_on_ray_survives_its_workers(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # a cluster that nobody named is not joined
    words = ("--trials", "3", "--method", "random", "--engine", "ray", "--workers", "core=1x1", "--retries", "3")
    process = begin_command(written(tmp_path), *WORDS, *words)
    kill_trial(tmp_path, 1, process)
    code, out, err = end_of(process, PATIENCE_S)
    assert code == 0, err + out
    state = check_nothing_ran_twice(tmp_path)
    assert state.count(TOLD) == 3
    assert "trial 1 failed on core-0, it is started again: its process was killed by signal 9" in err
