"""Run a search from its folder: hold the folder, start an engine, count what a trial trains on, and go.

Left out: what goes on while it runs (``search_run.py``), starting processes (the engines), printing (``cli/tune.py``).
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import numpy as np

from heterps_compile.errors import InputError
from heterps_compile.escape import printable
from heterps_compile.plan.source import read_plan
from heterps_compile.plan.swap import locked
from heterps_compile.runtime.data.model_inputs import inputs_of_plan
from heterps_compile.runtime.data.open_source import open_source

from .model_file import ModelFile
from .search_methods import lengths_of
from .search_request import Search
from .search_run import SearchRun
from .search_state import SearchState
from .trial_engine import TrialEngine, Worker, workers_of
from .trial_plans import Length, TrialPlan, TrialPlans

PLANS_FOLDER = "plans"


def run_search(search: Search, tell: Callable[[str], None], *, trials: int | None = None) -> SearchState:
    """Run a search that is written down, from where its journal left it; return how it stands at the end.

    Args:
        search: What it is.
        tell: Is told what happens, line by line.
        trials: How many are wanted in all now; None for as many as before.

    Raises:
        InputError: where another process runs it, or its files are none.
        InfeasibleError: where no trial fits any class.
        RunError: where trials cannot be started, or the first ones all fail.
        KeyboardInterrupt: after the search has been put away.
    """
    with _held(search.folder):
        model = ModelFile(Path(search.path("model")))
        record = search.record
        plans = TrialPlans(search.folder / PLANS_FOLDER, model, search.classes, record.seed, verifies=record.verifies)
        workers = workers_of(search.classes)
        with closing(make_engine(search, workers)) as engine:
            for note in engine.notes:
                tell(note)
            plans.length = _length(search, plans)
            return SearchRun(search, workers, plans, engine, tell, trials=trials).run()


def make_engine(search: Search, workers: tuple[Worker, ...]) -> TrialEngine:
    """Return the engine of a search, begun."""
    if search.record.engine == "ray":
        from .ray_engine import RayEngine  # noqa: PLC0415 - an extra

        return RayEngine(workers, search.path("address") or None, search.folder)
    from .local_engine import LocalEngine  # noqa: PLC0415 - beside the other

    return LocalEngine(workers)


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Hold the folder of a search.

    Raises:
        InputError: where another process holds it.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(folder))
        except BlockingIOError as error:
            raise InputError(
                f"another process runs the search in {printable(str(folder))}; wait for its end, or look at it (--show)"
            ) from error
        except OSError as error:
            raise InputError(f"cannot hold the folder {printable(str(folder))}: {error.strerror or error}") from error
        yield


def _length(search: Search, plans: TrialPlans) -> Length:
    """Return how fidelities become steps, for which the samples of an epoch are counted.

    Raises:
        InputError: where the first model cannot be built, the data have no end, or two lengths are as many steps.
    """
    config = search.space.config_at(search.space.draw(np.random.default_rng(search.record.seed)))
    first = next((plan for each in search.classes if not (plan := plans.plan(config, each.name)).misfit), None)
    if first is not None and first.fault:
        raise InputError(first.fault)
    length = Length(search.record.unit, _epoch_samples(search, first) if search.record.unit == "epochs" else 0)
    lengths = lengths_of(search.record.method, search.record.fidelity)
    steps = [length.steps(one, first.batch) for one in lengths if first is not None]
    if len({*steps}) < len(steps):
        raise InputError(
            f"trials of {', '.join(f'{one:g}' for one in lengths)} {length.unit} are {', '.join(map(str, steps))} "
            "steps; expected each to be longer. Fix: a longer --fidelity, or a larger --eta"
        )
    return length


def _epoch_samples(search: Search, first: TrialPlan | None) -> int:
    data = search.path("data")
    if not data:
        raise InputError(
            "an epoch of data() in the training file has no known length; count in steps or samples (--fidelity "
            "100:900:steps), or name files (--data)"
        )
    wanted = {} if first is None else inputs_of_plan(read_plan(str(first.folder)), first.folder)
    samples = open_source(data, wanted=wanted, seed=search.record.seed).samples
    if samples is None:
        raise InputError(f"{printable(data)} has no end, and so no epochs; count in steps or samples (--fidelity)")
    return samples
