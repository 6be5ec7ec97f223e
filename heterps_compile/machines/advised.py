"""An elastic run that asks by itself: stay on the hosts that are left, wait for others, or move.

What was asked is in ``machines.json`` of the run's folder, what is left in its last checkpoint. What was spent is the
time since the launch at the prices the folder was planned with, beside what the user says; the deadline counts from the
launch.

Left out: folders whose machines are of two kinds, since nothing says of which kind a host is.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from heterps_compile.errors import InputError
from heterps_compile.escape import printable
from heterps_compile.offers import Catalogue, read_catalogue
from heterps_compile.offers.offer import CURRENCY
from heterps_compile.plan.source import read_plan
from heterps_compile.runtime.engines.advice import MOVE, Advice, Loss
from heterps_compile.units import counted, format_duration

from .choose import decide_for, shown_name, standing_of, times_of
from .chosen_file import Chosen, read_chosen, read_goal
from .goal import HOUR_S, Goal
from .resume_words import told
from .resumed import Resumption
from .same_run import check_same_model
from .search import EFFORT, SearchEffort


@dataclass(frozen=True, slots=True)
class DecidingAdvisor:
    """Decides about a run with ``decide_for``, anew at every loss.

    Attributes:
        model: That the run trains.
        folder: That it runs, with ``machines.json``.
        checkpoint: Its folder of checkpoints.
        goal: What was asked, the deadline from the launch.
        chosen: The machines of the folder.
        catalogue: What is offered.
        catalogue_name: The file of it; None for the built-in one.
        spent: US dollars before the launch.
        about: Further keywords of ``times_of``.
        effort: Of the search for other machines.
    """

    model: Any
    folder: str
    checkpoint: str
    goal: Goal
    chosen: Chosen
    catalogue: Catalogue
    catalogue_name: str | None
    spent: float
    about: Mapping[str, Any]
    effort: SearchEffort = EFFORT

    def __call__(self, loss: Loss) -> Advice:
        """Return what to do about a loss.

        Raises:
            HeterpsError: where nothing can be decided, or no course keeps what was asked.
        """
        machines = self.chosen.machines
        left = len(loss.hosts) - len(loss.lost)
        if len(loss.hosts) > machines.count:
            raise InputError(
                f"the run has {counted(len(loss.hosts), 'host')}, and was planned for {machines.title}: a host is no "
                "machine of these"
            )
        lost = str(machines.count - left)
        spent = self.spent + machines.price_per_hour * loss.elapsed_s / HOUR_S
        goal = self.goal
        if goal.deadline_s is not None:
            if loss.elapsed_s >= goal.deadline_s:
                over_s = loss.elapsed_s - goal.deadline_s
                raise InputError(f"the deadline has been over for {format_duration(over_s)}")
            goal = replace(goal, deadline_s=goal.deadline_s - loss.elapsed_s)
        standing = standing_of(self.folder, self.checkpoint, spent=spent, lost=lost, wait_s=loss.patience_s)
        found = decide_for(self.model, goal, standing, self.catalogue, effort=self.effort, **self.about)
        said = (*told(found), *(f"note: {note}" for note in found.notes))
        kind = found.decision.taken.course.kind
        return Advice(kind, said, self._command(found, lost) if kind == MOVE else "")

    def _command(self, found: Resumption, lost: str) -> str:
        """Return the command that moves a run, with what was decided by."""
        goal = found.goal
        words = ["heterps-compile", "machines", str(self.model), "--samples", f"{self.goal.samples:.17g}"]
        words += [] if goal.deadline_s is None else ["--deadline", f"{goal.deadline_s:.0f}s"]
        words += [] if goal.budget is None else ["--budget", f"{goal.budget:.2f} {CURRENCY}"]
        words += ["--max-machines", str(goal.most_machines), *(["--spot"] if goal.spot else [])]
        words += [] if self.catalogue_name is None else ["--catalogue", self.catalogue_name]
        words += [word for name, size in self.about["shapes"].items() for word in ("--shape", f"{name}={size}")]
        words += ["--precision", self.about["precision"], "--optimizer", self.about["optimizer"]]
        words += ["--resume", self.checkpoint, "--plan", self.folder, "--lost", lost]
        words += ["--spent", f"{found.standing.spent:.2f} {CURRENCY}"] if found.standing.spent else []
        return shlex.join([*words, "-o", f"{self.folder.rstrip('/')}-moved"])


def advisor_for(
    model: Any,
    folder: str,
    checkpoint: str,
    *,
    spent: float = 0.0,
    deadline_s: float | None = None,
    catalogue: str | None = None,
    **about: Any,
) -> DecidingAdvisor:
    """Return who decides about a run, having checked what can be before it starts.

    Args:
        model: That it trains.
        folder: That it runs; ``machines -o`` wrote it.
        checkpoint: Its folder of checkpoints.
        spent: US dollars before the launch.
        deadline_s: From the launch; None for the folder's, if it has one.
        catalogue: The file of today's offers; None for the built-in catalogue.
        about: Further keywords of ``times_of``.

    Raises:
        HeterpsError: where something cannot be read, the model is not the folder's, or its machines are of two kinds.
    """
    chosen, goal = read_chosen(folder), read_goal(folder)
    if len(chosen.machines.parts) > 1:
        raise InputError(
            f"{printable(repr(folder))} is for {chosen.machines.title}, and a host that is lost does not say of which "
            "kind it was; leave --decide out, and ask machines --resume with --lost INSTANCE=N"
        )
    plan = read_plan(folder)
    about |= {"precision": plan.request.precision, "optimizer": plan.request.optimizer}
    graph = times_of(model, **about, shapes=plan.bindings).graph(chosen.batch)
    check_same_model(shown_name(model), graph, plan.hashes.get("model", ""))
    about["shapes"] = {name: size for name, size in plan.bindings.items() if name != graph.batch_symbol}
    goal = goal if deadline_s is None else replace(goal, deadline_s=deadline_s)
    return DecidingAdvisor(model, folder, checkpoint, goal, chosen, read_catalogue(catalogue), catalogue, spent, about)
