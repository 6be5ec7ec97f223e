"""Choose machines for a model, and compile it for those that are chosen."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from heterps_compile.api import compile as compile_
from heterps_compile.api import read_model
from heterps_compile.backends.find import differentiating_backend
from heterps_compile.cluster.pool_toml import pool_toml
from heterps_compile.compiled_model import CompiledModel
from heterps_compile.cost.memory import USUAL_OPTIMIZER
from heterps_compile.cost.precision import FULL
from heterps_compile.errors import InputError
from heterps_compile.escape import printable
from heterps_compile.ir.graph import Graph
from heterps_compile.ir.laws import verify_graph
from heterps_compile.offers import Catalogue, read_catalogue
from heterps_compile.offers.offer import CURRENCY
from heterps_compile.plan.request import make_request
from heterps_compile.progress import OnProgress, watching
from heterps_compile.runtime.checkpoint.best import find_checkpoint
from heterps_compile.runtime.checkpoint.format import open_checkpoint
from heterps_compile.verification.divided import check_batch

from .chosen_file import CHOSEN_NAME, read_chosen
from .goal import Goal
from .learned import NOTHING
from .measured_runs import learn_from
from .resumed import Resumption, Standing, lost_of, resume
from .same_run import check_same_model, check_same_run
from .search import EFFORT, Answer, SearchEffort, choose_machines
from .step_times import StepTimes

POOL_NAME = "pool.toml"
"""The file beside a plan that has the machines it was made for, with their prices."""


def choose(
    model: Any,
    goal: Goal,
    catalogue: Catalogue | str | Path | None = None,
    *,
    example_inputs: tuple[Any, ...] = (),
    shapes: Mapping[str, int] | None = None,
    precision: str = FULL,
    optimizer: str = USUAL_OPTIMIZER,
    learn: str | Path | None = None,
    seed: int = 0,
    effort: SearchEffort = EFFORT,
    on_progress: OnProgress | None = None,
) -> Answer:
    """Return the best set of machines to train a model on.

    Args:
        model: What ``heterps_compile.compile`` takes.
        goal: Samples, batches, deadline, budget.
        catalogue: Offers, or the file they are read from; None for the built-in catalogue.
        example_inputs: Of a PyTorch model.
        shapes: Numbers of other dynamic dimensions by name.
        precision: What the run computes in.
        optimizer: Whose states it holds.
        learn: A file of measurements that correct what is predicted, kind by kind of GPU.
        seed: Of the searches.
        effort: How many sets plans are searched for.
        on_progress: Called as the work proceeds.

    Raises:
        HeterpsError: where the model, the catalogue or the measurements cannot be read, or no set is found that keeps
            all limits.

    Examples:
        >>> import torch
        >>> from heterps_compile.machines import Goal, choose
        >>> model, batch = torch.nn.Linear(64, 8), torch.ones(128, 64)
        >>> answer = choose(model, Goal(1e9, (1024,), deadline_s=3600.0), example_inputs=(batch,))
        >>> answer.best.machines.count
        1
    """
    offers = catalogue if isinstance(catalogue, Catalogue) else read_catalogue(catalogue)
    with watching(on_progress) as watch:
        watch.begin("machines", 0, 1)
        times = times_of(
            model, example_inputs=example_inputs, shapes=shapes, precision=precision, optimizer=optimizer, learn=learn,
            seed=seed,
        )  # fmt: skip
        return choose_machines(offers, times, goal, effort)


def times_of(
    model: Any,
    *,
    example_inputs: tuple[Any, ...] = (),
    shapes: Mapping[str, int] | None = None,
    precision: str = FULL,
    optimizer: str = USUAL_OPTIMIZER,
    learn: str | Path | None = None,
    seed: int = 0,
) -> StepTimes:
    """Return steps of a model, corrected by measurements; arguments and errors are those of :func:`choose`."""
    request = make_request(CURRENCY, mode="training", objective="throughput", precision=precision, optimizer=optimizer)

    checked: list[Graph] = []

    def read(batch: int) -> Graph:
        graph = read_model(model, example_inputs, batch=batch, shapes=shapes)
        verify_graph(graph)
        if not checked and batch > 1:  # once: samples mix at every batch or at none
            checked.append(check_batch(graph))
        return replace(graph, mixes=checked[0].mixes, unchecked=checked[0].unchecked) if checked else graph

    times = StepTimes(read, request, seed)
    learned = NOTHING if learn is None else learn_from(learn, times, names_of(model), precision)
    return times.with_learned(learned)


def decide_for(
    model: Any,
    goal: Goal,
    standing: Standing,
    catalogue: Catalogue | str | Path | None = None,
    *,
    prices: Catalogue | None = None,
    effort: SearchEffort = EFFORT,
    on_progress: OnProgress | None = None,
    **about: Any,
) -> Resumption:
    """Return whether a run that goes on stays, moves or waits.

    Args:
        model: What it trains.
        goal: All samples of the training, the deadline from now, the budget in all.
        standing: How the run stands; ``standing_of`` reads it.
        catalogue: What is offered today to move to; None for the built-in catalogue.
        prices: What the run's own machines cost today, where the catalogue is but a part of what is offered.
        effort: How many sets plans are searched for, to move to.
        on_progress: Called as the work proceeds.
        about: Further keywords of :func:`times_of`.

    Raises:
        HeterpsError: where something cannot be read, the model is not the plan's, nothing is left to do, or no course
            keeps what was asked.
    """
    offers = catalogue if isinstance(catalogue, Catalogue) else read_catalogue(catalogue)
    with watching(on_progress) as watch:
        watch.begin("machines", 0, 1)
        times = times_of(model, **about)
        check_same_model(shown_name(model), times.graph(standing.chosen.batch), standing.model)
        return resume(offers, times, goal, standing, effort, prices=prices)


def standing_of(
    plan: str | Path, checkpoint: str | Path, *, spent: float = 0.0, lost: str | None = None, wait_s: float = 0.0
) -> Standing:
    """Return how a run stands.

    Args:
        plan: The folder that was written for its machines.
        checkpoint: That it goes on from, or a folder of checkpoints, whose last one counts.
        spent: US dollars so far.
        lost: How many machines are lost: ``"2"``, of several kinds ``"p3.2xlarge=1"``.
        wait_s: Until others can be had in their place.

    Raises:
        HeterpsError: where something of it cannot be read or makes no sense, or the checkpoint is of another model.
    """
    chosen = read_chosen(plan)
    last = open_checkpoint(find_checkpoint(Path(checkpoint)))
    name, state = last.name, last.state
    if state.batch != chosen.batch:
        raise InputError(
            f"the checkpoint {name} is of a batch of {state.batch:,}, and the plan {printable(repr(str(plan)))} of "
            f"{chosen.batch:,}; name the folder that the run was started from (--plan DIR)"
        )
    sha256, notes = check_same_run(plan, last)
    return Standing(
        chosen, state.samples, name, spent, lost_of(lost, chosen.machines), wait_s, model=sha256, notes=notes
    )


def names_of(model: Any) -> tuple[str, ...]:
    """Return what rows of measurements may call a model: its file, with or without the ending, or its class."""
    if not isinstance(model, str | Path):
        return (type(model).__name__,)
    path = Path(model)
    return path.stem, path.name


def shown_name(model: Any) -> str:
    """Return what messages call a model: the path of its file, or its class."""
    return printable(repr(str(model))) if isinstance(model, str | Path) else type(model).__name__


def compile_for(
    model: Any,
    answer: Answer,
    directory: str | Path,
    *,
    force: bool = False,
    backend: str | None = None,
    **asked: Any,
) -> CompiledModel:
    """Compile a model for the machines that were chosen, and write the folder, with the pool and the answer beside it.

    Args:
        model: That the machines were chosen for.
        answer: With the machines.
        directory: The folder.
        force: Whether a folder that no compilation wrote may be replaced.
        backend: What the stages run on; None for what trains.
        asked: Further keywords of ``heterps_compile.compile``.

    Raises:
        HeterpsError: as ``compile`` and ``save`` do.
    """
    pool = replace(answer.best.machines.pool(), source=POOL_NAME)
    if answer.best.step.shares:
        asked |= {"mixed_stages": True}
    asked |= {"mode": "training", "objective": "throughput", "batch": answer.best.batch}
    from .machines_words import answer_document  # noqa: PLC0415 - rich

    compiled = compile_(model, cluster=pool, backend=backend or differentiating_backend().name, must_save=True, **asked)
    beside = {POOL_NAME: pool_toml(pool), CHOSEN_NAME: answer_document(answer) + "\n"}
    return compiled.save(directory, force=force, beside=beside)
