"""An OpenSSH server of our own on the loopback interface, with its own keys, and the client's configuration."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PATIENCE_S = 20.0

SERVER = """
ListenAddress 127.0.0.1
ListenAddress 127.0.0.2
Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
PermitRootLogin yes
SetEnv PYTHONPATH={modules} OMP_NUM_THREADS=1
"""
CLIENT = """
Host 127.0.0.*
  Port {port}
  IdentityFile {folder}/user_key
  IdentitiesOnly yes
  UserKnownHostsFile /dev/null
  StrictHostKeyChecking no
  LogLevel ERROR
"""


class NoServerError(Exception):
    """There is no OpenSSH server here."""


@contextmanager
def ssh_server(folder: Path, modules: str) -> Iterator[Path]:
    """Yield the client's configuration for 127.0.0.1 and 127.0.0.2; commands there find Python's modules.

    Raises:
        NoServerError: where OpenSSH is not installed.
    """
    server = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    if server is None or shutil.which("ssh") is None or shutil.which("ssh-keygen") is None:
        raise NoServerError("no sshd, ssh and ssh-keygen (Debian: openssh-server)")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd's own, which its start-up script makes
    for name in ("host_key", "user_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for name, text in (("sshd_config", SERVER), ("ssh_config", CLIENT)):
        (folder / name).write_text(text.format(port=port, folder=folder, modules=modules))
    with (folder / "sshd.log").open("w") as log:
        process = subprocess.Popen([server, "-D", "-e", "-f", str(folder / "sshd_config")], stderr=log)
    try:
        _wait_until_it_answers(process, port, folder)
        yield folder / "ssh_config"
    finally:
        process.kill()
        process.wait()


def _wait_until_it_answers(process: "subprocess.Popen[bytes]", port: int, folder: Path) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            socket.create_connection(("127.0.0.2", port), timeout=1).close()
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise NoServerError((folder / "sshd.log").read_text()) from None
            time.sleep(0.05)
        else:
            return
