"""Plans drawn as text, so that a diff of two has its answer in sight: ``"2 cpu: a b | 1 v100: c"``.

Every layer is of its own structure: its fingerprint is made from its name, primes left out, so that ``a'`` is the same
layer as ``a`` under another name.
"""

import hashlib
from dataclasses import replace

from plans import PLAN

from heterps_compile.plan.plan import MIXED, Plan
from heterps_compile.plan.planned_schedule import Schedule
from heterps_compile.plan.planned_stage import PlannedStage

PRICES = {device.name: device.price_per_hour for device in PLAN.devices}
KINDS = {device.name: device.kind for device in PLAN.devices}


def fingerprint(name: str) -> str:
    digest = hashlib.sha256(name.rstrip("'").encode()).hexdigest()
    return f"{digest[:12]}-{digest[12:24]}-{digest[24:36]}"


def drawn(text: str, batch_s: float = 0.004) -> Plan:
    """Return a plan of stages ``REPLICAS DEVICE: LAYERS``, each of which takes so many seconds for a batch of 64."""
    stages = []
    for index, part in enumerate(text.split("|")):
        head, _, layers = part.partition(":")
        replicas, device = head.split()
        stages.append(
            PlannedStage(
                index=index,
                device=device,
                layers=tuple(layers.split()),
                kind=KINDS[device],
                backend="torch",
                replicas=int(replicas),
                compute_s=batch_s,
                price_per_hour=int(replicas) * PRICES[device],
                memory=PLAN.stages[0].memory,
            )
        )
    return planned(stages)


def planned(stages: list[PlannedStage]) -> Plan:
    """Return a plan of such stages whose estimates agree with each other."""
    names = [name for stage in stages for name in stage.layers]
    price, throughput = sum(stage.price_per_hour for stage in stages), 64 / max(stage.time_s for stage in stages)
    return replace(
        PLAN,
        request=replace(PLAN.request, max_stages=8),
        graph_outputs=(),
        backend=MIXED if len({stage.backend for stage in stages}) > 1 else stages[0].backend,
        stages=tuple(replace(stage, index=index) for index, stage in enumerate(stages)),
        schedule=Schedule("gpipe", 4, "drawn", 0.009),
        throughput_samples_per_s=throughput,
        value=price / 3600 / throughput * 1e6,
        bound=0.0,
        steady_bound=0.0,
        bound_of_all_orders=0.0,
        unused_devices=tuple(d for d in PRICES if d not in {stage.device for stage in stages}),
        fingerprints={name: fingerprint(name) for name in names},
    )
