"""The file of hosts, read again while a run goes on, and hosts that are asked by a made-up ssh."""

import io
import os
import time

import pytest
from engine_jobs import SECRET, make_job, write_hosts

from heterps_compile.errors import InputError
from heterps_compile.runtime.engines.contract import Streams
from heterps_compile.runtime.engines.over_ssh import Remote
from heterps_compile.runtime.engines.ssh_hosts import SshHosts

FAKE = """#!/bin/sh
case "$*" in *127.0.0.2*) exit 255;; esac
echo "$@"
"""


@pytest.fixture
def hosts(tmp_path, monkeypatch) -> SshHosts:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ssh").write_text(FAKE)
    (tmp_path / "bin" / "ssh").chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    job = make_job(hosts=write_hosts(tmp_path, 2, 1))
    return SshHosts(job, Remote("python3", None), lambda job: [(name, ["run"]) for name, _ in job.options.deal])


def shown(found) -> str:
    return " ".join(f"{host.address}:{host.slots}" for host in found)


def test_a_line_that_is_added_counts_and_a_file_that_cannot_be_read_is_told(hosts, tmp_path):
    assert shown(hosts.listed()) == "127.0.0.1:2 127.0.0.2:1"
    write_hosts(tmp_path, 2, 1, 3)
    assert shown(hosts.listed()) == "127.0.0.1:2 127.0.0.2:1 127.0.0.3:3"
    (tmp_path / "hosts.toml").write_text(f'secret = "{SECRET}"\n[[host]]\naddr')
    for _ in range(2):
        with pytest.raises(InputError):
            hosts.listed()


def test_hosts_that_do_not_answer_are_known_once_ssh_has_left(hosts):
    asking = hosts.ask(hosts.listed())
    while (answered := asking.answered()) is None:
        time.sleep(0.01)
    asking.close()
    assert answered == {"127.0.0.1"}


def test_a_way_that_is_lost_is_told_of_its_host_and_the_others_exit_codes_are_kept(hosts):
    out = io.StringIO()
    started = hosts.start(make_job(hosts="hosts.toml"), (("127.0.0.1", 2), ("127.0.0.2", 1)), Streams(out, out))
    while not started.poll():
        time.sleep(0.01)
    left = started.close()
    assert (left.codes, left.lost, left.code) == ((0, 255), ("127.0.0.2",), 255)
    assert left.error is not None
    assert str(left.error).startswith("ssh to '127.0.0.2' failed or was cut off")
    assert f"python3 -m heterps_compile.runtime.engines.with_input run{os.linesep}" in out.getvalue()
