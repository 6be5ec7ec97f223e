"""Times that were measured before: a file in which a layer is found by all that its time depends on.

That is its key and batch, the device, the runtime and its version, training or inference, threads and clock. The file
is read strictly, as a profile is, and replaced as a whole.

Left out: dropping old entries; delete the file to measure anew.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from heterps_compile.cost.profile import Timing
from heterps_compile.errors import InputError
from heterps_compile.escape import one_line
from heterps_compile.plan.whole_file import write_whole

from .chain import LayerTiming

_FORMAT = "heterps-compile profile cache"
_MOST_BYTES = 64 << 20

Seconds = Annotated[float, Field(ge=0, le=1e6)]
Pair = Annotated[list[Seconds], Field(min_length=2, max_length=2)]


class _Entry(BaseModel):
    """Median and spread of each."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    forward: Pair
    backward: Pair | None
    accumulate: Pair | None


class _CacheFile(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    format: Literal["heterps-compile profile cache"]
    version: Literal[1]
    times: Annotated[dict[Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")], _Entry], Field(max_length=1_000_000)]


class Cache:
    """Times by what they depend on; without a file it forgets them with itself.

    Attributes:
        path: The file; None for none.
    """

    def __init__(self, path: Path | None) -> None:
        """Read the file, where there is one.

        Raises:
            InputError: where it is no such file.
        """
        self.path = path
        self._times: dict[str, LayerTiming] = {} if path is None or not path.exists() else _read(path)

    def find(self, identity: Sequence[object]) -> LayerTiming | None:
        """Return the times of a layer, or None."""
        return self._times.get(_digest(identity))

    def keep(self, identity: Sequence[object], timing: LayerTiming) -> None:
        """Keep the times of a layer."""
        self._times[_digest(identity)] = timing

    def save(self) -> None:
        """Write the file, as a whole or not at all.

        Raises:
            InputError: where it cannot be written.
        """
        if self.path is None:
            return
        times = {
            digest: {name: _pair(getattr(timing, name)) for name in ("forward", "backward", "accumulate")}
            for digest, timing in sorted(self._times.items())
        }
        write_whole(self.path, json.dumps({"format": _FORMAT, "version": 1, "times": times}, indent=0) + "\n")


def _read(path: Path) -> dict[str, LayerTiming]:
    where = f"the cache {str(path)!r}"
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise InputError(f"{where} has more than {_MOST_BYTES >> 20} MiB; delete it to measure anew")
        read = _CacheFile.model_validate_json(content)
    except OSError as error:
        raise InputError(f"cannot read {where}: {error.strerror}") from error
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in fault["loc"]) or "the file"
        raise InputError(
            one_line(f"{where} is none of a profile: {place}: {fault['msg']}; delete it to measure anew")
        ) from error
    return {
        digest: LayerTiming(Timing(*entry.forward), _timing(entry.backward), _timing(entry.accumulate))
        for digest, entry in read.times.items()
    }


def _timing(pair: Sequence[float] | None) -> Timing | None:
    return None if pair is None else Timing(pair[0], pair[1])


def _pair(timing: Timing | None) -> list[float] | None:
    return None if timing is None else [timing.median_s, timing.spread_s]


def _digest(identity: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps(list(identity), default=_plain).encode()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return sorted(value.items())
    raise TypeError(f"{type(value).__name__} is no part of what a time depends on")
