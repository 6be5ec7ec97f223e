"""Measured times in place of estimated ones: which profile speaks for which type of a pool.

What one profile says of a device as a whole replaces the pool's figures: the parallel fractions, where their errors are
small; those of single layers are in ``layer_fractions.py``. Its link, which is one between processes of a machine,
replaces the network of a pool that describes this machine; it says nothing of others.

Left out: the times of layers (``layer_times.py``); memory, and prices, which stay those of the pool.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from heterps_compile.cluster.devices import Cluster, DeviceType
from heterps_compile.cluster.local import SOURCE
from heterps_compile.errors import InputError
from heterps_compile.ir.graph import OpKind

from .layer_cost import LayerCost
from .precision import FULL, product_dtype
from .profile import DeviceProfile, LayerPoint, LayerProfile
from .roofline import layer_phases

ProfileSpec = str | Path | Mapping[str, str | Path]
"""How a caller names profiles; see :func:`read_measurements`."""


@dataclass(frozen=True, slots=True)
class Measurements:
    """Which profile speaks for which type of a pool.

    Attributes:
        devices: The profile of a type, by the type's name.
        sha256: Of all of them, for a plan to say what it was made from.
        versions: Of what ran the layers, by the type's name; a profile need not say.
    """

    devices: Mapping[str, DeviceProfile]
    sha256: str
    versions: Mapping[str, str] = field(default_factory=dict)

    def correct(self, cluster: Cluster) -> Cluster:
        """Return the pool with measured parallel fractions, and this machine's own with its measured link."""
        return replace(cluster, device_types=tuple(self._correct(d, cluster) for d in cluster.device_types))

    def _correct(self, device: DeviceType, cluster: Cluster) -> DeviceType:
        profile = self.devices.get(device.name)
        if profile is None:
            return device
        if profile.compute_parallel is not None and profile.compute_parallel.is_usable:
            device = replace(device, compute_parallel=profile.compute_parallel.value)
        if profile.data_parallel is not None and profile.data_parallel.is_usable:
            device = replace(device, data_parallel=profile.data_parallel.value)
        if profile.link is not None and cluster.source == SOURCE:
            link = profile.link
            device = replace(device, network_bytes_per_s=link.bytes_per_s, network_latency_s=link.latency_s)
        return device


def assign_profiles(cluster: Cluster, profiles: Sequence[tuple[str, DeviceProfile]]) -> Measurements:
    """Assign profiles to the device types that they measured.

    Args:
        cluster: The pool.
        profiles: Each with the type it is for; "" for the type of its name, else the only one of its kind.

    Raises:
        UnknownNameError: for an unknown type.
        InputError: where a type is not to be told, or two profiles speak for one.
    """
    devices: dict[str, DeviceProfile] = {}
    for asked, profile in profiles:
        name = cluster.device_type(asked).name if asked else _type_of(cluster, profile)
        if name in devices:
            raise InputError(
                f"two profiles are for the device type {name!r}, of {devices[name].name!r} and of {profile.name!r}; "
                f"give one, or say which type each is for (--profile TYPE=FILE)"
            )
        devices[name] = profile
    parts = [f"{name} {_identity(devices[name])}" for name in sorted(devices)]
    return Measurements(devices, hashlib.sha256("\n".join(parts).encode()).hexdigest())


def _identity(profile: DeviceProfile) -> str:
    """Return all that a profile says, and what came later only where it says it, so that plans hold."""
    parts = [repr(profile)] if profile.precision == FULL else [repr(profile), profile.precision]
    fractions = [(layer.compute_parallel, layer.data_parallel) for layer in profile.layers]
    if any(own is not None for pair in fractions for own in pair):
        parts.append(repr(fractions))
    if profile.crowding is not None:
        parts.append(repr(profile.crowding))
    served = [layer.served for layer in profile.layers]
    if any(served):
        parts.append(repr(served))
    if profile.step_rates is not None:
        parts.append(repr(profile.step_rates))
    return " ".join(parts)


def read_measurements(cluster: Cluster, profile: ProfileSpec) -> Measurements:
    """Read profiles and say which type of a pool each is for.

    Args:
        cluster: The pool.
        profile: A file; files by the name of the type each is for; or a list of them as text, commas between,
            ``TYPE=FILE`` where a type is named.

    Raises:
        UnknownNameError: for an unknown type.
        InputError: where a file cannot be read, or a type is not to be told.
    """
    from .profile_file import read_profile  # noqa: PLC0415 - pydantic only where there are profiles

    found = [(name, read_profile(path)) for name, path in profile_files(profile)]
    measurements = assign_profiles(cluster, [(name, device) for name, read in found for device in read.devices])
    ran = {id(device): read.versions.get(device.backend) for _, read in found for device in read.devices}
    versions = {name: ran[id(device)] for name, device in measurements.devices.items()}
    return replace(measurements, versions={name: version for name, version in versions.items() if version})


def profile_files(profile: ProfileSpec) -> list[tuple[str, Path]]:
    """Return the files that a caller names, each with the type it is for, "" where none is named."""
    if isinstance(profile, Mapping):
        return [(name, Path(path)) for name, path in profile.items()]
    if isinstance(profile, Path) or Path(profile).exists():
        return [("", Path(profile))]
    return [(name, Path(path)) for name, _, path in (part.rpartition("=") for part in profile.split(","))]


def _type_of(cluster: Cluster, profile: DeviceProfile) -> str:
    names = [device.name for device in cluster.device_types]
    if profile.name in names:
        return profile.name
    alike = [device.name for device in cluster.device_types if device.kind == profile.kind]
    if len(alike) == 1:
        return alike[0]
    has = (
        f"has {len(alike)} types of that kind ({', '.join(alike)})" if alike else f"has none of it ({', '.join(names)})"
    )
    raise InputError(
        f"the profile is of {profile.name!r}, a {profile.kind}, and the pool {cluster.name!r} {has}; say which type it "
        f"is for (--profile TYPE=FILE)"
    )


def calibrate(profile: DeviceProfile, device: DeviceType, batch: int, *, training: bool) -> Mapping[str, float]:
    """Return measured over estimated by kind of layer, and over all of them under ""."""
    by_kind: dict[str, list[float]] = {}
    for layer in profile.layers:
        point = min(layer.points, key=lambda point: abs(math.log(point.batch / batch)))
        dtype = product_dtype(layer.kind, layer.dtype, profile.precision)
        estimate = layer_phases(_cost(layer, point), device, dtype, training=training)
        measured = layer.phases(point.batch, training=training)
        both = measured.whole_s, estimate.whole_s
        if layer.kind == OpKind.EMBEDDING:  # whose backward may make the gradient of a table of any size
            both = measured.forward_s, estimate.forward_s
        if estimate.whole_s > 0:
            by_kind.setdefault(layer.kind, []).append(both[0] / both[1])
    ratios = {kind: median(found) for kind, found in by_kind.items()}
    return {**ratios, "": median([ratio for found in by_kind.values() for ratio in found] or [1.0])}


def _cost(layer: LayerProfile, point: LayerPoint) -> LayerCost:
    """Return the work of a measured layer, as far as the roofline wants it."""
    return LayerCost(
        flops=point.flops,
        parameter_bytes=0,
        touched_bytes=0,
        input_bytes=0,
        output_bytes=0,
        moved_bytes=point.moved_bytes,
        operations=layer.operations,
    )
