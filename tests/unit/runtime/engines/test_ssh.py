import io
import shlex

import pytest
from engine_jobs import HOSTILE, SECRET, make_job, write_hosts

from heterps_compile.errors import InputError, RunError
from heterps_compile.runtime.engines.by_hand import ByHand
from heterps_compile.runtime.engines.contract import Streams, need_installed
from heterps_compile.runtime.engines.ssh import Ssh

READS = ("--data", "random")
FAKE = """#!/bin/sh
echo "$@" >> "$SSH_LOG"
for last; do :; done
case "$*" in *127.0.0.9*) exit 255;; esac
printf '%s\\n' "$last"
"""


@pytest.fixture
def fake_ssh(tmp_path, monkeypatch):
    """An ``ssh`` that prints what it would have the other machine do, and cannot reach 127.0.0.9."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ssh").write_text(FAKE)
    (tmp_path / "bin" / "ssh").chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("SSH_LOG", str(tmp_path / "log"))
    return tmp_path / "log"


def started(engine, job) -> tuple[int, str]:
    streams = Streams(io.StringIO(), io.StringIO())
    return engine.start(job, streams), streams.out.getvalue()


def test_every_host_is_sent_its_words_quoted_and_no_secret(fake_ssh, tmp_path):
    job = make_job(hosts=write_hosts(tmp_path, 2, 1), steps=3, directory=HOSTILE)
    code, out = started(Ssh(python="/opt/my python"), job)
    assert code == 0
    for number in (1, 2):
        line = next(line for line in out.splitlines() if line.startswith(f"[127.0.0.{number}] "))
        assert line.split(" ", 1)[1].startswith("'/opt/my python' -m heterps_compile.runtime.engines.with_input")
    printed = Ssh(python="p", ssh_config="c").write(job)
    assert [one.title for one in printed] == [
        "127.0.0.1: stage 0, replica 0; stage 0, replica 1",
        "127.0.0.2: stage 1, replica 0",
    ]
    words = shlex.split(printed[1].text)
    assert words[-3:-1] == ["--", "127.0.0.2"]
    there = [
        "p",
        "-m",
        "heterps_compile",
        "run",
        HOSTILE,
        *READS,
        "--steps",
        "3",
        "--hosts",
        job.options.hosts,
        "--host",
        "2",
    ]
    assert shlex.split(words[-1]) == ["p", "-m", "heterps_compile.runtime.engines.with_input", *there]
    assert SECRET not in fake_ssh.read_text() + "".join(one.text for one in printed)


def test_a_host_that_cannot_be_reached_is_named(fake_ssh, tmp_path):
    hosts = write_hosts(tmp_path, 2, 1)
    text = (tmp_path / "hosts.toml").read_text().replace("127.0.0.2", "127.0.0.9")
    (tmp_path / "hosts.toml").write_text(text)
    with pytest.raises(RunError, match=r"'127\.0\.0\.9'"):
        started(Ssh(), make_job(hosts=hosts))
    assert fake_ssh.read_text().count("BatchMode=yes") == 2


def test_what_does_not_fit_is_told_before_anything_starts(tmp_path, monkeypatch):
    hosts = write_hosts(tmp_path, 2, 1)
    with pytest.raises(InputError, match=r"--hosts FILE.toml"):
        Ssh().check(make_job())
    with pytest.raises(RunError, match=r"\b3\b"):
        Ssh(no_check=True).check(make_job(replicas=(1, 1), hosts=hosts))
    with pytest.raises(RunError, match=r"'/no/such'.*--ssh-config"):
        Ssh(no_check=True, ssh_config="/no/such").check(make_job(hosts=hosts))
    with pytest.raises(InputError, match=r"--host.*\b7\b.*\b2\b"):
        Ssh().write(make_job(hosts=hosts, host=7))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RunError, match=r"'ssh'.*PATH"):
        need_installed(Ssh())


def test_a_run_that_is_elastic_is_printed_as_it_begins_and_its_hosts_may_have_room(tmp_path):
    keeps = {"train": "t.py", "checkpoint": str(tmp_path / "ck"), "every": 5}
    job = make_job(hosts=write_hosts(tmp_path, 4, 1, 1), **keeps)
    engine = Ssh(no_check=True, elastic=(1, 2), max_restarts=1)
    engine.check(job)
    (one,) = engine.write(job)
    assert one.title == "127.0.0.1: stage 0, replica 0; stage 0, replica 1; stage 1, replica 0"
    assert "--deal 127.0.0.1=3 " in one.text
    few = make_job(hosts=write_hosts(tmp_path, 1, 1), **keeps)
    with pytest.raises(RunError, match=r"\b2\b.*\b2\b.*\b3\b.*\b1\b"):
        engine.write(few)
    with pytest.raises(InputError, match="--host"):
        engine.check(make_job(hosts=write_hosts(tmp_path, 2, 1), host=1, **keeps))


def test_by_hand_the_line_of_one_host_can_be_asked_for(tmp_path):
    job = make_job(hosts=write_hosts(tmp_path, 2, 1), host=2)
    (one,) = ByHand().write(job)
    assert shlex.split(one.text)[:3] == ["heterps-compile", "run", "/data/m.heterps"]
    assert one.text.endswith("--host 2")
    with pytest.raises(NotImplementedError):
        started(ByHand(), job)
