"""Problem files are planned for every objective, and PipeDream's graphs with replicas."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from wording import names

from heterps_compile.cli.main import command
from heterps_compile.errors import InfeasibleError
from heterps_compile.problem_file.read_problem import FORMAT

TIMES = {"samples": [1, 8], "forward_s": [0.001, 0.004]}
POOL = {
    "device": [
        {"name": "fast", "kind": "gpu", "price": "4 USD/h", "price_source": "made up", "price_date": "2026",
         "network_bandwidth": "10 GB/s", "max_units": 4, "memory": "1 GiB"},
        {"name": "slow", "kind": "gpu", "price": "1 USD/h", "price_source": "made up", "price_date": "2026",
         "network_bandwidth": "1 GB/s", "max_units": 8, "memory": "1 GiB"},
    ]
}  # fmt: skip


def problem(tmp_path: Path, **changes: Any) -> str:
    twice = {"samples": [1, 8], "forward_s": [0.002, 0.008]}
    layers = [
        {"name": name, "parameter_bytes": 1e6, "times": [{"device": "fast", **TIMES}, {"device": "slow", **twice}]}
        for name in "abcd"
    ]
    document = {
        "format": FORMAT,
        "version": 1,
        "name": "four",
        "layers": layers,
        "edges": [{"from": a, "to": [b], "bytes_per_sample": 100} for a, b in ("ab", "bc", "cd")],
        "pool": POOL,
        "batch": 16,
        **changes,
    }
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(document))
    return str(path)


def run(*words: str) -> Result:
    return CliRunner().invoke(command, list(words))


@pytest.mark.parametrize(
    ("options", "value"),
    [
        # a sample of 16 takes 4 * (4 + 8 * 3/7) ms = 29.71 ms on fast, at 4 USD/h, twice that on slow, at 1 USD/h
        (["--objective", "cost"], 2 * 0.0297142857 / 3600 / 16 * 1e6),
        (["--objective", "price", "--min-throughput", "200"], 1.0),
        (["--objective", "throughput", "--budget", "4 USD/h"], 0.0297142857 / 2),
        (["--objective", "latency"], 0.0297142857),
    ],
)
def test_every_objective_is_planned_and_proven(tmp_path: Path, options: list[str], value: float) -> None:
    result = run(problem(tmp_path), "--method", "exact", "--json", *options)
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["objective"]["value"] == pytest.approx(value, rel=1e-2)
    assert document["bound"] == pytest.approx(document["objective"]["value"])
    assert document["prediction"]["step_s"] > 0


@pytest.mark.parametrize("reading", ["steady-state", "one-batch-alone"])
@pytest.mark.parametrize("options", [["--objective", "cost"], ["--objective", "price", "--min-throughput", "400"]])
def test_what_has_no_price_costs_nothing_and_that_is_told(tmp_path: Path, options: list[str], reading: str) -> None:
    free, dear = ({name: value for name, value in each.items() if "price" not in name} for each in POOL["device"])
    trained = {**TIMES, "backward_s": TIMES["forward_s"]}
    layers = [{"name": "a", "times": [{"device": name, **trained} for name in ("fast", "slow")]}]
    asked = ["--reading", reading, "--method", "exact", *options]
    path = problem(tmp_path, layers=layers, edges=[], pool={"device": [free, dear]})
    found = json.loads(run(path, *asked, "--json").stdout)
    assert (found["objective"]["value"], found["bound"], found["gap"]) == (0, 0, 0)
    assert any(note.startswith("the pool has no price of '") for note in found["notes"])
    shown = run(path, *asked).output
    assert "e-" not in shown.partition("method")[0]
    assert "nothing is cheaper" in shown
    paid = problem(tmp_path, layers=layers, edges=[])
    found = json.loads(run(paid, *asked, "--json").stdout)
    assert found["objective"]["value"] > 0.001
    assert not any("no price" in note for note in found["notes"])


def test_a_layer_that_replicas_do_not_divide_gets_none(tmp_path: Path) -> None:
    def planned(last: dict[str, Any], pool: dict[str, Any] = POOL) -> tuple[float, list[int]]:
        layers = [
            {"name": name, "times": [{"device": "fast", "samples": [1, 8], "forward_s": [0.01, 0.08], **more}]}
            for name, more in (("a", {}), ("b", last))
        ]
        edges = [{"from": "a", "to": ["b"], "bytes_per_sample": 1}]
        found = run(problem(tmp_path, layers=layers, edges=edges, pool=pool), "--objective", "throughput", "--json")
        document = json.loads(found.stdout)
        replicas = [stage["replicas"][0]["count"] for stage in document["plan"]["stages"]]
        return document["objective"]["value"], replicas

    assert planned({}) == (pytest.approx(0.32 / 4, rel=1e-6), [4])
    # b takes 0.16 s with however many replicas: one of its own, and a on one or more
    value, replicas = planned({"compute_parallel": 0.0})
    assert value == pytest.approx(0.16, rel=1e-6)
    assert replicas[-1] == 1
    halves = {"device": [{**each, "compute_parallel": 0.5} for each in POOL["device"]]}
    # a of the type: 0.16 s (0.5 + 0.5 / 2) with two; b of its own: 0.08 s
    assert planned({"compute_parallel": 1.0}, halves) == (pytest.approx(0.12, rel=1e-6), [2, 2])


def test_a_plan_that_was_found_is_one_that_predict_reads(tmp_path: Path) -> None:
    path, out = problem(tmp_path, request={"objective": "throughput"}), str(tmp_path / "out")
    found = json.loads(run(path, "--method", "exact", "--json", "-o", out).stdout)
    again = json.loads(run("predict", path, "--plan", f"{out}/plan.json", "--json").stdout)
    assert again == found["prediction"]
    shown = run(path, "--method", "exact").output
    assert "of plans that keep the layers in this order" in shown
    assert "one batch alone" in shown


def test_what_means_nothing_is_refused(tmp_path: Path) -> None:
    assert run(problem(tmp_path), "--batch", "3").exit_code == 2
    assert run(problem(tmp_path), "--cpus", "3").exit_code == 2
    trained = [{"name": "a", "times": [{"device": "fast", **TIMES, "backward_s": TIMES["forward_s"]}]}]
    for asked, word in (
        ({"pins": [["a", "slow"]]}, "--pin"),
        ({"optimizer": "sgd"}, "--optimizer"),
        ({"tables": "served"}, "--tables"),
    ):
        for batch_of in ("step", "replica"):
            request = {"objective": "throughput", **asked}
            refused = run(problem(tmp_path, layers=trained, edges=[], batch_of=batch_of, request=request))
            assert f"{word} means nothing for given costs" in str(refused.exception)
    idle = [{"name": "a", "times": [{"device": "fast", "samples": [1], "forward_s": [0]}]}]
    nothing = "its layers take no time on 'fast', so there is nothing to plan"
    assert nothing in str(run(problem(tmp_path, layers=idle, edges=[])).exception)
    of_replicas = problem(tmp_path, layers=idle, edges=[], batch_of="replica")
    assert nothing in str(run(of_replicas, "--objective", "throughput").exception)
    replica = run(problem(tmp_path, batch_of="replica"))
    assert replica.exit_code == 1
    mixed = run(problem(tmp_path, batch_of="replica"), "--objective", "throughput")
    assert mixed.exit_code == 1


def test_a_graph_is_planned_with_replicas_at_the_rate_of_the_pool(tmp_path: Path) -> None:
    times = "forward_compute_time=10.0, backward_compute_time=20.0, activation_size={}, parameter_size={}"
    graph = tmp_path / "two.graph.txt"
    graph.write_text(
        f"node1 -- Conv -- {times.format(1e6, 1e3)}\nnode2 -- Linear -- {times.format(1e3, 5e8)}\n\tnode1 -- node2\n"
    )
    pool = tmp_path / "pool.toml"
    rates = ("1 GB/s", [1, 1]), ("1000 GB/s", [4])
    for rate, widths in rates:
        pool.write_text(
            f'[[device]]\nname = "gpu"\nkind = "gpu"\nprice = "free"\nprice_source = "mine"\nmax_units = 4\n'
            f'memory = "64 GiB"\npeak = {{ float32 = "1 TFLOP/s" }}\nmemory_bandwidth = "1 TB/s"\n'
            f'network_bandwidth = "{rate}"\nnetwork_latency = "1 us"\ninput_bandwidth = "1 GB/s"\nlaunch = "1 us"\n'
            f"efficiency = 1.0\ncompute_parallel = 1.0\ndata_parallel = 1.0\n"
        )
        result = run(str(graph), "--cluster", str(pool), "--objective", "throughput", "--json")
        assert result.exit_code == 0, result.output
        document = json.loads(result.stdout)
        found = [stage["replicas"][0]["count"] for stage in document["plan"]["stages"]]
        assert found == widths
        assert document["prediction"]["step_s"] == pytest.approx(document["objective"]["value"], rel=1e-6)


def test_replicas_of_a_stage_on_several_types_reach_a_floor_that_none_reaches_alone(tmp_path: Path) -> None:
    """16 samples take 29.7 ms on fast and twice that on slow: 2 and 4 of them 7.4 ms together, where they are one."""
    pool = {"device": [{**each, "max_units": most} for each, most in zip(POOL["device"], (2, 4), strict=True)]}
    path = problem(tmp_path, pool=pool, request={"objective": "price", "min_throughput": 1900, "max_stages": 1})
    plain = run(path, "--json")
    assert isinstance(plain.exception, InfeasibleError)
    found = run(path, "--json", "--mixed-stages", "-o", str(tmp_path / "out"))
    assert found.exit_code == 0, found.exception
    document = json.loads(found.stdout)
    [stage] = document["plan"]["stages"]
    assert stage["feed"] == "speed"
    assert {each["device"] for each in stage["replicas"]} == {"fast", "slow"}
    assert 0 < document["bound"] <= document["objective"]["value"]
    assert document["bound_holds_for"].endswith("with one device type or several in a stage, in the steady state")
    assert "no plan was found whose stages have one type each" in document["notes"][0]
    again = json.loads(run("predict", path, "--plan", f"{tmp_path}/out/plan.json", "--json").stdout)
    assert again == document["prediction"]
    hopeless = run(path, "--mixed-stages", "--min-throughput", "1e6")
    assert str(hopeless.exception).endswith("stages of several device types do not help")


def test_mixed_stages_are_of_objectives_they_help_and_of_batches_of_a_step(tmp_path: Path) -> None:
    latency = run(problem(tmp_path), "--mixed-stages", "--objective", "latency")
    assert "do not help the objective 'latency'" in str(latency.exception)
    replica = run(problem(tmp_path, batch_of="replica"), "--objective", "throughput", "--mixed-stages")
    assert "--mixed-stages is not looked at" in str(replica.exception)


def trained(tmp_path: Path, **changes: Any) -> str:
    """Write a problem of training of four layers that keep 0.1 GiB of a sample each, on units of 1 GiB."""
    times = {"device": "fast", "samples": [1], "forward_s": [0.001], "backward_s": [0.002]}
    kept = 0.1 * 2**30
    layers = [{"name": name, "activation_bytes_per_sample": kept, "times": [times]} for name in "abcd"]
    return problem(tmp_path, layers=layers, request={"objective": "throughput", "mode": "training"}, **changes)


def test_a_micro_batch_is_one_that_fits(tmp_path: Path) -> None:
    document = json.loads(run(trained(tmp_path), "--json", "--max-stages", "1").stdout)
    assert document["plan"]["micro_batch"] == 2  # of 16 samples: 0.8 GiB on a unit that has 1
    narrow = {"device": [{**POOL["device"][0], "memory": "0.3 GiB"}]}
    fault = str(run(trained(tmp_path, pool=narrow), "--json", "--max-stages", "1").exception)
    assert "memory asks for at least 2 stages" in fault  # 0.4 GiB of one sample
    tight = {"device": [{**POOL["device"][0], "memory": "0.25 GiB", "max_units": 2}]}
    fault = str(run(trained(tmp_path, pool=tight), "--json", "--max-stages", "2").exception)
    assert names(fault, "429,496,730 B", "'fast'", "256 MiB")  # two of 0.2 GiB are under way
    roomy = {"device": [{**tight["device"][0], "memory": "429496730 B"}]}
    assert run(trained(tmp_path, pool=roomy), "--json", "--max-stages", "2").exit_code == 0


def test_of_plans_of_one_stage_and_of_several_the_one_of_the_shortest_step_is_taken(tmp_path: Path) -> None:
    """Two stages of 1 and 3 units are as fast in the steady state as one of 4, and fill and drain take longer."""
    path = trained(tmp_path, edges=[{"from": a, "to": [b], "bytes_per_sample": 1e6} for a, b in ("ab", "bc", "cd")])
    found = json.loads(run(path, "--json").stdout)
    for stages in ("1", "2"):
        alone = json.loads(run(path, "--json", "--min-stages", stages, "--max-stages", stages).stdout)
        assert found["prediction"]["step_s"] <= alone["prediction"]["step_s"] * (1 + 1e-9)
