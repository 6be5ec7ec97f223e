"""A diff of two plans as a JSON document. Its keys are a promise: keys may be added, none goes or changes its meaning.

A change in percent is null where the old number is 0, or the two are in different currencies.

Left out: words for people (``diff_words.py``).
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from math import isfinite
from typing import Any

from heterps_compile.plan.diff import PlanDiff, StageChange

FORMAT_VERSION = 1


def diff_document(changes: PlanDiff, old: str, new: str, failed: Sequence[str] = ()) -> str:
    """Return the text of the document.

    Args:
        changes: What changed.
        old: Where the old plan is from.
        new: Where the new one is from.
        failed: What of it counts as a failure, as ``--fail-on`` wrote it.
    """
    document = {
        "format_version": FORMAT_VERSION,
        "old": old,
        "new": new,
        "is_same": changes.is_empty,
        "failed": list(failed),
        "moved": [asdict(change) for change in changes.moved],
        "added": [asdict(layer) for layer in changes.added],
        "removed": [asdict(layer) for layer in changes.removed],
        "altered": list(changes.altered),
        "renamed": [{"old": old_name, "new": new_name} for old_name, new_name in changes.renamed.items()],
        "regrouped": [asdict(change) for change in changes.regrouped],
        "stage_events": [asdict(event) for event in changes.events],
        "stages": [_stage(stage) for stage in changes.stages],
        "settings": [asdict(change) for change in changes.settings],
        "estimates": {
            number.name: {
                "unit": number.unit or None,
                "old": number.old,
                "new": number.new,
                "change_percent": number.percent if isfinite(number.percent) else None,
            }
            for number in changes.numbers
        },
        "changed_hashes": list(changes.hashes),
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def _stage(stage: StageChange) -> dict[str, Any]:
    old = stage.old
    return {
        "stage": stage.index,
        "old_stage": stage.origin,
        "device": stage.new.device,
        "old_device": None if old is None else old.device,
        "replicas": stage.new.replicas,
        "old_replicas": None if old is None else old.replicas,
        "backend": stage.new.backend,
        "old_backend": None if old is None else old.backend,
    }
