"""The values of the trial that a training file runs in.

Such a file names what can be tuned, with the values of a plain run::

    from heterps_compile.tuning.trial_values import trial_values

    values = trial_values({"lr": 1e-3, "optimizer": "adam"})

Under ``heterps-compile run`` these are the values; under ``heterps-compile tune`` those of the space's ``train.`` part
stand in their place, by their names without it, and those that are not named here come along.

Left out: where the values come from (``trial_run.py``).
"""

import json
import os
from collections.abc import Mapping
from typing import Any

VARIABLE = "HETERPS_TRIAL_VALUES"
"""What the processes of a trial find its values in, as JSON."""


def trial_values(usual: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values to train with.

    Args:
        usual: By name, those of a run that is no trial.
    """
    return {**usual, **json.loads(os.environ.get(VARIABLE, "{}"))}
