"""The job group, read as YAML and held to the part of SkyPilot's task schema (0.14.1) it uses; its script is run."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from engine_jobs import HOSTILE, make_job

from heterps_compile.errors import InputError, RunError
from heterps_compile.runtime.engines.contract import RentedAs
from heterps_compile.runtime.engines.device_parts import Part
from heterps_compile.runtime.engines.skypilot import SkyPilot
from heterps_compile.runtime.launch.hosts_file import check_hosts, read_hosts

OFFERS = (("cpu", "cpus=8+"), ("v100", "accelerators=V100:1"), ("v100", "use_spot=true"), ("v100", "disk_size=100"))
TEXT = {"type": "string"}
TASK = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "name": TEXT,
        "num_nodes": {"type": "integer"},
        "resources": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "cpus": {"anyOf": [TEXT, {"type": "number"}]},
                "accelerators": TEXT,
                "infra": TEXT,
                "instance_type": TEXT,
                "use_spot": {"type": "boolean"},
                "disk_size": {"anyOf": [TEXT, {"type": "integer"}]},
            },
        },
        "volumes": {"type": "object"},
        "envs": {"type": "object", "additionalProperties": TEXT},
        "secrets": {"type": "object", "additionalProperties": {"type": "null"}},
        "setup": TEXT,
        "run": TEXT,
    },
}


def group(job: Any, **options: Any) -> list[dict[str, Any]]:
    """Return the tasks of the group, each checked."""
    (written,) = SkyPilot(**({"offers": OFFERS} | options)).write(job)
    assert written.title == ""
    header, *tasks = yaml.safe_load_all(written.text)
    assert header == {"name": "heterps", "execution": "parallel"}
    for task in tasks:
        jsonschema.validate(task, TASK)
    return tasks


def test_a_task_for_every_device_type_on_its_offer():
    first, second = group(make_job(), claim="data", setup="pip install 'heterps-compile[torch]'", slots=(("cpu", "2"),))
    assert [first["num_nodes"], second["num_nodes"]] == [1, 1]
    assert first["resources"] == {"cpus": "8+"}
    assert second["resources"] == {"accelerators": "V100:1", "use_spot": True, "disk_size": 100}
    assert first["volumes"] == {"/shared": "data"}
    assert second["envs"]["FIRST"] == "t0-0.heterps"
    assert group(make_job())[0]["num_nodes"] == 2


P3 = RentedAs("aws", "us-east-1", "p3.8xlarge", is_spot=True, units=4)


def test_a_type_that_nothing_is_said_of_has_the_machine_that_was_chosen_for_it():
    job = replace(make_job(replicas=(2, 4)), rented={"v100": P3})
    cpus, gpus = group(job, offers=OFFERS[:1])
    assert [cpus["num_nodes"], gpus["num_nodes"]] == [2, 1]  # four replicas on the four units of one machine
    assert gpus["resources"] == {"infra": "aws/us-east-1", "instance_type": "p3.8xlarge", "use_spot": True}
    said = group(job)[1]
    assert (said["num_nodes"], said["resources"]["accelerators"]) == (4, "V100:1")  # what is said goes before


@pytest.mark.parametrize(("task", "node", "host"), [(0, 0, "1"), (0, 1, "2"), (1, 0, "3")])
def test_what_a_node_runs_makes_its_file_of_hosts_and_knows_its_number(task, node, host, tmp_path):
    job = make_job(directory=f"/data/{HOSTILE}\x85 😀 $(id)")
    found = group(job)[task]
    (tmp_path / "python3").write_text(
        f'#!/bin/sh\n[ "$1" = -c ] && exec {sys.executable} "$@"\nprintf \'%s|\' "$@" "${{HETERPS_SECRET-none}}"\n'
    )
    (tmp_path / "python3").chmod(0o700)
    (tmp_path / "mktemp").write_text(f"#!/bin/sh\nmkdir {tmp_path}/own && echo {tmp_path}/own\n")
    (tmp_path / "mktemp").chmod(0o700)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SKYPILOT_NODE_RANK": str(node), "FIRST": "localhost"}
    environment |= {"HETERPS_SECRET": "0123456789" * 4}
    done = subprocess.run(["bash", "-c", found["run"]], env=environment, capture_output=True, text=True, check=True)
    own = tmp_path / "own" / "hosts.toml"
    end = f"--data|random|--hosts|{own}|--host|{host}|none|"
    assert done.stdout == f"-m|heterps_compile|run|{job.options.directory}|{end}"
    check_hosts(read_hosts(own), job.prepared)
    assert not Path("/tmp/owned").exists()  # noqa: S108 - what the name would make a shell do


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"offers": OFFERS[:1]}, r"'v100'.*ranks 2\b.*--offer"),
        ({"offers": (*OFFERS, ("cpu", "run=rm"))}, "'run=rm'"),
        ({"offers": (*OFFERS, ("cpu", "use_spot=maybe"))}, "use_spot='maybe'"),
        ({"slots": (("cpu", "0"),)}, "--slots cpu='0'"),
        ({"run_name": "Up"}, "--run-name 'Up'.*SkyPilot"),
    ],
)
def test_what_skypilot_would_not_take_is_refused(options, said):
    with pytest.raises(InputError, match=said):
        SkyPilot(**({"offers": OFFERS} | options)).check(make_job())


def test_other_ways_to_name_machines_are_refused():
    with pytest.raises(InputError, match=r"--hosts.*--on"):
        SkyPilot(offers=OFFERS).check(make_job(hosts="h.toml"))


def test_a_node_has_ranks_that_are_neighbours():
    """Servers come after the stages; two of them fit one node."""
    servers = (*OFFERS, ("parameter-server", "cpus=4"))
    assert len(group(make_job(servers=2), offers=servers, slots=(("parameter-server", "2"),))) == 3
    parts = SkyPilot(offers=OFFERS)

    with pytest.raises(RunError, match=r"'cpu'.*ranks 0\b.*\b2\b"):
        parts._nodes([Part("cpu", "cpu", (0, 2)), Part("gpu", "gpu", (1,))], {"cpu": 2, "gpu": 1})
