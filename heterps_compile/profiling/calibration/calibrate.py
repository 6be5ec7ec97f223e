"""Measure the suite on one device, and fit the rates of a unit to it.

Left out: the networks (``suite.py``), the fit (``fit_rates.py``), the file (``pool_entry.py``).
"""

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from heterps_compile.backends.contract import Backend
from heterps_compile.backends.find import find_backend, training_backends
from heterps_compile.backends.ops import refuse_unsupported
from heterps_compile.cluster.devices import KindRate
from heterps_compile.cluster.local import usable_cores
from heterps_compile.cost.profile import Fitted, Host, LinkProfile
from heterps_compile.errors import InputError
from heterps_compile.frontends.torch_fx import import_torch
from heterps_compile.ir.graph import COLD_START, Graph
from heterps_compile.packages import RUN_LAYERS, installed_versions
from heterps_compile.plan.request import MODES
from heterps_compile.process_state import alone
from heterps_compile.profiling.chain import ANY_CALLS
from heterps_compile.profiling.clock import make_clock
from heterps_compile.profiling.host import describe_device, describe_host
from heterps_compile.profiling.link import measure_link
from heterps_compile.profiling.profile_model import PlacedOn, ReadGraph, Settings, read_at, time_model
from heterps_compile.profiling.replicas import Replicas, measure_replicas
from heterps_compile.progress import OnProgress, Progress
from heterps_compile.runtime.allocator import keep_freed_memory

from .fit_rates import TimedWork, fit_inference, fit_rates
from .suite import SUITE

_ALPHA_FROM = "gemms over words"  # the network whose replicas are timed
_ALPHA_BATCH = 24
_MOST_UNITS = 4
_MOST_SAMPLES = 1 << 20
_DISPLACED_BYTES = 2 << 20  # by less a pass leaves in the caches what the next begins with
INFERENCE, TRAINING = MODES


@dataclass(frozen=True, slots=True)
class Calibration:
    """A unit as it was measured.

    Attributes:
        device: As PyTorch calls it.
        kind: ``"cpu"`` or ``"gpu"``.
        description: What the device calls itself.
        backend: That ran the layers.
        threads: Of a layer.
        measured: When, a day as ISO 8601 has it.
        host: Where.
        versions: Of what ran it.
        timed: The layers, in training.
        rates: By kind of work.
        compute_parallel, data_parallel: alpha and beta; None where they were not measured.
        link: Between processes; None where it was not measured.
    """

    device: str
    kind: str
    description: str
    backend: str
    threads: int
    measured: str
    host: Host
    versions: Mapping[str, str]
    timed: tuple[TimedWork, ...]
    rates: Mapping[str, KindRate]
    compute_parallel: Fitted | None
    data_parallel: Fitted | None
    link: LinkProfile | None


def calibrate_unit(settings: Settings, *, on_progress: OnProgress = lambda _: None) -> Calibration:
    """Measure one unit; some minutes.

    Args:
        settings: How; the batches are the suite's, and the modes are both.
        on_progress: Called as the work proceeds.

    Raises:
        HeterpsError: where the device is not here, or the backend cannot run the suite on it.
    """
    (device,) = settings.devices
    kind, description = describe_device(device)
    settings = replace(settings, mode=TRAINING)
    backend = find_backend(settings.backend or training_backends()[0])
    if not backend.capabilities.trains:
        raise InputError(
            f"layers of the backend {backend.name!r} are not timed in training, which the rates are fitted to; take "
            f"--backend {' or '.join(training_backends())}, or measure a model itself (heterps-compile profile)"
        )
    make_clock(settings.clock_of(device), device, settings.threads, own_threads=backend.capabilities.own_threads)
    keep_freed_memory()
    timed: list[TimedWork] = []
    scored: list[TimedWork] = []
    for place, name in enumerate(SUITE):
        on_progress(Progress(name, place, len(SUITE) + 1))
        timed += _timed(name, (device, kind), backend, settings)
        scored += _timed(name, (device, kind), backend, replace(settings, mode=INFERENCE))
    on_progress(Progress("processes", len(SUITE), len(SUITE) + 1))
    alpha = beta = link = None
    if kind == "cpu":
        most = min(_MOST_UNITS, max(1, usable_cores() // settings.threads))
        if settings.with_replicas:
            asked = Replicas(most, settings.threads, training=True)
            found = measure_replicas(_reader(_ALPHA_FROM), backend, _ALPHA_BATCH, (), asked)
            alpha = None if found is None else found.of_whole()
        if settings.with_link:
            moved = measure_link(most)
            link, beta = moved.link, moved.data_parallel
    return Calibration(
        device=device,
        kind=kind,
        description=description,
        backend=backend.name,
        threads=settings.threads,
        measured=dt.datetime.now(dt.UTC).date().isoformat(),
        host=describe_host(),
        versions=installed_versions(RUN_LAYERS),
        timed=tuple(timed),
        rates=fit_inference(fit_rates(timed), scored),
        compute_parallel=alpha,
        data_parallel=beta,
        link=link,
    )


def _reader(name: str, mode: str = TRAINING) -> ReadGraph:
    """Return what reads a network of the suite at a batch, its weights the same every time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module, inputs = SUITE[name].make()
    module.train(mode == TRAINING)
    free = {argument: {0: torch.export.Dim("batch", min=1, max=_MOST_SAMPLES)} for argument in inputs}

    def read(batch: int | None) -> Graph:
        with alone():
            return import_torch(module, (), inputs, batch=batch, shapes={}, dynamic_shapes=free)

    return read


def _timed(name: str, device: tuple[str, str], backend: Backend, settings: Settings) -> Iterator[TimedWork]:
    """Yield the layers of a network at every batch, the first where a pass displaces enough for a cold start."""
    models = read_at(_reader(name, settings.mode), SUITE[name].batches, settings.precision)
    refuse_unsupported(backend, next(iter(models.values())).layers.graph)
    calls = ANY_CALLS
    for model in models.values():
        placed = backend.on([PlacedOn(i, *device) for i in range(len(model.keys))])
        if device[1] != "cpu" and placed.notes:
            raise InputError(f"{device[0]!r} cannot be calibrated: {placed.notes[0]}")
        chain = time_model(model, placed, device[0], settings, calls=calls, on_progress=lambda *_: None)
        calls = chain.calls
        for layer, cost, timing in zip(model.layers.layers, model.costs, chain.layers, strict=True):
            cold = [work for work in cost.by_kind if work.kind == COLD_START]
            if any(work.bytes_of() < _DISPLACED_BYTES for work in cold):
                continue
            # a first layer has no gradient to pass on
            backward_s = 0.0 if timing.backward is None or cold else timing.backward.median_s
            if timing.forward.median_s > 0:
                yield TimedWork(name, str(layer.kind), cost.by_kind, timing.forward.median_s, backward_s)
