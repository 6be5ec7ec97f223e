"""What the parts of ``plan.json`` are made of: words of which there are so many, numbers with limits, rules, hashes.

Left out: the parts themselves (``schema.py``).
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field

from heterps_compile.errors import HeterpsError
from heterps_compile.sync_rules.assignment import parse_rule
from heterps_compile.sync_rules.rule_text import rule_text

from .request import synchronisation_text

_MOST = 2**63 - 1  # a count has a place among floats, whatever is computed with it

# Names of which there are so many and no more; methods, backends and kinds of devices may be a third party's.
Objective = Literal["cost", "price", "throughput", "latency", "max-load"]
Mode = Literal["inference", "training"]
Precision = Literal["fp32", "tf32", "bf16", "fp16"]
Recomputation = Literal["auto", "never", "always"]
Reading = Literal["steady-state", "one-batch-alone"]
Optimizer = Literal["adam", "sgd", "momentum", "adafactor", "adam-8bit"]
Provisioner = Literal["exact", "closed-form", "newton"]
Tables = Literal["auto", "held", "served", "cheapest"]
ScheduleName = Literal["gpipe", "1f1b", "interleaved-1f1b", "zero-bubble"]

Name = str
Exactness = Literal["exact", "bounded", "any"]


def _as_rules(text: str) -> str:
    """Return rules in the one form that requests have them in.

    Raises:
        ValueError: where they are none.
    """
    try:
        return synchronisation_text(text)
    except HeterpsError as error:
        raise ValueError(str(error)) from error


def _as_rule(text: str) -> str:
    try:
        return rule_text(parse_rule(text))
    except HeterpsError as error:
        raise ValueError(str(error)) from error


Synchronisation = Annotated[str, AfterValidator(_as_rules)]
Rule = Annotated[str, AfterValidator(_as_rule)]
Count = Annotated[int, Field(ge=0, le=_MOST)]
Positive = Annotated[int, Field(ge=1, le=_MOST)]
Amount = Annotated[float, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0, le=1e15)]
"""More is nobody's time, and overflows where times are added up, or told in nanoseconds."""
Rate = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Sha256OrNone = Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]
Fingerprint = Annotated[str, Field(pattern=r"^([0-9a-f]{12}-[0-9a-f]{12}-[0-9a-f]{12})?$")]

STRICT = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)
"""Of every part of the file."""
