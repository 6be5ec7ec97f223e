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


MIGRATIONS: Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]] = MappingProxyType({1: _from_1, 2: _from_2})
"""By the version they start from: one for every version before today's."""
