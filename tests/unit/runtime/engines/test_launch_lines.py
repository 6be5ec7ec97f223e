"""The printed text: as a whole for a plan of two device types, and read back with hostile names in it."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace

import pytest
import yaml
from click.testing import CliRunner
from engine_jobs import HOSTILE, make_job

from heterps_compile.cli.main import command
from heterps_compile.errors import InputError, RunError
from heterps_compile.runtime.engines.job import RentedAs
from heterps_compile.runtime.engines.launch_lines import LINES, LineOptions
from heterps_compile.runtime.engines.launch_options import KUBEFLOW, LAUNCH, RAY, SKYPILOT, SLURM, STARTERS, TORCHRUN

NAMES = {
    TORCHRUN: (),
    SLURM: (("cpu", "partition=batch"), ("v100", "partition=gpu"), ("v100", "time=1:00:00")),
    SKYPILOT: (("cpu", "cpus=8+"), ("v100", "accelerators=V100:1"), ("v100", "use_spot=true")),
    KUBEFLOW: (("cpu", "pool=cores"), ("v100", "pool=v100")),
}
P3 = RentedAs("aws", "us-east-1", "p3.8xlarge", is_spot=True, units=4)
TRAINING = {"train": "/data/train.py", "data": "/data/x.parquet", "checkpoint": "/data/ck", "every": 100}


def lines(on: str, job=None, **options) -> str:
    values = {"resources": NAMES[on], "image": "registry/heterps:1"} | options
    return LINES[on](make_job() if job is None else job, LineOptions(**values))


def documents(text: str) -> list[dict]:
    return list(yaml.safe_load_all(text))


@pytest.mark.parametrize("on", LINES)
def test_the_text_of_a_plan_of_two_device_types(on, golden):
    options = {"slots": {"cpu": 2}, "max_restarts": 2, "claim": "data"}
    golden(f"launch/{on}.txt", lines(on, make_job(replicas=(2, 2), threads=2, **TRAINING), **options))


def commands(on: str, text: str) -> Iterator[list[str]]:
    """Yield the words of every command in a text, as a shell or Kubernetes reads them."""
    if on == KUBEFLOW:
        for replica in documents(text)[0]["spec"]["pytorchReplicaSpecs"].values():
            (container,) = replica["template"]["spec"]["containers"]
            yield [word.replace("$$", "$") for word in container["command"]]
    elif on == SKYPILOT:
        yield from (shlex.split(task["run"]) for task in documents(text) if "run" in task)
    else:
        words = shlex.split(text, comments=True)
        starts = [at for at, word in enumerate(words) if word in ("torchrun", "srun", ":")]
        yield from (words[at + 1 : end] for at, end in zip(starts, [*starts[1:], len(words)], strict=True))


@pytest.mark.parametrize("on", LINES)
def test_a_hostile_folder_arrives_as_it_is(on):
    folder = f"/data/{HOSTILE}\x85 😀 $(id) $$"
    found = list(commands(on, lines(on, make_job(directory=folder))))
    assert [words[words.index("run") + 1] for words in found] == [folder] * 2
    assert sorted(words[words.index("--device-type") + 1] for words in found) == ["cpu", "v100"]


def test_a_comment_ends_with_its_line():
    """A device type is text of a plan file."""
    stages = make_job().prepared.plan.stages
    plan = replace(make_job().prepared.plan, stages=(replace(stages[0], device="a\nrm -r /"), *stages[1:]))
    job = make_job()
    job = replace(job, prepared=replace(job.prepared, plan=plan))
    for on in (TORCHRUN, SLURM):
        text = lines(on, job, resources=(("a\nrm -r /", "qos=x"), ("v100", "qos=x")) if on == SLURM else ())
        assert not re.search(r"^rm", re.sub(r"'[^']*'", "", text), re.MULTILINE)
        words = next(commands(on, text))
        assert words[words.index("--device-type") + 1] == "a\nrm -r /"


def test_hosts_have_as_many_processes_as_an_option_a_chosen_machine_or_the_pool_says():
    job = make_job(replicas=(2, 6))
    assert "# v100: 6 hosts, 1 process each\n" in lines(TORCHRUN, job)
    text = lines(TORCHRUN, replace(job, rented={"v100": P3}))
    assert "# v100: 1 host, 4 processes\n" in text
    assert "# v100: 1 host, 2 processes\n" in text
    assert text.count("torchrun --nnodes 4 ") == 3
    assert "# v100: 3 hosts, 2 processes each\n" in lines(
        TORCHRUN, replace(job, rented={"v100": P3}), slots={"v100": 2}
    )


def test_one_host_meets_itself_and_a_server_is_a_device_type():
    text = lines(TORCHRUN, make_job(replicas=(2, 1)), slots={"cpu": 2})
    assert "MASTER_ADDR" in text
    plan = make_job().prepared.plan
    alone = replace(make_job(servers=2), prepared=replace(make_job(servers=2).prepared, plan=plan))
    assert "--device-type parameter-server\n" in lines(TORCHRUN, alone)
    places = make_job(replicas=(3, 1)).prepared.places[:3]
    one = replace(make_job(), prepared=replace(make_job().prepared, places=places))
    text = lines(TORCHRUN, one, slots={"cpu": 3})
    assert "torchrun --nnodes 1 --nproc-per-node 3 --master-addr 127.0.0.1 --master-port 29500 --no-python" in text


def test_chosen_machines_name_hosts_where_no_option_does():
    job = replace(make_job(replicas=(2, 4)), rented={"v100": P3})
    header, cpus, gpus = documents(lines(SKYPILOT, job, resources=NAMES[SKYPILOT][:1]))
    assert header == {"name": "heterps", "execution": "parallel"}
    assert [cpus["num_nodes"], gpus["num_nodes"]] == [2, 1]
    assert gpus["resources"] == {"infra": "aws/us-east-1", "instance_type": "p3.8xlarge", "use_spot": True}
    said = documents(lines(SKYPILOT, job))[2]
    assert said["resources"] == {"accelerators": "V100:1", "use_spot": True}
    (found,) = documents(lines(KUBEFLOW, job, resources=NAMES[KUBEFLOW][:1]))
    master, workers = (found["spec"]["pytorchReplicaSpecs"][name] for name in ("Master", "Worker"))
    assert master["template"]["spec"]["nodeSelector"]["node.kubernetes.io/instance-type"] == "p3.8xlarge"
    assert (master["replicas"], workers["replicas"]) == (1, 2)


@pytest.mark.parametrize(
    ("on", "options", "said"),
    [
        (SLURM, {"resources": NAMES[SLURM][:1]}, r"'v100' \(ranks 2\).*--resource v100=partition="),
        (SLURM, {"resources": (("cpu", "wrap=a b"),)}, "'wrap=a b'"),
        (SLURM, {"slots": {"tpu": 2}}, "--slots names 'tpu'"),
        (SKYPILOT, {"resources": ()}, r"'cpu'.*--resource"),
        (SKYPILOT, {"resources": (("cpu", "run=rm"),)}, "'run=rm'"),
        (SKYPILOT, {"resources": (*NAMES[SKYPILOT], ("cpu", "use_spot=maybe"))}, "use_spot is 'maybe'"),
        (KUBEFLOW, {"resources": (("cpu", "no label"),)}, "'no label'"),
        (KUBEFLOW, {"image": None}, "--image NAME"),
    ],
)
def test_text_that_its_reader_would_refuse_is_refused_here(on, options, said):
    with pytest.raises(InputError, match=said):
        lines(on, **options)


def test_kinds_of_hosts_that_are_no_master_and_workers_are_named():
    with pytest.raises(InputError, match=r"cpu: 2 hosts.*; v100: 2 hosts.*--slots"):
        lines(KUBEFLOW, make_job(replicas=(2, 2)))


def test_restarts_continue_from_checkpoints_or_are_refused(tmp_path):
    assert "--max-restarts 3 " in lines(TORCHRUN, make_job(**TRAINING), max_restarts=3)
    assert " --resume " in lines(TORCHRUN, make_job(**TRAINING), max_restarts=3)
    with pytest.raises(RunError, match="--checkpoint"):
        lines(TORCHRUN, make_job(train="t.py", data="/data/x.parquet"), max_restarts=3)
    begun = make_job(**TRAINING, weights="/before/step-000001")
    assert " --weights /before/step-000001 " in lines(TORCHRUN, begun)
    with pytest.raises(RunError, match=r"--max-restarts.*--weights is /before/step-000001.*--on ray"):
        lines(TORCHRUN, begun, max_restarts=3)
    (tmp_path / "step-000005").mkdir()
    (tmp_path / "step-000005" / "state.json").write_text("{}")
    with pytest.raises((InputError, RunError), match="--resume"):
        lines(TORCHRUN, make_job(**{**TRAINING, "checkpoint": str(tmp_path)}), max_restarts=3)


def test_values_of_on_are_those_with_a_text_and_ray():
    assert (*LINES, RAY) == STARTERS
    assert set(LineOptions.__slots__) <= {option.name for option in LAUNCH.options}
    done = CliRunner().invoke(command, ["launch", "m.heterps", "--on", "kubernetes"])
    assert (done.exit_code, "kubeflow" in done.stderr) == (2, True)
    done = CliRunner().invoke(command, ["launch", "m.heterps", "--on", "slurm", "--max-restarts", "2"])
    assert (done.exit_code, "--on ray" in done.stderr) == (2, True)
