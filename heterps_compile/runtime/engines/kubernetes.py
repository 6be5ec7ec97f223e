"""Kubernetes: the manifest of a JobSet, with a replicated job for every device type; nothing is started.

::

    ConfigMap                what a file of hosts says but the secret: JobSet gives every pod a name beforehand
    PersistentVolumeClaim    where --storage asks for one; it holds the folder, the data and the checkpoints
    JobSet                   a pod a rank; headless service by its ``network``

The secret of the run is the key ``secret`` of a Secret, which is made by hand and which the manifest only names. All is
one List as JSON, which ``kubectl create -f -`` takes as it is.

Left out: talking to a cluster, and installing JobSet (https://jobset.sigs.k8s.io).
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from heterps_compile.errors import InputError
from heterps_compile.escape import printable

from .contract import Capabilities, Engine, Job, RentedAs, Written
from .device_parts import Part, by_type, need_mapping, parts_of
from .pod_hosts import WAIT_FOR_FIRST, hosts_text
from .restarts import check_restarts, resume_words

_NAME = re.compile(r"[a-z](?:[a-z0-9-]{0,22}[a-z0-9])?")
_PAIR = r"[A-Za-z0-9][A-Za-z0-9_./-]{0,252}=[A-Za-z0-9_.-]{0,63}"
_QUANTITY = re.compile(r"[1-9][0-9]{0,8}(?:Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,254}")
_GPU = "nvidia.com/gpu"
_TOLD, _SECRET, _OWN = "/run/heterps/told", "/run/heterps/secret", "/run/heterps/own"
_WAYS = "--select {type}=LABEL=VALUE, or --limit {type}=RESOURCE=N"

_RANK = f"""umask 077
{{ printf "secret = '%s'\\n" "$(cat {_SECRET}/secret)"; cat {_TOLD}/hosts.toml; }} > {_OWN}/hosts.toml
n=$JOB_COMPLETION_INDEX
for host in $HOSTS; do [ "$n" = 0 ] && break; n=$((n-1)); done
{WAIT_FOR_FIRST}exec "$@" --hosts {_OWN}/hosts.toml --host "$host"
"""
"""What a pod does: a file of hosts that is its own, its number among them, and the name of the first."""


@dataclass(frozen=True, slots=True)
class Kubernetes(Engine):
    """Writes a manifest; fields are its options (``launch_options.py``)."""

    name: ClassVar[str] = "kubernetes"
    capabilities: ClassVar[Capabilities] = Capabilities(starts=False)

    python: str = "python3"
    image: str | None = None
    claim: str | None = None
    storage: str | None = None
    mount: str = "/shared"
    run_name: str = "heterps"
    selectors: tuple[tuple[str, str], ...] = ()
    limits: tuple[tuple[str, str], ...] = ()
    max_restarts: int = 0

    def check(self, job: Job) -> None:
        """Check that pods find what the run needs, and that every device type has nodes."""
        if job.options.hosts is not None:
            raise InputError("--hosts means nothing for --on kubernetes, where pods are the hosts; leave it out")
        self._manifest(job)
        check_restarts(job, self.max_restarts)

    def write(self, job: Job) -> Sequence[Written]:
        """Return the manifest, alone: it can be piped."""
        return [Written("", json.dumps(self._manifest(job), indent=2))]

    def _manifest(self, job: Job) -> dict[str, Any]:
        """Return all objects as one List.

        Raises:
            InputError: for a name that Kubernetes does not take, a path that pods do not have, a type without nodes.
        """
        self._check_names()
        parts = parts_of(job)
        chosen = {name: _labels(machine) for name, machine in job.rented.items()}
        selectors = by_type("--select", self.selectors, parts, _PAIR, chosen)
        limits = by_type("--limit", self.limits, parts, _PAIR)
        need_mapping(parts, (selectors, limits), _WAYS)
        words = [self.python, "-m", "heterps_compile", *job.run_words(*resume_words(job, self.max_restarts))]
        outside = next((word for word in words[3:] if word.startswith("/") and not self._is_mounted(word)), None)
        if outside is not None:
            raise InputError(
                f"{printable(outside)!r} lies outside of {printable(self.mount)!r}, which is all that pods share; put "
                f"it there, and mount the volume at the same path here (--mount DIR)"
            )
        names = _pod_names(self.run_name, parts)
        jobs = [
            {
                "name": _job_name(number, part),
                "replicas": 1,
                "template": {
                    "metadata": {"annotations": {"heterps-compile/device-type": part.device}},
                    "spec": {
                        "parallelism": len(part.ranks),
                        "completions": len(part.ranks),
                        "completionMode": "Indexed",
                        "backoffLimit": 0,
                        "template": {
                            "spec": self._pod(
                                job,
                                part,
                                [names[0], *words],
                                selected=selectors[part.device],
                                limited=limits[part.device],
                            )
                        },
                    },
                },
            }
            for number, part in enumerate(parts)
        ]
        failure = {"failurePolicy": {"maxRestarts": self.max_restarts}} if self.max_restarts else {}
        jobset = {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": {"name": self.run_name},
            "spec": {
                "network": {
                    "enableDNSHostnames": True,
                    "subdomain": self.run_name,
                    "publishNotReadyAddresses": True,
                },
                "successPolicy": {"operator": "All"},
                **failure,
                "replicatedJobs": jobs,
            },
        }
        told = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": f"{self.run_name}-hosts"},
            "data": {"hosts.toml": hosts_text([(name, 1) for name in names])},
        }
        return {"apiVersion": "v1", "kind": "List", "items": [told, *self._claims(), jobset]}

    def _check_names(self) -> None:
        for word, value, form in (
            ("--run-name", self.run_name, _NAME),
            ("--claim", self.claim, _NAME),
            ("--image", self.image, _IMAGE),
            ("--storage", self.storage, _QUANTITY),
        ):
            if value is None and word in ("--claim", "--image"):
                raise InputError(f"kubernetes needs {word}: pods run an image with heterps-compile, and share a volume")
            if value is not None and not form.fullmatch(value):
                raise InputError(f"{word} {printable(value)!r} is none that Kubernetes takes here")
        if not re.fullmatch(r"/[A-Za-z0-9_./-]*[A-Za-z0-9_-]", self.mount) or "/.." in self.mount:
            raise InputError(f"--mount {printable(self.mount)!r} is no absolute path of letters, digits and _.-/")

    def _is_mounted(self, path: str) -> bool:
        return path == self.mount or path.startswith(f"{self.mount}/")

    def _claims(self) -> list[dict[str, Any]]:
        if self.storage is None:
            return []
        spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": self.storage}}}
        return [{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": self.claim}, "spec": spec}]

    def _pod(
        self, job: Job, part: Part, words: Sequence[str], *, selected: Sequence[str], limited: Sequence[str]
    ) -> dict[str, Any]:
        """Return what a pod of a device type is; ``words`` are the name of the first pod and the command of a rank."""
        threads = str(job.options.threads)
        limits = {_GPU: "1"} if part.kind == "gpu" and not limited else {}
        limits |= _pairs(limited)
        volumes: list[tuple[str, str, dict[str, Any], bool]] = [
            ("shared", self.mount, {"persistentVolumeClaim": {"claimName": self.claim}}, False),
            ("told", _TOLD, {"configMap": {"name": f"{self.run_name}-hosts"}}, True),
            ("secret", _SECRET, {"secret": {"secretName": f"{self.run_name}-secret"}}, True),
            ("own", _OWN, {"emptyDir": {"medium": "Memory"}}, False),
        ]
        return {
            "restartPolicy": "Never",
            **({"nodeSelector": _pairs(selected)} if selected else {}),
            "containers": [
                {
                    "name": "rank",
                    "image": self.image,
                    "command": ["sh", "-c", *map(_unexpanded, [_RANK, "rank", *words[1:]])],
                    "env": [
                        {"name": "HOSTS", "value": " ".join(str(rank + 1) for rank in part.ranks)},
                        {"name": "FIRST", "value": words[0]},
                        {"name": "OMP_NUM_THREADS", "value": threads},
                    ],
                    "resources": {"requests": {"cpu": threads}, **({"limits": limits} if limits else {})},
                    "volumeMounts": [
                        {"name": name, "mountPath": path, "readOnly": is_read_only}
                        for name, path, _, is_read_only in volumes
                    ],
                }
            ],
            "volumes": [{"name": name, **source} for name, _, source, _ in volumes],
        }


def _unexpanded(text: str) -> str:
    """Return an argument that comes out as it is: Kubernetes puts in variables for ``$(NAME)``, and ``$`` for two."""
    return text.replace("$", "$$")


def _pairs(texts: Sequence[str]) -> Mapping[str, str]:
    return {name: value for name, _, value in (text.partition("=") for text in texts)}


def _job_name(number: int, part: Part) -> str:
    """Return a name that tells the device type as far as Kubernetes takes its letters."""
    letters = re.sub(r"[^a-z0-9]+", "-", part.device.lower()).strip("-")[:16].strip("-")
    return f"t{number}-{letters}" if letters else f"t{number}"


def _labels(machine: RentedAs) -> tuple[str, ...]:
    """Return the labels that the nodes of a cloud have by themselves, of a machine that was chosen."""
    return f"node.kubernetes.io/instance-type={machine.instance}", f"topology.kubernetes.io/region={machine.region}"


def _pod_names(name: str, parts: Sequence[Part]) -> list[str]:
    """Return the names of the pods in the service, in the order of ranks."""
    named = {
        rank: f"{name}-{_job_name(number, part)}-0-{index}.{name}"
        for number, part in enumerate(parts)
        for index, rank in enumerate(part.ranks)
    }
    return [named[rank] for rank in sorted(named)]
