"""Parallel fractions of layers on the types of a pool: which layers have their own, and which that of their type.

A layer has its own alpha on a type where a profile of the type measured one that differs from the type's by more than
its error; likewise beta. Every other layer has that of its type, and is named.

Left out: measuring (``profiling/replicas.py``); what a stage makes of them (``replicas.py``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from heterps_compile.cluster.devices import Cluster, DeviceType
from heterps_compile.escape import printable, shorten

from .problem import Floats
from .profile import DeviceProfile, Fitted, LayerProfile

_SHOWN = 6
_NAME_WIDTH = 40


@dataclass(frozen=True, slots=True)
class Kind:
    """Alpha or beta.

    Attributes:
        field: Of a layer's profile, and of a device type.
        what: Replicas divide, in words.
        letter: As in the paper.
    """

    field: str
    what: str
    letter: str

    def of_layer(self, layer: LayerProfile | None) -> Fitted | None:
        """Return what was measured of a layer; None where nothing was."""
        found: Fitted | None = None if layer is None else getattr(layer, self.field)
        return found

    def of_type(self, device: DeviceType) -> float:
        """Return the fraction of a device type."""
        return float(getattr(device, self.field))


ALPHA = Kind("compute_parallel", "computation", "alpha")
BETA = Kind("data_parallel", "data movement", "beta")


def layer_fractions(
    kind: Kind, pool: Cluster, profiles: Mapping[str, DeviceProfile], keys: Sequence[str]
) -> Floats | None:
    """Return [L, T], the fraction of every layer on every type; None where all have that of their type.

    Args:
        kind: Alpha or beta.
        pool: The types, with what profiles say of them as a whole.
        profiles: By the type's name.
        keys: Of the layers.
    """
    types = [kind.of_type(device) for device in pool.device_types]
    fractions = np.tile(np.array(types, np.float64), (len(keys), 1))
    has_own = False
    for t, device in enumerate(pool.device_types):
        profile = profiles.get(device.name)
        for i, key in enumerate(keys if profile is not None else ()):
            own = kind.of_layer(profile.by_key.get(key) if profile else None)
            if own is not None and own.differs_from(types[t]):
                fractions[i, t] = own.value
                has_own = True
    return fractions if has_own else None


def fraction_notes(
    kind: Kind, pool: Cluster, profiles: Mapping[str, DeviceProfile], keys: Sequence[str], names: Sequence[str]
) -> tuple[str, ...]:
    """Say of every type with measured fractions of layers how many have their own, and name those that have not."""
    notes = []
    for device in pool.device_types:
        profile = profiles.get(device.name)
        if profile is None:
            continue
        found = [kind.of_layer(profile.by_key.get(key)) for key in keys]
        if all(own is None for own in found):
            continue
        of_type = kind.of_type(device)
        others = [
            name for name, own in zip(names, found, strict=True) if own is not None and not own.differs_from(of_type)
        ]
        unmeasured = [name for name, own in zip(names, found, strict=True) if own is None]
        count = len(names) - len(others) - len(unmeasured)
        parts = [f"the {kind.letter} of {kind.what} on {device.name!r}: {count} of {len(names)} layers have their own"]
        if others:
            parts.append(
                f"{len(others)} take the type's {of_type:.3g}, from which theirs differs by no more than its error "
                f"({_list(others)})"
            )
        if unmeasured and kind is ALPHA:
            parts.append(f"{len(unmeasured)} take the type's {of_type:.3g}, as theirs was not measured")
        notes.append("; ".join(parts))
    return tuple(notes)


def _list(names: Sequence[str]) -> str:
    shown = ", ".join(shorten(printable(name), _NAME_WIDTH) for name in names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown}, and {len(names) - _SHOWN} more"
