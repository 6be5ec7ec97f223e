"""Print what starts a run on other machines: lines of torchrun, a script of Slurm, manifests of SkyPilot and Kubeflow.

Every process is one rank of one world. Which rank it becomes is open: it reports its device type, and the run assigns
stages by type. So the hosts of a device type that have the same number of processes, a *host group*, share one line::

    10 processes of v100, 4 on a host   ->   v100: 2 hosts, 4 processes each
                                             v100: 1 host, 2 processes

The text is a function of the job and the options. Nothing is started or written.

Left out: installing schedulers; images and volumes.
"""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from heterps_compile.errors import InputError
from heterps_compile.escape import printable
from heterps_compile.units import counted

from .device_parts import Part, by_type, parts_of
from .elastic_limits import Limits
from .job import Job, RentedAs
from .launch_options import KUBEFLOW, SKYPILOT, SLURM, TORCHRUN

_PROGRAM = "heterps-compile"
_RUN_NAME = "heterps"
_PORT = 29_500
_GPU = "nvidia.com/gpu"
_SBATCH = r"[a-z][a-z0-9-]*(?:=[^\x00-\x20\x7f\"'\\#]+)?"
_SKY = r"(?:accelerators|cpus|memory|instance_type|infra|image_id|disk_size|use_spot)=[A-Za-z0-9_.:/*+-]{1,200}"
_OF_MACHINES = {"accelerators", "cpus", "memory", "instance_type", "infra"}
_LABEL = r"[A-Za-z0-9][A-Za-z0-9_./-]{0,252}=[A-Za-z0-9_.-]{0,63}"


@dataclass(frozen=True, slots=True)
class LineOptions:
    """The options of ``launch`` that shape the text (``launch_options.py``)."""

    slots: Mapping[str, int] | None = None
    resources: tuple[tuple[str, str], ...] = ()
    max_restarts: int = 0
    image: str | None = None
    claim: str | None = None
    mount: str = "/shared"


@dataclass(frozen=True, slots=True)
class HostGroup:
    """Hosts of one device type with the same number of processes.

    Attributes:
        part: The ranks of the device type.
        hosts: How many hosts.
        processes: On each of them.
        first: Hosts of the groups before this one.
    """

    part: Part
    hosts: int
    processes: int
    first: int

    def __str__(self) -> str:
        each = " each" if self.hosts > 1 else ""
        processes = counted(self.processes, "process")
        return f"{printable(self.part.device)}: {counted(self.hosts, 'host')}, {processes}{each}"


@dataclass(frozen=True, slots=True)
class _Lines:
    """A job with its host groups, and the words that its text is made of."""

    job: Job
    options: LineOptions
    parts: tuple[Part, ...]
    groups: tuple[HostGroup, ...]

    @property
    def hosts(self) -> int:
        return sum(group.hosts for group in self.groups)

    @property
    def threads(self) -> str:
        return str(self.job.options.threads)

    def run_words(self, part: Part) -> list[str]:
        """Return the command of one rank of a device type."""
        resumes = self.options.max_restarts and self.job.options.checkpoint and not self.job.options.resume
        return [
            _PROGRAM,
            *self.job.run_words(*(["--resume"] if resumes else [])),
            *("--device-type", part.device),
        ]

    def agent_words(self, group: HostGroup) -> list[str]:
        """Return the first words of torchrun's command on a host; options by which agents meet follow."""
        restarts = self.options.max_restarts
        return [
            *("torchrun", "--nnodes", str(self.hosts), "--nproc-per-node", str(group.processes)),
            *(["--max-restarts", str(restarts)] if restarts else []),
        ]

    def agent_line(self, group: HostGroup, meeting: str) -> str:
        """Return torchrun's command on a host for a shell.

        Args:
            group: The hosts that it is for.
            meeting: Options by which agents meet, quoted for a shell.
        """
        program = ["--no-python", *self.run_words(group.part)]
        return f"{shlex.join(self.agent_words(group))} {meeting} {shlex.join(program)}"

    def resources(
        self, allowed: str, example: str, chosen: Callable[[RentedAs], Sequence[str]], *, is_needed: bool
    ) -> Mapping[str, tuple[str, ...]]:
        """Return what names the hosts of every device type: ``--resource``, and the chosen instance unless it is named.

        Raises:
            InputError: if a value does not match, or nothing names the hosts of a type.
        """
        found = dict(by_type("--resource", self.options.resources, self.parts, allowed, example))
        for part in self.parts:
            machine = self.job.rented.get(part.device)
            if machine is not None:
                named = {text.partition("=")[0] for text in found[part.device]}
                left = () if named & _OF_MACHINES else chosen(machine)
                found[part.device] += tuple(text for text in left if text.partition("=")[0] not in named)
            if is_needed and not found[part.device]:
                name = printable(part.device)
                raise InputError(
                    f"no option names the hosts of the device type {name!r} (ranks "
                    f"{', '.join(map(str, part.ranks[:8]))}). Fix: --resource {shlex.quote(f'{name}={example}')}"
                )
        return found


_MEETING = f'--node-rank "${{NODE_RANK:?}}" --master-addr "${{MASTER_ADDR:?}}" --master-port {_PORT}'
"""Options by which torchrun's agents meet; the shell of every host has its own NODE_RANK."""


def line_of_hosts(words: Sequence[str]) -> str:
    """Return the torchrun line that starts a command of this package once on each of two hosts."""
    return f"torchrun --nnodes 2 --nproc-per-node 1 {_MEETING} {shlex.join(['--no-python', _PROGRAM, *words])}"


def torchrun_lines(job: Job, options: LineOptions) -> str:
    """Return the line of every host group; agents meet at the first host."""
    lines = _lines(job, options)
    if lines.hosts == 1:
        meeting, before = f"--master-addr 127.0.0.1 --master-port {_PORT}", []
    else:
        meeting = _MEETING
        before = [
            "# Type each line on every host that it is for. NODE_RANK counts all hosts from 0; MASTER_ADDR is the",
            "# address of the host with NODE_RANK 0.",
        ]
    for group in lines.groups:
        before += [f"# {group}", f"OMP_NUM_THREADS={lines.threads} {lines.agent_line(group, meeting)}"]
    return "\n".join(before) + "\n"


def slurm_script(job: Job, options: LineOptions) -> str:
    """Return a batch script with a component for every device type; a task is a rank."""
    lines = _lines(job, options)
    named = lines.resources(_SBATCH, "partition=NAME", lambda _: (), is_needed=len(lines.parts) > 1)
    heads, steps = [], []
    for number, part in enumerate(lines.parts):
        most = max(group.processes for group in lines.groups if group.part is part)
        tasks = [f"--ntasks={len(part.ranks)}", f"--cpus-per-task={lines.threads}"]
        tasks += [f"--ntasks-per-node={most}"] if most > 1 or part.device in (options.slots or {}) else []
        tasks += ["--gpus-per-task=1"] if part.kind == "gpu" else []
        ranks = counted(len(part.ranks), "process")
        head = [f"# {printable(part.device)}: {ranks}", f"#SBATCH --job-name={_RUN_NAME}"]
        chosen = [f"--{name}" for name in named[part.device]]
        heads.append("\n".join(head + [f"#SBATCH {option}" for option in (*tasks, *chosen)]))
        component = [f"--het-group={number}"] if len(lines.parts) > 1 else []
        steps.append(shlex.join([*component, *tasks, *lines.run_words(part)]))
    return (
        "#!/bin/bash\n"
        + "\n#SBATCH hetjob\n".join(heads)
        + f'\nexport OMP_NUM_THREADS={lines.threads} MASTER_ADDR="$(hostname)"\n'  # of the first node: rank 0 is there
        + f"srun {' : '.join(steps)}\n"
    )


def skypilot_tasks(job: Job, options: LineOptions) -> str:
    """Return a task of SkyPilot for one host group, or a job group with a task for each of several."""
    lines = _lines(job, options)
    named = lines.resources(_SKY, "accelerators=NAME:1", _offer_of, is_needed=True)
    is_alone = len(lines.groups) == 1
    tasks: list[dict[str, Any]] = []
    for number, group in enumerate(lines.groups):
        rank = f"$(({group.first} + SKYPILOT_NODE_RANK))" if group.first else "$SKYPILOT_NODE_RANK"
        address = '"$(echo "$SKYPILOT_NODE_IPS" | head -n 1)"' if is_alone else f"t0-0.{_RUN_NAME}"
        meeting = f'--node-rank "{rank}" --master-addr {address} --master-port {_PORT}'
        tasks.append(
            {
                "name": _RUN_NAME if is_alone else f"t{number}",
                "num_nodes": group.hosts,
                "resources": dict(_sky_resource(text) for text in named[group.part.device]),
                **({"volumes": {options.mount: options.claim}} if options.claim is not None else {}),
                "envs": {"OMP_NUM_THREADS": lines.threads},
                "run": f"exec {lines.agent_line(group, meeting)}\n",
            }
        )
    header: list[dict[str, Any]] = [] if is_alone else [{"name": _RUN_NAME, "execution": "parallel"}]
    return "\n---\n".join(map(_yaml, [*header, *tasks])) + "\n"


def pytorch_job(job: Job, options: LineOptions) -> str:
    """Return a PyTorchJob: one master and its workers, of at most two host groups.

    Raises:
        InputError: without an image, or if the host groups are not one master and equal workers.
    """
    lines = _lines(job, options)
    if options.image is None:
        raise InputError("--on kubeflow needs the image of its pods. Fix: --image NAME")
    labels = lines.resources(_LABEL, "LABEL=VALUE", _labels_of, is_needed=len(lines.parts) > 1)
    master, *others = sorted(lines.groups, key=lambda group: group.hosts != 1)
    if len(others) > 1 or (others and master.hosts != 1):
        raise InputError(
            f"the run needs {'; '.join(map(str, lines.groups))}; expected at most two kinds of hosts, one of which is "
            f"a single host: a PyTorchJob has one master, and workers that are all alike. Fix: more processes on a "
            f"host (--slots TYPE=N), or --on slurm"
        )
    workers = others[0] if others else master
    count = lines.hosts - 1
    replicas = {
        "Master": _replica(lines, master, 1, labels[master.part.device]),
        **({"Worker": _replica(lines, workers, count, labels[workers.part.device])} if count else {}),
    }
    document = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": _RUN_NAME},
        "spec": {"pytorchReplicaSpecs": replicas},
    }
    return _yaml(document) + "\n"


LINES: Mapping[str, Callable[[Job, LineOptions], str]] = MappingProxyType(
    {TORCHRUN: torchrun_lines, SLURM: slurm_script, SKYPILOT: skypilot_tasks, KUBEFLOW: pytorch_job}
)
"""The text of every value of ``--on`` that starts nothing."""


def _lines(job: Job, options: LineOptions) -> _Lines:
    """Group the hosts of a run.

    Raises:
        InputError: if ``--slots`` names a type that the run does not have.
        RunError: if restarts would begin at the first step, or there are checkpoints and the run is not to resume.
    """
    Limits(max_restarts=options.max_restarts).check(job, starts=False)
    parts = parts_of(job)
    slots = dict(options.slots or {})
    by_type("--slots", [(name, str(count)) for name, count in slots.items()], parts)
    planned = {device.name: getattr(device, "units_per_machine", 1) for device in job.prepared.plan.devices}
    groups: list[HostGroup] = []
    for part in parts:
        rented = job.rented.get(part.device)
        most = slots.get(part.device) or (rented.units if rented is not None else planned.get(part.device, 1))
        full, rest = divmod(len(part.ranks), most)
        for hosts, processes in ((full, most), (1, rest)):
            if hosts and processes:
                groups.append(HostGroup(part, hosts, processes, sum(group.hosts for group in groups)))
    return _Lines(job, options, parts, tuple(groups))


def _offer_of(machine: RentedAs) -> tuple[str, ...]:
    """Return the keys of SkyPilot's resources for an instance."""
    spot = ("use_spot=true",) if machine.is_spot else ()
    return (f"infra={machine.provider}/{machine.region}", f"instance_type={machine.instance}", *spot)


def _labels_of(machine: RentedAs) -> tuple[str, ...]:
    """Return the labels that clouds give the nodes of an instance type."""
    return f"node.kubernetes.io/instance-type={machine.instance}", f"topology.kubernetes.io/region={machine.region}"


def _sky_resource(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    if name != "use_spot":
        return name, int(value) if name == "disk_size" and value.isdigit() else value
    if value not in ("true", "false"):
        raise InputError(f"--resource use_spot is {value!r}; expected true or false")
    return name, value == "true"


def _replica(lines: _Lines, group: HostGroup, count: int, labels: Sequence[str]) -> dict[str, Any]:
    """Return the replica specification of a host group."""
    # The operator sets these variables in every pod, and Kubernetes replaces $(NAME) in a command.
    meeting = ["--node-rank", "$(RANK)", "--master-addr", "$(MASTER_ADDR)", "--master-port", "$(MASTER_PORT)"]
    program = ["--no-python", *lines.run_words(group.part)]
    command = [*lines.agent_words(group), *meeting, *map(_unexpanded, program)]
    limits = {_GPU: str(group.processes)} if group.part.kind == "gpu" else {}
    cpus = str(lines.job.options.threads * group.processes)
    claim, mount = lines.options.claim, lines.options.mount
    spec = {
        **({"nodeSelector": dict(label.split("=", 1) for label in labels)} if labels else {}),
        "containers": [
            {
                "name": "pytorch",
                "image": lines.options.image,
                "command": command,
                "env": [{"name": "OMP_NUM_THREADS", "value": lines.threads}],
                "resources": {"requests": {"cpu": cpus}, **({"limits": limits} if limits else {})},
                **({"volumeMounts": [{"name": "shared", "mountPath": mount}]} if claim is not None else {}),
            }
        ],
        **(
            {"volumes": [{"name": "shared", "persistentVolumeClaim": {"claimName": claim}}]}
            if claim is not None
            else {}
        ),
    }
    return {"replicas": count, "restartPolicy": "Never", "template": {"spec": spec}}


def _unexpanded(text: str) -> str:
    """Escape a word of a command: Kubernetes replaces ``$(NAME)``, and reads ``$$`` as ``$``."""
    return text.replace("$", "$$")


def _yaml(document: dict[str, Any]) -> str:
    """Return JSON that is YAML too: characters that need an escape have one, also beyond 16 bits."""
    text = json.dumps(document, indent=2, ensure_ascii=False)
    return "".join(one if one.isprintable() or one == "\n" else f"\\U{ord(one):08x}" for one in text)
