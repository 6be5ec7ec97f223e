"""Profile a model: its layers on every device and at every batch asked for, its replicas, and the link between them.

A model with a free batch is read once for every batch; one with a fixed batch has that one.

Left out: how a time is measured (``chain.py``), what a compilation makes of it (``cost/measured.py``).
"""

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from statistics import median

from heterps_compile.backends.contract import Backend
from heterps_compile.backends.find import differentiating_backend, find_backend, own_backend, training_backends
from heterps_compile.backends.ops import refuse_precision, refuse_unsupported
from heterps_compile.cluster.local import usable_cores
from heterps_compile.cost.layer_cost import LayerCost, layer_costs
from heterps_compile.cost.layer_key import layer_keys
from heterps_compile.cost.memory import activation_bytes
from heterps_compile.cost.pose import input_bytes
from heterps_compile.cost.precision import FULL, in_precision
from heterps_compile.cost.profile import DeviceProfile, LayerPoint, LayerProfile, Profile, Timing
from heterps_compile.cost.roofline import Phases
from heterps_compile.cost.served_tables import tables_of
from heterps_compile.cost.step_rates import StepRates
from heterps_compile.errors import BackendError, HeterpsError, InputError, UnknownNameError
from heterps_compile.escape import one_line, printable, shorten
from heterps_compile.host_memory import available_bytes
from heterps_compile.ir.graph import Graph
from heterps_compile.ir.laws import verify_graph
from heterps_compile.ir.layers import LayerGraph
from heterps_compile.packages import PYTORCH, RUN_LAYERS, installed_versions, need
from heterps_compile.passes.group_layers import group_nodes
from heterps_compile.plan.request import MODES
from heterps_compile.progress import OnProgress, Progress
from heterps_compile.runtime.allocator import keep_freed_memory
from heterps_compile.units import format_bytes

from .cache import Cache
from .chain import ANY_CALLS, ChainTimes, LayerTiming, Repeats, TimingSetup, time_chain
from .clock import choose_clock, make_clock
from .crowding import Crowd, measure_crowding
from .host import describe_device, describe_host
from .inputs import inputs_in_turn
from .link import measure_link
from .replicas import Replicas, measure_replicas
from .step_rates import measure_step_rates

DEFAULT_BATCHES = (1, 8, 64)
DEFAULT_REPEATS = 15
_MOST_UNITS, _MOST_PAIRS = 16, 4
_NAME_KEPT = 200
_SHOWN = 300
_SERVED = "tables on servers"
_DRAWN = 3  # inputs are drawn in double precision beside what they become

ReadGraph = Callable[[int | None], Graph]
"""Reads the model at a batch, or at its own for None."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How a model is measured.

    Attributes:
        devices: ``"cpu"`` and GPUs such as ``"cuda:0"``.
        batches: Ascending, each once; a model with a fixed batch has its own instead.
        mode: ``"inference"`` or ``"training"``.
        precision: In which forwards compute.
        backend: What runs the layers; None for the model's own, in training for PyTorch.
        threads: That a layer runs on, on a CPU.
        repeats: Of every time, at least.
        least_s: Every batch is measured for so long, with more repeats where there is time.
        clock: A name of :data:`~.clock.CLOCKS`; None for the steadiest that measures the device.
        with_replicas: Whether alpha is measured.
        with_link: Whether the link and beta are.
        with_crowding: Whether what busy cores take from one another is.
    """

    devices: tuple[str, ...] = ("cpu",)
    batches: tuple[int, ...] = DEFAULT_BATCHES
    mode: str = MODES[0]
    precision: str = FULL
    backend: str | None = None
    threads: int = 1
    repeats: int = DEFAULT_REPEATS
    least_s: float = 0.5
    clock: str | None = None
    with_replicas: bool = True
    with_link: bool = True
    with_crowding: bool = True

    def clock_of(self, device: str) -> str:
        """Return the clock that measures a device."""
        return self.clock or choose_clock(device, self.threads)


@dataclass(frozen=True, slots=True)
class AtBatch:
    """A model at one batch: its layers as they are run and as the precision has them, and keys and work of these."""

    layers: LayerGraph
    computed: LayerGraph
    keys: tuple[str, ...]
    costs: tuple[LayerCost, ...]


def profile_model(
    read: ReadGraph,
    settings: Settings = Settings(),
    *,
    cache: Cache | None = None,
    on_progress: OnProgress = lambda _: None,
) -> Profile:
    """Measure a model; from here on this process keeps the memory it frees, as the ranks of a run do.

    Args:
        read: Reads it.
        settings: How.
        cache: Times that are known already; those that are measured are added and saved.
        on_progress: Called as the work proceeds.

    Raises:
        HeterpsError: where the model cannot be read, a layer cannot be run by itself, or a device is not here.
    """
    need("measuring layers", PYTORCH)
    kept = cache or Cache(None)
    if settings.mode not in MODES:
        raise UnknownNameError("mode", settings.mode, MODES)
    described = {name: describe_device(name) for name in settings.devices}
    for name in settings.devices:
        make_clock(settings.clock_of(name), name, settings.threads)  # what cannot be timed is told before the long work
    keep_freed_memory()
    on_progress(Progress("reading", 0, 1))
    models = read_at(read, settings.batches, settings.precision)
    graph = next(iter(models.values())).layers.graph
    backend = _choose_backend(graph, settings)
    _check_backend(backend, graph, settings)
    for model in models.values():
        _refuse_too_large(model, settings)
    steps = len(models) * settings.repeats
    total = steps * len(settings.devices) + 1
    devices = []
    for place, (name, (kind, description)) in enumerate(described.items()):

        def progress(step: str, done: int, before: int = place * steps) -> None:
            on_progress(Progress(step, before + done, total))

        devices.append(
            _profile_device(models, (name, kind, description), backend, settings, cache=kept, on_progress=progress)
        )
    on_progress(Progress("processes", total - 1, total))
    devices = [
        _with_processes(device, read, backend, models, settings) if device.kind == "cpu" else device
        for device in devices
    ]
    now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Profile(graph.name, now, describe_host(), dict(installed_versions(RUN_LAYERS)), tuple(devices))


def read_at(read: ReadGraph, batches: Sequence[int], precision: str) -> dict[int, AtBatch]:
    """Read a model at every batch; all must have the same layers."""
    try:
        own = read(None)
    except InputError:  # an ONNX model with a free batch has none of its own
        own = read(batches[0])
    verify_graph(own)
    asked = batches if own.batch_symbol is not None else (own.batch,)
    found = {}
    for batch in asked:
        graph = own if batch == own.batch else read(batch)
        layers = group_nodes(graph)
        computed = replace(layers, graph=in_precision(graph, precision))
        found[batch] = AtBatch(layers, computed, layer_keys(computed), layer_costs(computed))
    counts = {batch: len(model.keys) for batch, model in found.items()}
    if len(set(counts.values())) > 1:
        raise InputError(f"{own.name!r} has another number of layers at another batch ({counts}); profile one batch")
    return found


def _choose_backend(graph: Graph, settings: Settings) -> Backend:
    if settings.backend is not None:
        return find_backend(settings.backend)
    return differentiating_backend() if settings.mode == "training" else own_backend(graph.family)


def _check_backend(backend: Backend, graph: Graph, settings: Settings) -> None:
    if graph.family not in backend.families:
        raise InputError(
            f"the backend {backend.name!r} takes models of {' or '.join(backend.families)}, and {graph.name!r} is of "
            f"{graph.family}; leave out --backend for the model's own"
        )
    if settings.mode == "training" and not backend.capabilities.trains:
        raise InputError(
            f"layers of the backend {backend.name!r} are not timed in training; profile with --backend "
            f"{' or '.join(training_backends())}, or --mode inference"
        )
    refuse_precision(backend, graph, settings.precision)
    refuse_unsupported(backend, graph)


def _refuse_too_large(model: AtBatch, settings: Settings) -> None:
    """Refuse, before anything is made, a batch at which the model cannot be held in the memory that is free here."""
    graph = model.layers.graph
    made = [activation_bytes(cost) for cost in model.costs]
    held = sum(parameter.size_bytes for parameter in graph.parameters.values())
    inputs = sum(graph.size_bytes(name) for name in graph.inputs)
    needed = held + _DRAWN * inputs + (sum(made) if settings.mode == "training" else max(made, default=0))
    if needed > (free := available_bytes()):
        raise InputError(
            f"{graph.name!r} at a batch of {graph.batch:,} needs at least {format_bytes(needed)} to be measured, and "
            f"{format_bytes(free)} are free here; profile smaller batches (--batches N,N), or smaller open dimensions "
            f"(--shape NAME=N)"
        )


@dataclass(frozen=True, slots=True)
class PlacedOn:
    """What a backend asks of a stage's device."""

    index: int
    device: str
    kind: str

    @property
    def by_type(self) -> "tuple[PlacedOn, ...]":
        """Return it as it is: it is of one device type."""
        return (self,)


def _profile_device(
    models: Mapping[int, AtBatch],
    device: tuple[str, str, str],
    backend: Backend,
    settings: Settings,
    *,
    cache: Cache,
    on_progress: Callable[[str, int], None],
) -> DeviceProfile:
    """Measure a model on one device: its name, kind and description."""
    name, kind, description = device
    versions = installed_versions(RUN_LAYERS)
    known: tuple[object, ...] = (
        *(description, backend.name, versions, settings.mode, settings.threads, settings.clock_of(name)),
        *(() if settings.precision == FULL else (settings.precision,)),  # caches of before have float32
    )
    times: dict[int, list[LayerTiming]] = {}
    served: dict[int, dict[str, LayerTiming]] = {}
    wholes, calls = [], ANY_CALLS
    repeats = dict.fromkeys(models, settings.repeats)
    for place, (batch, model) in enumerate(models.items()):
        placed = backend.on([PlacedOn(i, name, kind) for i in range(len(model.keys))])
        stranded = placed.notes
        if kind != "cpu" and stranded:
            raise InputError(f"{name!r} cannot be profiled: {stranded[0]}")
        found = {key: cache.find((key, batch, *known)) for key in model.keys}
        tables, looking_up = tables_to_serve(model, placed)
        on_servers = {key: cache.find((key, batch, *known, _SERVED)) for key in looking_up}
        if None in found.values() or None in on_servers.values():

            def progress(done: int, _total: int, at: int = place, batch: int = batch) -> None:
                on_progress(f"{name}, batch {batch}", at * settings.repeats + done)

            chain = time_model(model, placed, name, settings, calls=calls, tables=tables, on_progress=progress)
            calls, repeats[batch] = chain.calls, chain.repeats
            wholes.append(chain.whole)
            for key, timing in _pooled(model.keys, chain.layers).items():
                if found[key] is None:
                    found[key] = timing
                    cache.keep((key, batch, *known), timing)
            keys, layers = [model.keys[index] for index in chain.served], list(chain.served.values())
            for key, timing in _pooled(keys, layers).items():
                if on_servers[key] is None:
                    on_servers[key] = timing
                    cache.keep((key, batch, *known, _SERVED), timing)
            cache.save()  # what an interruption comes after is not measured again
        times[batch] = [timed for key in model.keys if (timed := found[key]) is not None]
        served[batch] = {key: timed for key, timed in on_servers.items() if timed is not None}
    return DeviceProfile(
        name=name,
        kind=kind,
        description=description,
        backend=backend.name,
        mode=settings.mode,
        threads=settings.threads,
        clock=settings.clock_of(name),
        layers=tuple(_curves(models, times, served, repeats)),
        wholes=tuple(wholes),
        precision=settings.precision,
        step_rates=_step_rates(name, settings) if settings.mode == "training" else None,
    )


def _step_rates(device: str, settings: Settings) -> StepRates:
    """Measure what a step of training has besides layers."""
    with _threads(settings.threads, ()):
        return measure_step_rates(device, make_clock(settings.clock_of(device), device, settings.threads))


def tables_to_serve(model: AtBatch, backend: Backend) -> tuple[list[str], set[str]]:
    """Return the tables that a run could serve of a model, and the keys of the layers that look rows up there."""
    if not backend.capabilities.is_module:  # whose stages keep their tables
        return [], set()
    tables = tables_of(model.computed, model.costs)
    looking_up = {layer for table in tables for layer in table.rows_bytes}
    keys = zip(model.computed.layers, model.keys, strict=True)
    return [table.name for table in tables], {key for layer, key in keys if layer.name in looking_up}


def time_model(
    model: AtBatch,
    backend: Backend,
    device: str,
    settings: Settings,
    *,
    calls: Phases,
    tables: Sequence[str] = (),
    on_progress: Callable[[int, int], None],
) -> ChainTimes:
    """Time the layers of a model where they stand, and the whole beside them.

    Args:
        model: The model at a batch.
        backend: What runs it, on the device already.
        device: As PyTorch calls it.
        settings: How.
        calls: What calling a layer was found to cost at a smaller batch.
        tables: That servers could hold, to be timed there too.
        on_progress: Called with repeats done, repeats in all.

    Raises:
        HeterpsError: where a layer cannot be run by itself.
    """
    import torch  # noqa: PLC0415 - torch only when something is run

    graph, training = model.layers.graph, settings.mode == "training"
    where = device if backend.capabilities.is_module else "cpu"
    inputs = inputs_in_turn(backend, graph, where)
    now = make_clock(settings.clock_of(device), device, settings.threads, own_threads=backend.capabilities.own_threads)
    with (
        _threads(settings.threads, (backend, own_backend(graph.family))),
        backend.reproducible(graph, 0),
        torch.set_grad_enabled(training),
    ):
        try:
            return time_chain(
                model.layers,
                TimingSetup(backend, inputs, now, where, settings.precision),
                Repeats(settings.repeats, settings.least_s),
                training=training,
                calls=calls,
                tables=tables,
                on_progress=on_progress,
            )
        except HeterpsError:
            raise
        except Exception as error:
            said = shorten(one_line(str(error)), _SHOWN)
            raise BackendError(f"{graph.name!r} cannot be profiled layer by layer on {device!r}: {said}") from error


@contextmanager
def _threads(count: int, backends: Iterable[Backend]) -> Iterator[None]:
    """Let PyTorch and the runtimes of backends compute on so many threads."""
    import torch  # noqa: PLC0415 - as above

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with ExitStack() as entered:
            for backend in backends:
                entered.enter_context(backend.threads(count))
            yield
    finally:
        torch.set_num_threads(before)


def _pooled(keys: Sequence[str], layers: Sequence[LayerTiming]) -> dict[str, LayerTiming]:
    """Return one timing a key: the median over the layers that share it."""
    alike: dict[str, list[LayerTiming]] = {}
    for key, timing in zip(keys, layers, strict=True):
        alike.setdefault(key, []).append(timing)
    return {
        key: LayerTiming(*(_median([getattr(t, part) for t in timings]) for part in LayerTiming.__slots__))  # type: ignore[arg-type] # forward is never None
        for key, timings in alike.items()
    }


def _median(timings: Sequence[Timing | None]) -> Timing | None:
    given = [timing for timing in timings if timing is not None]
    return Timing(median(t.median_s for t in given), median(t.spread_s for t in given)) if given else None


def _curves(
    models: Mapping[int, AtBatch],
    times: Mapping[int, Sequence[LayerTiming]],
    served: Mapping[int, Mapping[str, LayerTiming]],
    repeats: Mapping[int, int],
) -> Iterator[LayerProfile]:
    """Yield the layers with their times at all batches; equal layers once."""
    seen = set()
    first = next(iter(models.values())).computed
    for index, layer in enumerate(first.layers):
        keys = _keys(models, index)
        if keys in seen:
            continue
        seen.add(keys)
        points, on_servers = [], []
        for batch, model in models.items():
            points.append(_point(batch, model.costs[index], times[batch][index], repeats[batch]))
            if (timed := served[batch].get(model.keys[index])) is not None:
                on_servers.append(_point(batch, model.costs[index], timed, repeats[batch]))
        operations = next(iter(models.values())).costs[index].operations
        yield LayerProfile(
            name=printable(layer.name)[:_NAME_KEPT],
            keys=keys,
            kind=str(layer.kind),
            dtype=first.dtype(index),
            operations=operations,
            points=tuple(points),
            served=tuple(on_servers),
        )


def _point(batch: int, cost: LayerCost, timing: LayerTiming, repeats: int) -> LayerPoint:
    return LayerPoint(
        batch=batch,
        flops=cost.flops,
        moved_bytes=cost.moved_bytes,
        forward=timing.forward,
        backward=timing.backward,
        accumulate=timing.accumulate,
        repeats=repeats,
    )


def _keys(models: Mapping[int, AtBatch], index: int) -> tuple[str, ...]:
    """Return the keys of a layer at all batches, each once."""
    return tuple(dict.fromkeys(model.keys[index] for model in models.values()))


def _with_processes(
    profile: DeviceProfile, read: ReadGraph, backend: Backend, models: Mapping[int, AtBatch], settings: Settings
) -> DeviceProfile:
    """Add what takes several processes: alpha, beta, the link, and what busy cores take from one another."""
    most = min(_MOST_UNITS, max(1, usable_cores() // settings.threads))
    largest = models[max(models)].layers.graph
    training = settings.mode == "training"
    asked = Replicas(most, settings.threads, training, settings.precision)
    if settings.with_replicas and largest.batch_symbol is not None:
        layers = [layer.nodes for layer in models[max(models)].layers.layers]
        held = sum(parameter.size_bytes for parameter in largest.parameters.values())
        if 2 * held * most > available_bytes():  # every replica holds the model whole and layer by layer
            layers = []
        batch = asked.batch(largest.batch)
        found = measure_replicas(read, backend, batch, layers, asked)
        if found is not None:
            alike: dict[tuple[str, ...], list[int]] = {}
            for index in range(len(layers)):
                alike.setdefault(_keys(models, index), []).append(index)
            own = profile.layers
            if layers:
                own = tuple(replace(layer, compute_parallel=found.of_layers(alike[layer.keys])) for layer in own)
            profile = replace(profile, compute_parallel=found.of_whole(), layers=own)
    if settings.with_crowding:
        keys = models[max(models)].keys
        model_s = sum(profile.by_key[key].phases(largest.batch, training=training).whole_s for key in keys)
        crowd = Crowd(most, profile.clock, model_s)
        profile = replace(profile, crowding=measure_crowding(lambda _: largest, backend, largest.batch, asked, crowd))
    if settings.with_link:
        sizes = input_bytes(models[max(models)].layers)
        read_bytes: dict[tuple[str, ...], int] = {}
        for index, size in enumerate(sizes):
            keys = _keys(models, index)
            read_bytes[keys] = max(size, read_bytes.get(keys, 0))
        measured = measure_link(min(most, _MOST_PAIRS), sizes)
        own = tuple(replace(each, data_parallel=measured.by_size.get(read_bytes[each.keys])) for each in profile.layers)
        profile = replace(profile, link=measured.link, data_parallel=measured.data_parallel, layers=own)
    return profile
