"""What needs no cluster of Ray; one of its own is in tests/e2e/test_command_launch_ray.py."""

import json
import re
import shlex
import signal
import subprocess
import sys
import time

import pytest
from engine_jobs import HOSTILE, make_job

from heterps_compile import packages
from heterps_compile.errors import InputError
from heterps_compile.runtime.engines.ray_cluster import Ray
from heterps_compile.runtime.engines.ray_nodes import assigned, fill_nodes, too_few
from heterps_compile.runtime.engines.ray_rank import ERR, OUT, RankProcess


def test_a_bundle_for_every_rank_of_what_its_type_is_called_there():
    text = Ray(resources=(("v100", "volta"),)).text(make_job(servers=1, threads=2, directory=HOSTILE))
    _, group, command = re.split(r"^# .*\n", text, flags=re.MULTILINE)
    assert json.loads(group) == [
        {"heterps_cpu": 1.0, "CPU": 2.0},
        {"heterps_cpu": 1.0, "CPU": 2.0},
        {"volta": 1.0, "CPU": 2.0},
        {"heterps_parameter-server": 1.0, "CPU": 2.0},
    ]
    assert shlex.split(command) == [
        "python3",
        "-m",
        "heterps_compile",
        "run",
        HOSTILE,
        "--data",
        "random",
        "--threads",
        "2",
    ]
    counted = Ray()._bundles(make_job(), counts_gpus=True)
    assert [bundle.get("GPU") for bundle in counted] == [None, None, 1.0]


def test_what_does_not_fit_is_told_before_anything_starts():
    with pytest.raises(InputError, match=r"--resource.*'tpu'"):
        Ray(resources=(("tpu", "x"),)).check(make_job())
    with pytest.raises(InputError, match=r"--resource v100=GPU.*Ray's"):
        Ray(resources=(("v100", "GPU"),)).check(make_job())
    assert packages.EXTRAS["ray"] == ("ray",)


def test_every_rank_goes_to_the_first_node_that_still_has_what_it_takes():
    nodes = [("n1", {"cores": 1.0, "CPU": 4.0}), ("n2", {"volta": 2.0, "cores": 1.0, "CPU": 2.0})]
    core, volta = {"cores": 1.0, "CPU": 1.0}, {"volta": 1.0, "CPU": 1.0}
    assert assigned([core, volta], nodes) == ("n1", "n2")
    assert fill_nodes([core, core, volta], nodes) == (("n1", 1), ("n2", 2))
    assert fill_nodes([core, core, core], nodes) is None
    assert fill_nodes([volta, volta, core], [("n2", nodes[1][1])]) is None  # its two CPUs are taken
    assert too_few([core, volta], {"cores": 1.0, "CPU": 2.0, "volta": 1.0}) == ""
    said = too_few([volta, volta], {"volta": 1.0, "CPU": 2.0}, free="free ")
    assert said.startswith("the run takes 2 of 'volta', and the nodes of the Ray cluster have free 1; start nodes that")


def test_a_rank_that_is_ended_is_gone():
    rank = RankProcess()
    rank.end()
    process = rank._process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, text=True)
    rank.end()
    assert process.returncode == -signal.SIGKILL
    assert process.stdin is not None
    process.stdin.close()


def finished(rank: RankProcess) -> tuple[list[tuple[str, str]], int]:
    told, deadline_s = [], time.monotonic() + 60.0
    while True:
        if time.monotonic() > deadline_s:
            rank.send_signal(signal.SIGKILL)
        lines, code = rank.poll()
        told += lines
        if code is not None:
            return told, code
        time.sleep(0.01)


def test_a_rank_has_its_variables_and_heeds_signals(tmp_path, monkeypatch):
    """A script stands for our interpreter; unlike a shell it leaves signals blocked that it finds blocked."""
    script = tmp_path / "python"
    script.write_text(
        f"#!{sys.executable}\n"
        "import os, signal, sys\n"
        "def stop(*_):\n    print('stopped', file=sys.stderr, flush=True)\n    os._exit(9)\n"
        "signal.signal(signal.SIGINT, stop)\n"
        "print(sys.argv[3], os.environ['RANK'], flush=True)\n"
        "signal.pause()\n"
    )
    script.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(script))
    rank = RankProcess()
    assert rank.poll() == ([], None)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # as Ray does
    try:
        rank.start(["run", HOSTILE, "--data", "random", "--threads", "2"], {"RANK": "2"})
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    told = []
    while not told:
        told += rank.poll()[0]
        time.sleep(0.01)
    assert told == [(OUT, "run 2\n")]
    rank.send_signal(signal.SIGINT)
    assert finished(rank) == ([(ERR, "stopped\n")], 9)
    assert rank.free_port() > 0
