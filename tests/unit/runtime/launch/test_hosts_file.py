"""Machines of a run: a file, checked; and a line for each."""

import os
import socket
import subprocess
from hashlib import sha256
from pathlib import Path

import pytest
from plans import PLAN

from heterps_compile.errors import HeterpsError, InputError, RunError
from heterps_compile.runtime.launch.hosts_file import (
    Host,
    Hosts,
    check_hosts,
    host_words,
    look_up_hosts,
    member_of_host,
    ranks_of_hosts,
    read_hosts,
)
from heterps_compile.runtime.launch.membership import Membership
from heterps_compile.runtime.launch.prepare import Prepared, places_of
from heterps_compile.runtime.pipeline.layout import make_layout

LAYOUT = make_layout(PLAN, training=False, replicas=[2, 1])
PREPARED = Prepared(Path("m.heterps"), PLAN, "ab", LAYOUT, places_of(LAYOUT))
SECRET = f'secret = "{"0123456789" * 4}"\n'
TWO = (Host("127.0.0.1", 2), Host("localhost", 1))


def write(folder: Path, text: str, mode: int = 0o600) -> Path:
    file = folder / "hosts.toml"
    file.write_text(text)
    file.chmod(mode)
    return file


def test_a_file_of_hosts(tmp_path):
    file = write(
        tmp_path,
        SECRET + 'port = 1234\nwait_s = 30\n[[host]]\naddress = "10.0.0.1"\nslots = 2\n'
        '[[host]]\naddress = "gpu-1.example.org"\nslots = 1\nspeed = 2\ndevice = "v100"\n',
    )
    hosts = (Host("10.0.0.1", 2), Host("gpu-1.example.org", 1, 2.0, "v100"))
    expected = Hosts(hosts, 1234, 30, sha256(SECRET.partition('"')[2].rstrip('"\n').encode()).digest())
    assert read_hosts(file) == expected
    assert "0123456789" not in repr(expected)


ENTRY = '[[host]]\naddress = "a"\nslots = 1\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "names no"),
        ("port = 0\n" + ENTRY, "port is 0"),
        ("wait_s = 0\n" + ENTRY, "wait_s is 0"),
        ("colour = 1\n" + ENTRY, "unknown key 'colour'"),
        (ENTRY + "colour = 1\n", "host 1: unknown key 'colour'"),
        ("[[host]]\nslots = 1\n", "host 1: address is None"),
        ('[[host]]\naddress = "a; rm -rf /"\nslots = 1\n', "host 1: address is 'a; rm -rf /'"),
        ('[[host]]\naddress = "a"\n', "slots is None"),
        ('[[host]]\naddress = "a"\nslots = true\n', "slots is True"),
        ('[[host]]\naddress = "a"\nslots = 0\n', "slots is 0"),
        (ENTRY + "speed = 0\n", "speed is 0"),
        (ENTRY + "device = 3\n", "device is 3"),
        (ENTRY + ENTRY, "names 'a' twice"),
        ("[[host]\n", "cannot read the hosts"),
    ],
)
def test_what_is_no_file_of_hosts_is_refused(tmp_path, text, said):
    file = write(tmp_path, SECRET + text)
    with pytest.raises(InputError) as caught:
        read_hosts(file)
    assert said in str(caught.value)


def test_a_host_is_told_the_file_and_its_number():
    assert host_words(Hosts(TWO, 1234), PREPARED, "/h.toml", 2) == ["--hosts", "/h.toml", "--host", "2"]


def test_ranks_of_an_agent_are_those_of_its_host_whatever_number_the_agent_has():
    here = {"LOCAL_WORLD_SIZE": "1"}
    assert member_of_host(Hosts(TWO), 2, Membership(0, 3, 0, "a", 1), here) == Membership(2, 3, 0, "a", 1)
    assert member_of_host(Hosts(TWO), 1, Membership(2, 3, 1, "a", 1), {"LOCAL_WORLD_SIZE": "2"}).rank == 1
    with pytest.raises(InputError, match=r"host 2\b.*\b1\b.*\b3\b.*\b2\b.*\b3\b"):
        member_of_host(Hosts(TWO), 2, Membership(0, 3, 0, "a", 1), {"LOCAL_WORLD_SIZE": "2"})
    with pytest.raises(InputError, match=r"host 2\b.*\b1\b.*\b3\b.*unknown.*\b3\b"):
        member_of_host(Hosts(TWO), 2, Membership(0, 3, 0, "a", 1), {})
    with pytest.raises(InputError, match=r"--host.*\b3\b.*\b2\b"):
        member_of_host(Hosts(TWO), 3, Membership(0, 3, 0, "a", 1), here)


@pytest.mark.parametrize(
    ("secret", "mode", "said"),
    [
        ("", 0o600, "has no secret, by which the processes of the run know each other; put one in"),
        ('secret = "short"\n', 0o600, "secret is too short"),
        (f'secret = "{"a b" * 20}"\n', 0o600, "secret is too short, or not made of letters"),
        ("secret = 3\n", 0o600, "secret is too short"),
        (SECRET, 0o644, "others may read or change it (mode 0644); keep it to yourself: chmod 600 "),
        (SECRET, 0o620, "others may read or change it (mode 0620)"),
    ],
)
def test_a_secret_that_is_none_or_known_to_others_is_refused(tmp_path, secret, mode, said):
    file = write(tmp_path, secret + ENTRY, mode)
    with pytest.raises(InputError) as caught:
        read_hosts(file)
    assert said in str(caught.value)
    assert "0123456789" not in str(caught.value)


def test_the_line_that_is_to_put_a_secret_in_does(tmp_path):
    file = write(tmp_path, ENTRY, 0o644)
    with pytest.raises(InputError) as caught:
        read_hosts(file)
    subprocess.run(str(caught.value).partition("nobody else: ")[2], shell=True, check=True)  # noqa: S602 - our own words
    assert len(read_hosts(file).secret) == 32


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_a_secret_that_belongs_to_somebody_else_is_refused(tmp_path):
    file = write(tmp_path, SECRET + ENTRY)
    os.chown(file, 65534, 65534)
    with pytest.raises(InputError, match="65534"):
        read_hosts(file)


def test_speeds_that_differ_are_passed_on():
    hosts = Hosts((Host("127.0.0.1", 1, 2.0), Host("localhost", 2)))
    assert host_words(hosts, PREPARED, "h", 1)[2:4] == ["--speeds", "2,1;1"]
    of_stages = Hosts((Host("127.0.0.1", 2, 2.0), Host("localhost", 1)))  # micro-batches are dealt inside a stage
    assert "--speeds" not in host_words(of_stages, PREPARED, "h", 1)


def test_ranks_fill_hosts_in_order():
    assert ranks_of_hosts(Hosts(TWO)) == [range(2), range(2, 3)]


@pytest.mark.parametrize(
    ("hosts", "said"),
    [
        ((Host("127.0.0.1", 2),), "the hosts have 2 slots (2), and the run has 3 processes"),
        ((Host("127.0.0.1", 2, 1.0, "v100"), Host("localhost", 1)), "rank 0 runs stage 0, planned for 'cpu'"),
    ],
)
def test_hosts_that_do_not_fit_are_refused(hosts, said):
    with pytest.raises(HeterpsError) as caught:
        check_hosts(Hosts(hosts), PREPARED)
    assert said in str(caught.value)


def test_a_host_that_cannot_be_found_is_told():
    with pytest.raises(RunError, match=r"'no-such-host\.invalid'"):
        look_up_hosts(Hosts((Host("127.0.0.1", 2), Host("no-such-host.invalid", 1)), 0))


def test_a_host_that_gives_no_answer_is_told(monkeypatch):
    def connect(address, timeout):
        raise TimeoutError("timed out") if address[0] == "127.0.0.2" else ConnectionRefusedError(111, "refused")

    monkeypatch.setattr("socket.create_connection", connect)
    look_up_hosts(Hosts((Host("127.0.0.1", 2),), 0))
    with pytest.raises(RunError, match=r"'127\.0\.0\.2'"):
        look_up_hosts(Hosts((Host("127.0.0.1", 2), Host("127.0.0.2", 1)), 0))


def test_a_port_in_use_is_told():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(RunError, match=r"'127\.0\.0\.1'"):
            look_up_hosts(Hosts(TWO, taken.getsockname()[1]))
