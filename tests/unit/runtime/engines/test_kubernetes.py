"""The manifest, held to what the published schemas of JobSet v1alpha2, batch/v1 and v1 require and know.

The schemas of this file are the parts of those that are used: the CRD in kubernetes-sigs/jobset
(config/components/crd/bases), and the OpenAPI of Kubernetes 1.31.
"""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from engine_jobs import HOSTILE, make_job

from heterps_compile.errors import InputError
from heterps_compile.runtime.engines.contract import RentedAs
from heterps_compile.runtime.engines.kubernetes import Kubernetes
from heterps_compile.runtime.launch.hosts_file import check_hosts, read_hosts

TYPES = (("cpu", "pool=cores"), ("v100", "pool=gpus"))
TEXT: dict[str, Any] = {"type": "string"}
FLAG = {"type": "boolean"}
WHOLE = {"type": "integer"}
TEXTS = {"type": "object", "additionalProperties": TEXT}


def of(required: str = "", **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


def many(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


META = of(name=TEXT, annotations=TEXTS)
POD = of(
    "containers",
    restartPolicy={"enum": ["Never", "OnFailure"]},  # of a Job
    nodeSelector=TEXTS,
    containers=many(
        of(
            "name",
            name=TEXT,
            image=TEXT,
            command=many(TEXT),
            env=many(of("name", name=TEXT, value=TEXT)),
            resources=of(requests=TEXTS, limits=TEXTS),
            volumeMounts=many(of("name mountPath", name=TEXT, mountPath=TEXT, readOnly=FLAG)),
        )
    ),
    volumes=many(
        of(
            "name",
            name=TEXT,
            persistentVolumeClaim=of("claimName", claimName=TEXT),
            configMap=of(name=TEXT),
            secret=of(secretName=TEXT),
            emptyDir=of(medium=TEXT),
        )
    ),
)
JOB = of(
    "template",
    parallelism=WHOLE,
    completions=WHOLE,
    completionMode={"enum": ["Indexed", "NonIndexed"]},
    backoffLimit=WHOLE,
    template=of(metadata=META, spec=POD),
)
JOBSET = of(
    apiVersion={"const": "jobset.x-k8s.io/v1alpha2"},
    kind={"const": "JobSet"},
    metadata=META,
    spec=of(
        network=of(enableDNSHostnames=FLAG, subdomain=TEXT, publishNotReadyAddresses=FLAG),
        successPolicy=of("operator", operator={"enum": ["All", "Any"]}),
        failurePolicy=of(maxRestarts=WHOLE),
        replicatedJobs=many(of("name template", name=TEXT, replicas=WHOLE, template=of(metadata=META, spec=JOB))),
    ),
)
HEAD = {"apiVersion": {"const": "v1"}, "metadata": META}
SCHEMAS = {
    "JobSet": JOBSET,
    "ConfigMap": of(kind=TEXT, data=TEXTS, **HEAD),
    "PersistentVolumeClaim": of(
        kind=TEXT, spec=of(accessModes=many(TEXT), resources=of(requests=TEXTS)), **HEAD
    ),
}  # fmt: skip


def kubernetes(**options: Any) -> Kubernetes:
    return Kubernetes(**({"image": "reg/heterps:1", "claim": "data", "mount": "/data", "selectors": TYPES} | options))


def manifest(job: Any, **options: Any) -> dict[str, dict[str, Any]]:
    """Return the objects of the manifest by kind, each checked."""
    (written,) = kubernetes(**options).write(job)
    assert (written.title, written.text[0]) == ("", "{")  # what kubectl takes for JSON
    items = json.loads(written.text)["items"]
    for item in items:
        jsonschema.validate(item, SCHEMAS[item["kind"]])
    return {item["kind"]: item for item in items}


def test_a_replicated_job_for_every_device_type_with_its_nodes_and_a_pod_for_every_rank(tmp_path):
    here = str(tmp_path)
    job = make_job(directory=f"{here}/m.heterps", train=f"{here}/t.py", checkpoint=here, threads=2)
    found = manifest(job, mount=here, storage="10Gi", max_restarts=3, limits=(("cpu", "memory=4Gi"),))
    first, second = found["JobSet"]["spec"]["replicatedJobs"]
    assert [(one["name"], one["template"]["spec"]["completions"]) for one in (first, second)] == [
        ("t0-cpu", 2), ("t1-v100", 1)
    ]  # fmt: skip
    pods = [one["template"]["spec"]["template"]["spec"] for one in (first, second)]
    assert [pod["nodeSelector"] for pod in pods] == [{"pool": "cores"}, {"pool": "gpus"}]
    assert [pod["containers"][0]["resources"] for pod in pods] == [
        {"requests": {"cpu": "2"}, "limits": {"memory": "4Gi"}},
        {"requests": {"cpu": "2"}, "limits": {"nvidia.com/gpu": "1"}},
    ]
    assert found["JobSet"]["spec"]["failurePolicy"] == {"maxRestarts": 3}
    assert "--resume" in pods[0]["containers"][0]["command"]
    assert found["PersistentVolumeClaim"]["spec"]["resources"]["requests"] == {"storage": "10Gi"}
    assert 'address = "heterps-t1-v100-0-0.heterps"' in found["ConfigMap"]["data"]["hosts.toml"]


def test_a_type_that_nothing_is_said_of_has_the_nodes_of_the_machine_that_was_chosen_for_it():
    p3 = RentedAs("aws", "us-east-1", "p3.8xlarge", is_spot=False, units=4)
    job = replace(make_job(), rented={"v100": p3, "cpu": p3})
    jobs = manifest(job, selectors=TYPES[:1])["JobSet"]["spec"]["replicatedJobs"]
    of_cpu, of_gpu = (one["template"]["spec"]["template"]["spec"]["nodeSelector"] for one in jobs)
    assert of_gpu == {
        "node.kubernetes.io/instance-type": "p3.8xlarge",
        "topology.kubernetes.io/region": "us-east-1",
    }
    assert "topology.kubernetes.io/region" not in of_cpu  # what is said goes before


@pytest.mark.parametrize(("part", "index", "host"), [(0, 0, "1"), (0, 1, "2"), (1, 0, "3")])
def test_what_a_pod_runs_makes_its_file_of_hosts_and_knows_its_number(part, index, host, tmp_path):
    """Its script, with folders of ours in the place of its volumes, and with variables put in as Kubernetes does."""
    directory = f"/data/{HOSTILE}$(HOSTS)$$"
    job = make_job(directory=directory)
    found = manifest(job)
    container = found["JobSet"]["spec"]["replicatedJobs"][part]["template"]["spec"]["template"]["spec"]["containers"][0]
    environment = {one["name"]: one["value"] for one in container["env"]}

    def put_in(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else environment.get(found[1], found[0])

    words = [re.sub(r"\$\$|\$\(([^)]*)\)", put_in, word) for word in container["command"]]
    words = [word.replace("/run/heterps/", f"{tmp_path}/") for word in words]
    for name in ("told", "secret", "own"):
        (tmp_path / name).mkdir()
    (tmp_path / "told" / "hosts.toml").write_text(found["ConfigMap"]["data"]["hosts.toml"])
    (tmp_path / "secret" / "secret").write_text("0123456789" * 4 + "\n")
    rank = tmp_path / "rank"
    rank.write_text("#!/bin/sh\nprintf '%s|' \"$@\"\n")
    rank.chmod(0o700)
    (tmp_path / "python3").symlink_to(sys.executable)
    words[words.index("rank") + 1] = str(rank)
    environment |= {"FIRST": "localhost", "JOB_COMPLETION_INDEX": str(index), "PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    own = tmp_path / "own" / "hosts.toml"
    assert done.stdout == f"-m|heterps_compile|run|{directory}|--data|random|--hosts|{own}|--host|{host}|"
    check_hosts(read_hosts(own), job.prepared)
    assert not Path("/tmp/owned").exists()  # noqa: S108 - what the name would make a shell do


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"image": None}, "kubernetes.*--image"),
        ({"claim": None}, "--claim"),
        ({"run_name": "Up"}, "--run-name 'Up'.*Kubernetes"),
        ({"image": "a b"}, "--image 'a b'"),
        ({"storage": "much"}, "--storage 'much'"),
        ({"mount": "data"}, "--mount 'data'"),
        ({"mount": "/other"}, "'/data/m.heterps'.*'/other'"),
        ({"selectors": TYPES[:1]}, r"'v100'.*ranks 2\b.*--select"),
        ({"selectors": (*TYPES, ("cpu", "a b=c"))}, "'a b=c'"),
    ],
)
def test_what_kubernetes_would_not_take_is_refused(options, said):
    with pytest.raises(InputError, match=said):
        kubernetes(**options).check(make_job())


def test_other_ways_to_name_machines_and_restarts_without_checkpoints_are_refused():
    with pytest.raises(InputError, match=r"--hosts.*--on"):
        kubernetes().check(make_job(hosts="h.toml"))
    with pytest.raises(InputError, match=r"--max-restarts 1\b.*--checkpoint"):
        kubernetes(max_restarts=1).check(make_job(train="/data/t.py"))
