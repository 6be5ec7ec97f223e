"""Which rank the environment makes of a process, and the environment of ranks that our launcher starts."""

import pytest

from heterps_compile.errors import RunError
from heterps_compile.runtime.engines.local_machine import worker_environment
from heterps_compile.runtime.launch.membership import Membership, is_rank, membership_of

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "LOCAL_RANK": "0"}
SLURM = {
    "SLURM_PROCID": "2", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_TASKS": "3", "SLURM_JOB_ID": "71234",
    "SLURM_JOB_NODELIST": "gpu[03-05],cpu1",
}  # fmt: skip
UNLIKE = {
    **SLURM, "SLURM_HET_SIZE": "2", "SLURM_JOB_NODELIST_HET_GROUP_0": "cpu1", "SLURM_JOB_ID_HET_GROUP_0": "71230",
}  # fmt: skip
SKYPILOT = {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2"}


@pytest.mark.parametrize(
    ("environment", "member"),
    [
        (SLURM, Membership(2, 3, 1, "gpu03", 21234)),
        ({**SLURM, "MASTER_ADDR": "10.0.0.9", "MASTER_PORT": "7"}, Membership(2, 3, 1, "10.0.0.9", 7)),
        (UNLIKE, Membership(2, 3, 1, "cpu1", 21230)),
        (SKYPILOT, Membership(1, 2, 0, "10.0.0.1", 29500)),
    ],
)
def test_variables_of_schedulers_are_those_of_the_contract(environment, member):
    assert is_rank(environment)
    assert membership_of(environment) == member


@pytest.mark.parametrize(
    "environment",
    [
        {name: value for name, value in SLURM.items() if name != "SLURM_STEP_NUM_TASKS"},
        {**SLURM, "SLURM_STEP_NUM_TASKS": "1"},
        {**SKYPILOT, "SKYPILOT_NODE_IPS": "10.0.0.1"},
    ],
)
def test_a_batch_script_and_a_single_task_are_no_ranks(environment):
    assert not is_rank(environment)


def test_what_torchrun_says():
    assert is_rank(TORCHRUN)
    assert not is_rank({"RANK": "1"})
    assert membership_of(TORCHRUN) == Membership(1, 3, 0, "10.0.0.1", 29500)


@pytest.mark.parametrize("changed", [{"RANK": "x"}, {"RANK": "3"}, {"WORLD_SIZE": "0"}, {"MASTER_PORT": "99999"}])
def test_an_environment_that_does_not_fit_is_told(changed):
    with pytest.raises(RunError):
        membership_of({**TORCHRUN, **changed})


def test_ranks_of_this_machine_talk_over_loopback_and_c_libraries_are_silent_unless_asked(monkeypatch):
    monkeypatch.setenv("RANK", "7")
    monkeypatch.delenv("TORCH_CPP_LOG_LEVEL", raising=False)
    environment = worker_environment(2)
    assert environment["GLOO_SOCKET_IFNAME"].startswith("lo")
    assert (environment["OMP_NUM_THREADS"], environment["TORCH_CPP_LOG_LEVEL"]) == ("2", "FATAL")
    assert "RANK" not in environment
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "INFO")
    assert worker_environment(1)["TORCH_CPP_LOG_LEVEL"] == "INFO"
