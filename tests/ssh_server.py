"""OpenSSH servers of our own on the loopback interface, with their own keys, and the client's configuration."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PATIENCE_S = 20.0

SERVER = """
{listen}
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
Host {hosts}
  Port {port}
  IdentityFile {folder}/user_key
  IdentitiesOnly yes
  UserKnownHostsFile /dev/null
  StrictHostKeyChecking no
  LogLevel ERROR
"""


class NoServerError(Exception):
    """There is no OpenSSH server here."""


@dataclass(frozen=True)
class SshHost:
    """Addresses of this machine that one server is to answer at; it may be killed and started again."""

    folder: Path
    addresses: tuple[str, ...]
    port: int

    @property
    def client(self) -> str:
        """Return what the client's configuration says of it."""
        return CLIENT.format(port=self.port, folder=self.folder, hosts=" ".join(self.addresses))

    def start(self) -> "subprocess.Popen[bytes]":
        """Start the server, which answers then."""
        with (self.folder / "sshd.log").open("w") as log:
            process = subprocess.Popen([_server(), "-D", "-e", "-f", str(self.folder / "sshd_config")], stderr=log)
        _wait_until_it_answers(process, self)
        return process


def make_ssh_host(folder: Path, modules: str, *addresses: str) -> SshHost:
    """Write keys and configuration; commands there find Python's modules.

    Raises:
        NoServerError: where OpenSSH is not installed.
    """
    _server()
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd's own, which its start-up script makes
    for name in ("host_key", "user_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    listen = "\n".join(f"ListenAddress {address}" for address in addresses)
    (folder / "sshd_config").write_text(SERVER.format(port=port, folder=folder, modules=modules, listen=listen))
    return SshHost(folder, addresses, port)


@contextmanager
def ssh_server(folder: Path, modules: str) -> Iterator[Path]:
    """Yield the client's configuration for 127.0.0.1 and 127.0.0.2, which one server answers at.

    Raises:
        NoServerError: where OpenSSH is not installed.
    """
    host = make_ssh_host(folder, modules, "127.0.0.1", "127.0.0.2")
    (folder / "ssh_config").write_text(host.client)
    process = host.start()
    try:
        yield folder / "ssh_config"
    finally:
        process.kill()
        process.wait()


def _server() -> str:
    server = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    if server is None or shutil.which("ssh") is None or shutil.which("ssh-keygen") is None:
        raise NoServerError("no sshd, ssh and ssh-keygen (Debian: openssh-server)")
    return server


def _wait_until_it_answers(process: "subprocess.Popen[bytes]", host: SshHost) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            socket.create_connection((host.addresses[-1], host.port), timeout=1).close()
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise NoServerError((host.folder / "sshd.log").read_text()) from None
            time.sleep(0.05)
        else:
            return
