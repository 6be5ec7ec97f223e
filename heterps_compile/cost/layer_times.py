"""Times of layers on the types of a pool: of a batch, and of a part of one, forward and backward apart.

A layer's time on a type, by the first rule that holds:

1. **measured**: a profile of the type has a layer of its key; the time is read at the batch asked for. Where all
   tables of the layer lie on parameter servers, it is the one that was measured with them there.
2. **calibrated**: a profile of the type has layers of its kind, or any at all; the roofline's estimate is multiplied by
   the median of measured over estimated, over those layers at the measured batch that is nearest; or the pool has
   measured rates of the type (``calibrate``), which the estimate is made with.
3. **estimated**: the roofline alone. Of a part of a batch its work is in proportion, and its launches are all there.

In training the backward is the measured one. A profile of inference lends training its forward, and the backward is
taken to be twice that, as the roofline has it.

Left out: which profile speaks for which type (``measured.py``); replicas and data movement.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from heterps_compile.cluster.devices import Cluster, DeviceType
from heterps_compile.cluster.local import SOURCE
from heterps_compile.ir.layers import LayerGraph
from heterps_compile.units import counted

from .layer_cost import LayerCost
from .layer_fractions import ALPHA, BETA, Kind, fraction_notes, layer_fractions
from .layer_key import layer_keys
from .measured import Measurements, calibrate
from .precision import FULL, PRECISIONS, product_dtype
from .problem import Floats
from .profile import DeviceProfile, LayerProfile
from .roofline import Phases, layer_phases
from .served_tables import held_tables
from .step_rates import StepRates

MEASURED, CALIBRATED, ESTIMATED = "measured", "calibrated", "estimated"
_SHOWN_BATCHES = 4


@dataclass(frozen=True)
class LayerTimes:
    """Times of all layers on all types.

    Attributes:
        pool: The types, with what profiles say of them as a whole.
        training: Forward and backward, else forward alone.
        precision: That is planned for.
        compute_s: [L, T], of a batch on one unit.
        sources: [L][T], :data:`MEASURED`, :data:`CALIBRATED` or :data:`ESTIMATED`.
    """

    pool: Cluster
    training: bool
    precision: str
    compute_s: Floats
    sources: tuple[tuple[str, ...], ...]
    _layers: LayerGraph = field(repr=False)
    _costs: Sequence[LayerCost] = field(repr=False)
    _keys: Sequence[str] = field(repr=False)
    _profiles: Mapping[str, DeviceProfile] = field(repr=False)
    _ratios: Mapping[str, Mapping[str, float]] = field(repr=False)

    @cached_property
    def step_rates(self) -> tuple[StepRates, ...]:
        """Return how fast every type does what a step has besides layers: as measured, else by its bandwidth."""
        profiles = (self._profiles.get(device.name) for device in self.pool.device_types)
        return tuple(
            StepRates.of_type(device) if profile is None or profile.step_rates is None else profile.step_rates
            for device, profile in zip(self.pool.device_types, profiles, strict=True)
        )

    def rates_of(self, device: str) -> StepRates:
        """Return them of a type."""
        names = [each.name for each in self.pool.device_types]
        return self.step_rates[names.index(device)]

    def fractions(self, kind: Kind) -> Floats | None:
        """Return [L, T], alpha or beta of every layer; None where all have that of their type."""
        return layer_fractions(kind, self.pool, self._profiles, self._keys)

    def reordered(self, layers: LayerGraph, costs: Sequence[LayerCost], order: Sequence[int]) -> "LayerTimes":
        """Return the times of the same layers in another order, given as indices into this one."""
        return replace(
            self,
            compute_s=self.compute_s[list(order)],
            sources=tuple(self.sources[i] for i in order),
            _layers=layers,
            _costs=costs,
            _keys=[self._keys[i] for i in order] if self._keys else self._keys,  # none without a profile
        )

    def stage_phases(self, layers: Sequence[str], device: str, divided: int = 1) -> Phases:
        """Add up the layers of a stage over one of the equal parts of a batch; O(layers).

        Args:
            layers: Their names.
            device: Name of the type.
            divided: Into how many parts the batch is.
        """
        index, type_ = self._index, [each.name for each in self.pool.device_types].index(device)
        found = [self.phases(index[name], type_, divided) for name in layers]
        return Phases(
            sum(each.forward_s for each in found),
            sum(each.backward_s for each in found),
            sum(each.accumulate_s for each in found),
        )

    @cached_property
    def _index(self) -> Mapping[str, int]:
        return {layer.name: i for i, layer in enumerate(self._layers.layers)}

    def phases(self, layer: int, type_: int, divided: float = 1) -> Phases:
        """Return the times of a layer on one unit of a type, over one of the equal parts of a batch.

        A batch is several times as large where ``divided`` is below 1.
        """
        device = self.pool.device_types[type_]
        profile = self._profiles.get(device.name)
        found = None if profile is None else profile.by_key.get(self._keys[layer])
        if found is not None:
            read = found.served_phases if layer in self._all_served else found.phases
            return read(self._layers.graph.batch / divided, training=self.training)
        dtype = self._product_dtype(layer, device)
        factor = self._ratio(layer, device.name)
        return layer_phases(self._costs[layer], device, dtype, 1 / divided, training=self.training, factor=factor)

    def measured_batches(self, layer: int, type_: int) -> tuple[int, ...]:
        """Return the batches at which a profile of a type measured a layer, ascending; () if none did."""
        profile = self._profiles.get(self.pool.device_types[type_].name)
        found = None if profile is None else profile.by_key.get(self._keys[layer])
        return () if found is None else tuple(point.batch for point in found.points)

    def _product_dtype(self, layer: int, device: DeviceType) -> str:
        kind, dtype = self._layers.layers[layer].kind, self._layers.dtype(layer)
        return product_dtype(kind, dtype, self.precision, is_measured=bool(device.rates))

    @cached_property
    def _all_served(self) -> frozenset[int]:
        """Return the layers that look rows up on servers alone."""
        held = [held_tables(self._layers, i, cost) if cost.served else () for i, cost in enumerate(self._costs)]
        return frozenset(i for i, cost in enumerate(self._costs) if cost.served and not held[i])

    def _ratio(self, layer: int, device: str) -> float:
        of_kind = self._ratios.get(device, {"": 1.0})
        return of_kind.get(self._layers.layers[layer].kind, of_kind[""])

    def notes(self) -> tuple[str, ...]:
        """Say for every type how many layers' times are measured, and what else a reader should know."""
        if not self._profiles:
            return ()
        notes = []
        for t, device in enumerate(self.pool.device_types):
            counts = Counter(row[t] for row in self.sources)
            parts = ", ".join(f"{counts[what]} {what}" for what in (MEASURED, CALIBRATED, ESTIMATED) if counts[what])
            profile = self._profiles.get(device.name)
            of = (
                ""
                if profile is None
                else f" (profile of {profile.name!r}, {profile.backend}, {counted(profile.threads, 'thread')})"
            )
            notes.append(f"times of layers on {device.name!r}: {parts}{of}")
            if profile is not None and self.training and profile.mode != "training":
                notes.append(f"the profile for {device.name!r} is of inference: backward is taken to be twice forward")
            if profile is not None and self.training and profile.step_rates is None:
                notes.append(
                    f"the profile for {device.name!r} does not say what the optimizer and rules take it: the pool's "
                    f"memory bandwidth tells; measure again (heterps-compile profile --mode training)"
                )
            if profile is not None and profile.kind == "cpu" and self.pool.source == SOURCE:
                notes.append(_crowding_note(device.name, profile))
            if profile is not None and (unknown := self._not_measured_served(profile)):
                layers = counted(len(unknown), "layer")
                notes.append(
                    f"the profile for {device.name!r} does not say what {layers} with tables on servers take without "
                    f"them: {'it is' if len(unknown) == 1 else 'they are'} planned to be as slow as with them; "
                    f"heterps-compile profile measures it for stages of torch"
                )
            if profile is not None and profile.precision != self.precision:
                is_same = PRECISIONS[profile.precision] == PRECISIONS[self.precision]
                notes.append(
                    f"the profile for {device.name!r} is of {profile.precision}, and the plan is for {self.precision}: "
                    f"layers {'have its times' if is_same else 'that compute in other bits are calibrated by it'}, not "
                    f"measured; measure them with heterps-compile profile --precision {self.precision}"
                )
        names = [layer.name for layer in self._layers.layers]
        for kind in (ALPHA, BETA):
            notes += fraction_notes(kind, self.pool, self._profiles, self._keys, names)
        return tuple(notes)

    def _not_measured_served(self, profile: DeviceProfile) -> list[int]:
        found = {i: profile.by_key.get(self._keys[i]) for i, cost in enumerate(self._costs) if cost.served}
        return [
            i for i, layer in found.items() if layer is not None and (i not in self._all_served or not layer.served)
        ]

    def rate_notes(self) -> tuple[str, ...]:
        """Say of every type whose measured rates are of another dtype than layers compute in what is made of them."""
        return tuple(note for t in range(len(self.pool.device_types)) for note in self._other_dtypes(t))

    def _other_dtypes(self, type_: int) -> Iterator[str]:
        device = self.pool.device_types[type_]
        layers: dict[tuple[str, str], set[int]] = {}  # that compute in the second, at rates of the first
        for i, of in enumerate(self.sources):
            here = self._product_dtype(i, device)
            found = (device.rates.get(work.kind) for work in self._costs[i].by_kind if of[type_] == CALIBRATED)
            for rate in found:
                if rate is not None and rate.dtype != here and rate.flops_per_s < math.inf:
                    layers.setdefault((rate.dtype, here), set()).add(i)
        how = f" --precision {self.precision}" if self.precision != FULL else ""
        for (measured, here), own in layers.items():
            faster = device.flops_per_s(here) / device.flops_per_s(measured)
            fast = "as fast" if faster == 1 else f"{faster:.3g} times as fast"
            by = "the pool's peaks" if here in device.peak_flops else f"the pool has no peak for {here}"
            yield (
                f"the rates of {device.name!r} were measured in {measured}, and {len(own)} of {len(self.sources)} "
                f"layers compute in {here}: their arithmetic is taken to be {fast} ({by}) and to "
                f"start as it does; to know, measure the model (heterps-compile profile{how})"
            )

    def micro_batch_notes(self, devices: Sequence[str], divided: int) -> tuple[str, ...]:
        """Say where the times of micro-batches on some types come from, as far as profiles speak for them."""
        return tuple(
            f"micro-batches on {name!r}: {_split(profile, training=self.training)}{self._read_off(profile, divided)}"
            for name, profile in self._profiles.items()
            if name in devices and (divided > 1 or self.training or self._is_of_one_other_size(profile))
        )

    def _is_of_one_other_size(self, profile: DeviceProfile) -> bool:
        return _batches(profile) not in ([], [self._layers.graph.batch]) and len(_batches(profile)) == 1

    def _read_off(self, profile: DeviceProfile, divided: int) -> str:
        batches = _batches(profile)
        size = self._layers.graph.batch / divided
        if len(batches) == 1:
            return (
                f"in proportion to their samples, as one batch alone was measured ({batches[0]}); the part that "
                f"does not shrink takes two (heterps-compile profile --batches N,N)"
            )
        shown = f"{', '.join(map(str, batches[:_SHOWN_BATCHES]))}{', …' if len(batches) > _SHOWN_BATCHES else ''}"
        read = f"{size:g} samples read off measured batches of {shown}"
        if size < batches[0]:
            return f"{read}; they are smaller than all of these, so the first line goes on"
        return f"{read}; they are larger than all of these, so the last line goes on" if size > batches[-1] else read


def _crowding_note(name: str, profile: DeviceProfile) -> str:
    """Say what busy cores of this machine take from one another, which the times of layers do not have."""
    found = profile.crowding
    if found is None:
        return (
            f"the profile for {name!r} does not say what busy cores take from one another: with several processes at "
            f"work steps may take longer than planned; heterps-compile profile measures it, where there are two cores"
        )
    return (
        f"times on {name!r} are those of one busy core: while {found.others + 1} are busy the model takes "
        f"{found.factor:.2f} x as long (±{found.spread:.2f}), which the plan's step does not have"
    )


def _batches(profile: DeviceProfile) -> list[int]:
    return sorted({point.batch for layer in profile.layers for point in layer.points})


def _split(profile: DeviceProfile, *, training: bool) -> str:
    if not training:
        return ""
    return "forward and backward as measured, " if profile.mode == "training" else "backward twice forward, "


def layer_times(
    layer_graph: LayerGraph,
    costs: Sequence[LayerCost],
    cluster: Cluster,
    measurements: Measurements | None = None,
    *,
    training: bool,
    precision: str = FULL,
) -> LayerTimes:
    """Return the times of all layers on all types, by the rules of the module; O(layers * types).

    Args:
        layer_graph: The layers.
        costs: The work of each.
        cluster: The pool.
        measurements: Profiles of its types; None where every time is estimated.
        training: Forward and backward, else forward alone.
        precision: That the dtypes of the layers' values are of.
    """
    profiles = {} if measurements is None else measurements.devices
    pool = cluster if measurements is None else measurements.correct(cluster)
    batch = layer_graph.graph.batch
    ratios = {
        device.name: calibrate(profiles[device.name], device, batch, training=training)
        for device in pool.device_types
        if device.name in profiles and not device.rates
    }
    keys = layer_keys(layer_graph) if profiles else ()
    sources = tuple(
        tuple(_source(device, profiles.get(device.name), keys[i] if keys else "") for device in pool.device_types)
        for i in range(len(costs))
    )
    compute_s = np.empty((len(costs), len(pool.device_types)))
    times = LayerTimes(pool, training, precision, compute_s, sources, layer_graph, costs, keys, profiles, ratios)
    for i in range(len(costs)):
        for t in range(len(pool.device_types)):
            compute_s[i, t] = times.phases(i, t).whole_s
    return times


def _source(device: DeviceType, profile: DeviceProfile | None, key: str) -> str:
    if profile is None:
        return CALIBRATED if device.rates else ESTIMATED
    found: LayerProfile | None = profile.by_key.get(key)
    return CALIBRATED if found is None else MEASURED
