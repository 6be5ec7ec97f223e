"""Measured times in place of estimated ones: what profiles say of the layers of a model on the types of a pool.

A layer's time on a type, by the first rule that holds:

1. **measured**: a profile of the type has a layer of its key; the time is read at the graph's batch.
2. **calibrated**: a profile of the type has layers of its kind, or any at all; the roofline's estimate is multiplied by
   the median of measured over estimated, over those layers at the measured batch that is nearest.
3. **estimated**: the roofline alone.

In training the backward is the measured one. A profile of inference lends training its forward, and the backward is
taken to be twice that, as the roofline has it.

What one profile says of a device as a whole replaces the pool's figures: the parallel fractions, where their errors are
small. Its link, which is one
between processes of a machine, replaces the network of a pool that describes this machine; it says nothing of others.

Left out: memory, and prices; they stay those of the pool.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np

from heterps_compile.cluster.devices import Cluster, DeviceType
from heterps_compile.cluster.local import SOURCE
from heterps_compile.errors import InputError
from heterps_compile.ir.layers import LayerGraph

from .intensity import LayerCost
from .layer_key import layer_keys
from .problem import Floats
from .profile import DeviceProfile, LayerPoint, LayerProfile
from .roofline import TRAINING_FACTOR, layer_time_s

ProfileSpec = str | Path | Mapping[str, str | Path]
"""How a caller names profiles; see :func:`read_measurements`."""

MEASURED, CALIBRATED, ESTIMATED = "measured", "calibrated", "estimated"


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """Times of all layers on all types.

    Attributes:
        compute_s: [L, T].
        sources: [L][T], :data:`MEASURED`, :data:`CALIBRATED` or :data:`ESTIMATED`.
    """

    compute_s: Floats
    sources: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Measurements:
    """Which profile speaks for which type of a pool.

    Attributes:
        devices: The profile of a type, by the type's name.
        sha256: Of all of them, for a plan to say what it was made from.
    """

    devices: Mapping[str, DeviceProfile]
    sha256: str

    def layer_times(
        self, layer_graph: LayerGraph, costs: Sequence[LayerCost], cluster: Cluster, *, training: bool
    ) -> LayerTimes:
        """Give the times of all layers on all types, by the rules of the module; O(layers * types)."""
        keys = layer_keys(layer_graph)
        batch = layer_graph.graph.batch
        compute_s = np.empty((len(costs), len(cluster.device_types)))
        ratios = {
            device.name: _calibrate(self.devices[device.name], device, batch, training=training)
            for device in cluster.device_types
            if device.name in self.devices
        }
        sources = []
        for i, cost in enumerate(costs):
            row = []
            for t, device in enumerate(cluster.device_types):
                estimate_s = layer_time_s(cost, device, layer_graph.dtype(i), training=training)
                profile = self.devices.get(device.name)
                found = None if profile is None else profile.by_key.get(keys[i])
                if found is not None:
                    compute_s[i, t], source = measured_s(found, batch, training=training), MEASURED
                elif profile is not None:
                    of_kind = ratios[device.name]
                    ratio = of_kind.get(layer_graph.layers[i].kind, of_kind[""])
                    compute_s[i, t], source = estimate_s * ratio, CALIBRATED
                else:
                    compute_s[i, t], source = estimate_s, ESTIMATED
                row.append(source)
            sources.append(tuple(row))
        return LayerTimes(compute_s, tuple(sources))

    def correct(self, cluster: Cluster) -> Cluster:
        """Give the pool with measured parallel fractions, and this machine's own with its measured link."""
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

    def notes(self, times: LayerTimes, cluster: Cluster, *, training: bool) -> tuple[str, ...]:
        """Say for every type how many layers' times are measured, and what else a reader should know."""
        notes = []
        for t, device in enumerate(cluster.device_types):
            counts = Counter(row[t] for row in times.sources)
            parts = ", ".join(f"{counts[what]} {what}" for what in (MEASURED, CALIBRATED, ESTIMATED) if counts[what])
            profile = self.devices.get(device.name)
            of = (
                ""
                if profile is None
                else f" (profile of {profile.name!r}, {profile.backend}, {profile.threads} threads)"
            )
            notes.append(f"times of layers on {device.name!r}: {parts}{of}")
            if profile is not None and training and profile.mode != "training":
                notes.append(f"the profile for {device.name!r} is of inference: backward is taken to be twice forward")
        return tuple(notes)


def measured_s(layer: LayerProfile, batch: int, *, training: bool) -> float:
    """Give the measured time of a layer at a batch, in training with its backward."""
    if not training:
        return layer.forward_s(batch)
    if not layer.has_backward:
        return TRAINING_FACTOR * layer.forward_s(batch)
    return layer.forward_s(batch) + layer.backward_s(batch)


def assign_profiles(cluster: Cluster, profiles: Sequence[tuple[str, DeviceProfile]]) -> Measurements:
    """Say which profile speaks for which type.

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
    parts = [f"{name} {devices[name]!r}" for name in sorted(devices)]
    return Measurements(devices, hashlib.sha256("\n".join(parts).encode()).hexdigest())


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

    files = profile_files(profile)
    return assign_profiles(cluster, [(name, device) for name, path in files for device in read_profile(path).devices])


def profile_files(profile: ProfileSpec) -> list[tuple[str, Path]]:
    """Give the files that a caller names, each with the type it is for, "" where none is named."""
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


def _calibrate(profile: DeviceProfile, device: DeviceType, batch: int, *, training: bool) -> Mapping[str, float]:
    """Give measured over estimated by kind of layer, and over all of them under ""."""
    by_kind: dict[str, list[float]] = {}
    for layer in profile.layers:
        point = min(layer.points, key=lambda point: abs(math.log(point.batch / batch)))
        estimate_s = layer_time_s(_cost(layer, point), device, layer.dtype, training=training)
        if estimate_s > 0:
            by_kind.setdefault(layer.kind, []).append(measured_s(layer, point.batch, training=training) / estimate_s)
    ratios = {kind: median(found) for kind, found in by_kind.items()}
    return {**ratios, "": median([ratio for found in by_kind.values() for ratio in found] or [1.0])}


def _cost(layer: LayerProfile, point: LayerPoint) -> LayerCost:
    """Give the work of a measured layer, as far as the roofline wants it."""
    return LayerCost(
        flops=point.flops,
        parameter_bytes=0,
        touched_bytes=0,
        input_bytes=0,
        output_bytes=0,
        moved_bytes=point.moved_bytes,
        operations=layer.operations,
    )
