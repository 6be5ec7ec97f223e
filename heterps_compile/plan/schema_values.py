"""The values of ``plan.json``: numbers, and hashes.

Left out: the parts of the file (``schema.py``).
"""

from typing import Annotated

from pydantic import Field

_MOST = 2**63 - 1  # a count has a place among floats, whatever is computed with it

Name = str
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
