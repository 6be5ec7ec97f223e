"""SkyPilot: a job group, of which every task is the machines of one device type; nothing is started.

A task of SkyPilot has nodes that are all alike, so a plan of several device types takes several tasks. A job group runs
them side by side in one region, and gives every node a name beforehand: ``TASK-NODE.GROUP``. A plan of one type is a
group of one task.

What is written is YAML, of documents that are JSON. Its secret is a variable that ``sky jobs launch --secret`` sets; a
node writes it to a file that is its own, and takes it out of its environment.

Left out: talking to SkyPilot.
"""

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from heterps_compile.errors import InputError, RunError
from heterps_compile.escape import printable

from .contract import Capabilities, Engine, Job, RentedAs, Written
from .device_parts import Part, by_type, need_mapping, parts_of
from .pod_hosts import WAIT_FOR_FIRST, hosts_text

_SECRET = "HETERPS_SECRET"  # noqa: S105 - the name of its variable
_NAME = re.compile(r"[a-z](?:[a-z0-9-]{0,22}[a-z0-9])?")
_OFFER = r"(?:accelerators|cpus|memory|instance_type|infra|image_id|disk_size|use_spot)=[A-Za-z0-9_.:/*+-]{1,200}"
_WAYS = "--offer {type}=accelerators=NAME:1, --offer {type}=cpus=8+ or --offer {type}=instance_type=NAME"
_WHOLE = re.compile(r"[1-9][0-9]{0,5}")


@dataclass(frozen=True, slots=True)
class SkyPilot(Engine):
    """Writes a job group; fields are its options (``launch_options.py``)."""

    name: ClassVar[str] = "skypilot"
    capabilities: ClassVar[Capabilities] = Capabilities(starts=False)

    python: str = "python3"
    claim: str | None = None
    mount: str = "/shared"
    run_name: str = "heterps"
    setup: str | None = None
    offers: tuple[tuple[str, str], ...] = ()
    slots: tuple[tuple[str, str], ...] = ()

    def check(self, job: Job) -> None:
        """Check that every device type has an offer, and every rank a node."""
        if job.options.hosts is not None:
            raise InputError("--hosts means nothing for --on skypilot, which starts the machines itself; leave it out")
        self._documents(job)

    def write(self, job: Job) -> Sequence[Written]:
        """Return the job group, alone: it can be piped."""
        return [Written("", "\n---\n".join(map(_yaml, self._documents(job))))]

    def _documents(self, job: Job) -> list[dict[str, Any]]:
        """Return the header of the group and its tasks.

        Raises:
            InputError: for a name that SkyPilot does not take, or a device type without an offer.
            RunError: where ranks would not fill the nodes in their order.
        """
        for word, value in (("--run-name", self.run_name), ("--claim", self.claim)):
            if value is not None and not _NAME.fullmatch(value):
                raise InputError(f"{word} {printable(value)!r} is none that SkyPilot takes here")
        parts = parts_of(job)
        own = {name for name, _ in self.offers}
        chosen = {name: machine for name, machine in job.rented.items() if name not in own}
        words = {name: _offer_words(machine) for name, machine in chosen.items()}
        units = {name: (str(machine.units),) for name, machine in chosen.items()}
        offers = by_type("--offer", self.offers, parts, _OFFER, words)
        slots = by_type("--slots", self.slots, parts, _WHOLE.pattern, units)
        need_mapping(parts, (offers,), _WAYS)
        nodes = self._nodes(parts, {part.device: int((slots[part.device] or ("1",))[-1]) for part in parts})
        text = hosts_text([(address, count) for _, address, count in nodes])
        command = [self.python, "-m", "heterps_compile", *job.run_words()]
        tasks = []
        for number, part in enumerate(parts):
            mine = [str(host) for host, (device, _, _) in enumerate(nodes, 1) if device == part.device]
            tasks.append(
                {
                    "name": f"t{number}",
                    "num_nodes": len(mine),
                    "resources": dict(_offer(offer) for offer in offers[part.device]),
                    **({"volumes": {self.mount: self.claim}} if self.claim is not None else {}),
                    "envs": {"OMP_NUM_THREADS": str(job.options.threads), "FIRST": nodes[0][1]},
                    "secrets": {_SECRET: None},
                    **({"setup": self.setup} if self.setup is not None else {}),
                    "run": _script(command, text, mine),
                }
            )
        return [{"name": self.run_name, "execution": "parallel"}, *tasks]

    def _nodes(self, parts: Sequence[Part], slots: dict[str, int]) -> list[tuple[str, str, int]]:
        """Return device type, name and processes of every node, in the order of their ranks.

        Raises:
            RunError: where a node would have ranks that are not neighbours.
        """
        found: list[tuple[int, str, str, int]] = []
        for number, part in enumerate(parts):
            width = slots[part.device]
            for node, begin in enumerate(range(0, len(part.ranks), width)):
                ranks = part.ranks[begin : begin + width]
                if ranks[-1] - ranks[0] != len(ranks) - 1:
                    raise RunError(
                        f"a node of {printable(part.device)!r} would have ranks {', '.join(map(str, ranks))}, and "
                        f"hosts are filled in the order of ranks; give it fewer (--slots {printable(part.device)}=1)"
                    )
                found.append((ranks[0], part.device, f"t{number}-{node}.{self.run_name}", len(ranks)))
        return [(device, address, count) for _, device, address, count in sorted(found)]


def _offer_words(machine: RentedAs) -> tuple[str, ...]:
    """Return what ``--offer`` would say of a machine that was chosen."""
    spot = ("use_spot=true",) if machine.is_spot else ()
    return (f"infra={machine.provider}/{machine.region}", f"instance_type={machine.instance}", *spot)


def _offer(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    if name == "use_spot":
        if value not in ("true", "false"):
            raise InputError(f"--offer use_spot={value!r} is neither true nor false")
        return name, value == "true"
    return name, int(value) if _WHOLE.fullmatch(value) else value


def _script(words: Sequence[str], hosts: str, numbers: Sequence[str]) -> str:
    """Return what a node runs."""
    return (
        "umask 077\n"
        "own=$(mktemp -d)\n"
        f'{{ printf "secret = \'%s\'\\n" "${_SECRET}"; printf %s {shlex.quote(hosts)}; }} > "$own/hosts.toml"\n'
        f"unset {_SECRET}\n"
        f"hosts=({' '.join(numbers)})\n"
        f"{WAIT_FOR_FIRST}"
        f'exec {shlex.join(words)} --hosts "$own/hosts.toml" --host "${{hosts[$SKYPILOT_NODE_RANK]}}"\n'
    )


def _yaml(document: dict[str, Any]) -> str:
    """Return JSON that is YAML too: what lies beyond 16 bits is one escape there, and two in JSON."""
    text = json.dumps(document, indent=2, ensure_ascii=False)
    return "".join(one if one.isprintable() or one == "\n" else f"\\U{ord(one):08x}" for one in text)
