"""Older versions of ``plan.json``, brought to today's one step at a time.

A step takes the JSON of its version, as it was read, and gives that of the next. What an older version did not know
stays unknown: nothing is made up. The schema of the newest version judges the result, so a step need not check what
it leaves alone.

Left out: newer versions than ours (``file.py`` refuses them with advice).
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from .schema import VERSION


def migrate(document: dict[str, Any], version: int) -> dict[str, Any]:
    """Bring a document of an older version to today's; the document given is left as it is."""
    for step in range(version, VERSION):
        document = MIGRATIONS[step](document)
    return document


def _from_1(document: dict[str, Any]) -> dict[str, Any]:
    """Version 2 knows the pool's device types, fingerprints, forbidden pairs, hashes of weights and profile."""
    decisions, provenance = document.get("decisions"), document.get("provenance")
    changed: dict[str, Any] = {"version": 2, "cluster": {"name": None, "devices": []}}
    if isinstance(decisions, dict):
        changed["cluster"]["name"] = decisions.get("cluster")
        changed["decisions"] = {key: item for key, item in decisions.items() if key != "cluster"}
        if isinstance(decisions.get("stages"), list):
            changed["decisions"]["stages"] = [_stage_from_1(stage) for stage in decisions["stages"]]
    if isinstance(document.get("request"), dict):
        changed["request"] = {"forbidden": [], **document["request"]}
    if isinstance(provenance, dict) and isinstance(provenance.get("hashes"), dict):
        # The hashes of pools and options left parts out then, so they can be compared with none of today's.
        kept = {key: item for key, item in provenance["hashes"].items() if key not in ("cluster", "request")}
        changed["provenance"] = {**provenance, "hashes": kept}
    return document | changed


def _stage_from_1(stage: Any) -> Any:
    if not isinstance(stage, dict) or not isinstance(stage.get("layers"), list):
        return stage
    return stage | {"layers": [{"name": name, "fingerprint": ""} for name in stage["layers"]]}


def _from_2(document: dict[str, Any]) -> dict[str, Any]:
    """Version 3 keeps the whole pool by value; of version 2's, data sheets and links are not known."""
    cluster = document.get("cluster")
    changed: dict[str, Any] = {"version": 3}
    if isinstance(cluster, dict):
        devices = cluster.get("devices")
        if isinstance(devices, list):
            devices = [device | {"data_sheet": None} if isinstance(device, dict) else device for device in devices]
        changed["cluster"] = cluster | {"devices": devices, "links": [], "parameter_server": None}
    return document | changed


def _from_3(document: dict[str, Any]) -> dict[str, Any]:
    """Version 4 lists the times of micro-batches by count; version 3 had those of the schedule's count alone."""
    estimates, count = document.get("estimates"), _count(document)
    changed: dict[str, Any] = {"version": 4}
    if isinstance(estimates, dict) and isinstance(estimates.get("stages"), list):
        stages = [_times_from_3(stage, count) for stage in estimates["stages"]]
        changed["estimates"] = estimates | {"stages": stages}
    return document | changed


def _count(document: dict[str, Any]) -> Any:
    decisions = document.get("decisions")
    schedule = decisions.get("schedule") if isinstance(decisions, dict) else None
    return schedule.get("micro_batches") if isinstance(schedule, dict) else None


def _times_from_3(stage: Any, count: Any) -> Any:
    if not isinstance(stage, dict):
        return stage
    names = ("forward_s", "backward_s", "delay_s", "overlap_s")
    times = {name: stage.get(f"micro_batch_{name}", 0.0) for name in names}
    gone = {*(f"micro_batch_{name}" for name in names), "delay_s", "overlap_s"}
    changed = {key: item for key, item in stage.items() if key not in gone}
    if times["forward_s"]:
        changed["times"] = [{"count": count, **times}]
    if isinstance(stage.get("mixed"), list):
        changed["mixed"] = [_times_from_3(of_type, count) for of_type in stage["mixed"]]
    return changed


MIGRATIONS: Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]] = MappingProxyType(
    {1: _from_1, 2: _from_2, 3: _from_3}
)
"""By the version they start from: one for every version before today's."""
