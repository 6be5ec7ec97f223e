"""The plan of ``plans.py`` as older versions of the file had it."""

import json
from typing import Any

from plans import PLAN

from heterps_compile.plan.file import to_json


def version_1() -> dict[str, Any]:
    """Return the sample plan as version 1 wrote it."""
    document = json.loads(to_json(PLAN))
    document["version"] = 1
    document["decisions"] = {"cluster": document.pop("cluster")["name"], **document["decisions"]}
    for stage in document["decisions"]["stages"]:
        stage["layers"] = [layer["name"] for layer in stage["layers"]]
    for estimate in document["estimates"]["stages"]:
        del estimate["micro_batch_forward_s"], estimate["micro_batch_backward_s"]
    del document["request"]["forbidden"]
    document["provenance"]["hashes"] = {"cluster": "1" * 64, "model": "a" * 64, "request": "3" * 64}
    return document
