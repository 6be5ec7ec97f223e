"""``launch --on ssh`` over a real server of OpenSSH: two addresses of this machine are two."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from secrets import token_hex

import pytest
from processes import PATIENCE_S, begin_command, end_of, free_port, wait_for_lines, wait_until_gone
from ssh_server import NoServerError, ssh_server
from written_ctrdnn import (
    BATCH,
    DATA,
    MICRO_BATCHES,
    largest_difference,
    trained_in_one_process,
    weights_in,
    write_ctrdnn,
)

pytestmark = pytest.mark.slow  # ranks that start cold, as on machines of their own

STEPS = 4
RUN = ("--data", DATA, "--batch", str(BATCH), "--micro-batches", str(MICRO_BATCHES), "--replicas", "1,2")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    """A compiled folder and the configuration of ssh; skipped where there is no server."""
    folder = tmp_path_factory.mktemp("there")
    write_ctrdnn(folder)
    try:
        with ssh_server(folder, os.pathsep.join([str(ROOT), str(ROOT / "tests")])) as config:
            yield folder, config
    except NoServerError as error:
        pytest.skip(f"no server of OpenSSH here: {error}")


def begin(there, tmp_path, *words: str) -> "subprocess.Popen[str]":
    folder, config = there
    hosts = tmp_path / "hosts.toml"
    table = '[[host]]\naddress = "127.0.0.{}"\nslots = {}\n'
    hosts.write_text(
        f'secret = "{token_hex(32)}"\nport = {free_port()}\nwait_s = 60\n{table.format(1, 2)}{table.format(2, 1)}'
    )
    hosts.chmod(0o600)
    start = ("launch", "model2.heterps", "--on", "ssh", "--hosts", str(hosts))
    with_ssh = ("--python", sys.executable, "--ssh-config", str(config))
    return begin_command(folder, *start, *with_ssh, *words, *RUN)


def test_two_hosts_train_over_ssh_and_a_connection_that_dies_ends_both(there, tmp_path):
    ck = str(tmp_path / "ck")
    words = ("--train", "train.py", "--steps", str(STEPS), "--checkpoint", ck)
    code, out, err = end_of(begin(there, tmp_path, *words), PATIENCE_S)
    assert code == 0, err
    assert f"[127.0.0.1] {STEPS} steps, {STEPS * BATCH} samples" in out
    ours = weights_in(tmp_path / "ck" / f"step-{STEPS:06d}")
    assert largest_difference(ours, trained_in_one_process(STEPS)) < 1e-6

    log = tmp_path / "log.jsonl"
    endless = begin(there, tmp_path, "--train", "train.py", "--steps", "1000000", "--log", str(log))
    wait_for_lines(log, endless)
    (second,) = [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if path.read_bytes().startswith(b"ssh\0") and b"\x00127.0.0.2\0" in path.read_bytes()
        and str(log).encode() in path.read_bytes()
    ]  # fmt: skip
    os.kill(second, signal.SIGKILL)
    code, out, err = end_of(endless, PATIENCE_S)
    assert code != 0
    wait_until_gone(str(log))


def test_ctrl_c_ends_the_hosts_with_a_checkpoint(there, tmp_path):
    log, ck = tmp_path / "log.jsonl", tmp_path / "ck"
    words = ("--train", "train.py", "--steps", "1000000", "--log", str(log), "--checkpoint", str(ck))
    process = begin(there, tmp_path, *words)
    wait_for_lines(log, process)
    process.send_signal(signal.SIGINT)
    code, _, err = end_of(process, PATIENCE_S)
    assert code == 130, err
    assert "Traceback" not in err
    assert list(ck.glob("step-*"))
    wait_until_gone(str(log))
