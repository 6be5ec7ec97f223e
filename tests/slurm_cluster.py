"""Slurm's own controller with two nodes on the loopback interface: one of CPUs, one that says it has two GPUs."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

PATIENCE_S = 40.0
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "sinfo", "scontrol")

CONF = """
ClusterName=loopback
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/none
CredType=cred/none
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
ReturnToService=2
GresTypes=gpu
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4 RealMemory=1000
NodeName=node2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4 RealMemory=1000 Gres=gpu:tesla:2
PartitionName=batch Nodes=node1 Default=YES MaxTime=INFINITE State=UP
PartitionName=accelerated Nodes=node2 MaxTime=INFINITE State=UP
"""
GRES = "".join(f"NodeName=node2 Name=gpu Type=tesla File=/dev/{name}\n" for name in ("null", "zero"))


class NoSlurmError(Exception):
    """There is no Slurm here, or nobody who may start it."""


@contextmanager
def slurm_cluster(folder: Path) -> Iterator[dict[str, str]]:
    """Yield the environment in which Slurm's programs know the cluster.

    Raises:
        NoSlurmError: with the reason.
    """
    path = f"{os.environ['PATH']}:/usr/sbin"
    missing = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if missing:
        raise NoSlurmError(f"no {', '.join(missing)} (Debian: slurmctld slurmd slurm-client)")
    if os.geteuid():
        raise NoSlurmError("only root starts nodes that run jobs")
    with ExitStack() as probes:
        sockets = [probes.enter_context(socket.socket()) for _ in range(3)]
        for probe in sockets:
            probe.bind(("127.0.0.1", 0))
        ports = [probe.getsockname()[1] for probe in sockets]
    (folder / "state").mkdir()
    (folder / "slurm.conf").write_text(CONF.format(host=socket.gethostname(), folder=folder, ports=ports))
    (folder / "gres.conf").write_text(GRES)
    environment = {**os.environ, "PATH": path, "SLURM_CONF": str(folder / "slurm.conf")}
    started: list[subprocess.Popen[bytes]] = []
    try:
        for words in (["slurmctld", "-D", "-i"], *(["slurmd", "-D", "-N", name] for name in ("node1", "node2"))):
            with (folder / f"{'-'.join(words)}.out").open("w") as out:
                started.append(subprocess.Popen(words, env=environment, stdout=out, stderr=out))
        _wait_until_idle(environment, started, folder)
        yield environment
    finally:
        subprocess.run(["scancel", "--user=root", "--quiet"], env=environment, check=False, capture_output=True)
        for process in reversed(started):
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_idle(environment: dict[str, str], started: "list[subprocess.Popen[bytes]]", folder: Path) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        said = subprocess.run(
            ["sinfo", "--Node", "--noheader", "--format=%T"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if said.stdout.split() == ["idle", "idle"]:
            return
        if time.monotonic() > deadline_s or any(process.poll() is not None for process in started):
            logs = "\n".join(path.read_text()[-800:] for path in sorted(folder.glob("*.out")))
            raise AssertionError(f"the nodes are {said.stdout.split()}: {said.stderr}\n{logs}")
        time.sleep(0.1)
