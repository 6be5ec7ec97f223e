"""A run over ssh loses a host and takes it again: every sample is trained on once, counted.

Two addresses of this machine are two hosts, each with a server of OpenSSH of its own, which is killed with all that it
started.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

import pytest
from counted_rows import MODEL, TRAIN, times_seen
from processes import PATIENCE_S, end_of, free_port, kill_with_descendants
from ssh_server import NoServerError, make_ssh_host

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # ranks that start cold, three times

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def wait_for(seen: Callable[[], bool], process: "subprocess.Popen[str]", told: Path) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not seen():
        assert process.poll() is None, told.read_text()
        assert time.monotonic() < deadline_s, told.read_text()
        time.sleep(0.05)


def test_every_sample_is_trained_on_once_through_a_lost_host_and_one_that_comes_back(tmp_path):
    slow = tmp_path / "hold-slow"
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "train.py").write_text(f"HOLD = {str(tmp_path / 'hold')!r}\n{TRAIN}")
    subprocess.run([sys.executable, "model.py", "two"], check=True, capture_output=True, cwd=tmp_path, env=ENVIRONMENT)
    servers = []
    try:
        for name, address in (("one", "127.0.0.1"), ("two", "127.0.0.2")):
            (tmp_path / f"ssh-{name}").mkdir()
            servers.append(make_ssh_host(tmp_path / f"ssh-{name}", str(ROOT), address))
    except NoServerError as error:
        pytest.skip(f"no server of OpenSSH here: {error}")
    (tmp_path / "ssh_config").write_text("".join(server.client for server in servers))
    hosts = tmp_path / "hosts.toml"
    table = '[[host]]\naddress = "127.0.0.{}"\nslots = {}\n'
    text = f'secret = "{token_hex(32)}"\nport = {free_port()}\nwait_s = 60\n'
    hosts.write_text(text + table.format(1, 2) + table.format(2, 1))
    hosts.chmod(0o600)
    running = [server.start() for server in servers]
    words = (
        "launch two --on ssh --hosts hosts.toml --ssh-config ssh_config --max-restarts 3 --elastic 1:2 "
        "--train train.py --data x.parquet --epochs 3 --batch 32 --micro-batches 2 --replicas 1,2 --checkpoint ck "
        "--every 5 -q --log log.jsonl"
    )
    told = tmp_path / "told"
    try:
        with told.open("w") as to:
            run = subprocess.Popen(
                [sys.executable, "-m", "heterps_compile", *words.split(), "--python", sys.executable],
                cwd=tmp_path, env=ENVIRONMENT, text=True, stdout=to, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        wait_for(lambda: any(int(found.name[5:]) >= 10 for found in tmp_path.glob("ck/step-*[0-9]")), run, told)
        slow.touch()
        kill_with_descendants(running[1].pid)
        running[1].wait()
        wait_for(lambda: "restart 1 of 3" in told.read_text(), run, told)
        running[1] = servers[1].start()
        wait_for(lambda: "127.0.0.2 came" in told.read_text(), run, told)
        slow.unlink()
        code, _, _ = end_of(run, PATIENCE_S)
    finally:
        for process in running:
            with suppress(ProcessLookupError):
                kill_with_descendants(process.pid)
            process.wait()
    said = told.read_text()
    assert code == 0, said
    assert "127.0.0.2 is lost for the 1st time: it is not asked for 10 s\n" in said
    assert (
        "replicas 1, 2 on 2 hosts (127.0.0.1=2, 127.0.0.2=1) before, replicas 1, 1 on 1 host (127.0.0.1=2) now" in said
    )
    assert "then replicas 1, 2 on 2 hosts (127.0.0.1=2, 127.0.0.2=1)\n" in said
    assert said.endswith("done, after 1 restart and 1 change of widths\n")
    assert times_seen(tmp_path / "ck" / "step-000144") == {3}
    logged = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert {line["step"] for line in logged if "step" in line} == set(range(144))
    assert len([line for line in logged if "decision" in line]) == 4
