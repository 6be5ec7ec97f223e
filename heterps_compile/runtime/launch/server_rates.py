"""The learning rate of tables on parameter servers, as the training file's ``scheduler`` sets it.

Workers push the rate of a step with its gradients. They learn it from a stand-in: an optimiser of one empty parameter
whose rate is ``--server-learning-rate``, which ``scheduler(optimizer)`` is called with as with any other. So the tables
are, to a schedule, one more parameter group, and every worker computes the same rates.

Left out: how a push carries its rate (``servers/protocol.py``).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import nn

from heterps_compile.errors import RunError
from heterps_compile.runtime.checkpoint.optimizer_state import OptimizerState, put_schedule, take_schedule
from heterps_compile.runtime.validation.best import BestMetric

from .learning_rates import make_rates
from .training_file import Training, make_scheduler

if TYPE_CHECKING:
    from heterps_compile.runtime.servers.client import Client


class ServerRates:
    """What a worker knows of the learning rate of the tables.

    Attributes:
        tables: Their names in the model.
    """

    def __init__(self, training: Training, client: "Client", *, validates: bool, best: BestMetric | None) -> None:
        """Call the training file's ``scheduler``, where it has one.

        Args:
            training: What the training file says.
            client: That pushes with the rates.
            validates: Whether the run validates.
            best: Says by which metric of a validation a schedule may judge; None for its loss.

        Raises:
            RunError: where it fails, or gives something else.
        """
        spec = client.spec
        self._client, self._of_servers = client, spec.optimizer
        self.tables = tuple(table.name for table in spec.tables)
        group = {"params": [nn.Parameter(torch.empty(0))], "betas": (0.9, 0.999)}  # a schedule may set these too
        self._stand_in = torch.optim.SGD([group], lr=spec.optimizer.lr)
        try:
            self._scheduler = make_scheduler(training, self._stand_in)
            self._schedule = make_rates(training, self._scheduler, validates=validates, best=best)
        except Exception as error:
            error.add_note(
                "with --parameter-servers, scheduler() is called once more, with an optimizer of one parameter group "
                "that stands for the tables"
            )
            raise

        self._tell()

    @property
    def wants_loss(self) -> bool:
        """Whether it is given the loss of every step."""
        return self._schedule is not None and self._schedule.wants_loss

    def after_step(self, loss: float | None) -> None:
        """Set the rate of the next step.

        Args:
            loss: Of the step that was done; None where nobody has asked for it.
        """
        if self._schedule is not None:
            self._stand_in.step()  # of nothing: a schedule warns where it is stepped before its optimiser
            self._schedule.after_step(loss)
            self._tell()

    def after_validation(self, metrics: Mapping[str, float]) -> None:
        """Set the rate of the next step where a validation decides on it."""
        if self._schedule is not None:
            self._schedule.after_validation(metrics)
            self._tell()

    def _tell(self) -> None:
        self._client.learning_rate = float(self._stand_in.param_groups[0]["lr"])

    def take(self) -> OptimizerState:
        """Return what a checkpoint keeps of the tables' optimiser beside their rows.

        Raises:
            RunError: where the scheduler keeps what no checkpoint can hold.
        """
        group, optimizer = self._stand_in.param_groups[0], self._of_servers
        kept = {name: float(group[name]) for name in ("lr", "initial_lr") if name in group}
        options = {name: kept | {"weight_decay": optimizer.weight_decay} for name in self.tables}
        schedule = None if self._scheduler is None else take_schedule(self._scheduler)
        return OptimizerState(optimizer.name, options=options, schedule=schedule)

    def put(self, checkpoint: str, known: OptimizerState | None) -> None:
        """Go on with a schedule, whose factor of the learning rate is kept where that is another now.

        Args:
            checkpoint: Its name.
            known: Of the tables, be it of servers or of stages; None where an earlier version wrote it.

        Raises:
            RunError: where there is one and the training file has none, or the other way round.
        """
        schedule = None if known is None else known.schedule
        if (schedule is None) != (self._scheduler is None):
            has, lacks = ("no", "one") if schedule is None else ("a", "none")
            raise RunError(
                f"{checkpoint} has {has} state of a scheduler for its tables and the training file makes {lacks}; go "
                f"on with the file it was written with, or start anew from its weights (--weights) in another folder"
            )
        if known is not None and schedule is not None and self._scheduler is not None:
            options, group = next(iter(known.options.values())), self._stand_in.param_groups[0]
            was, first = float(options["lr"]), float(options.get("initial_lr", options["lr"]))
            group["lr"] = was if first == self._of_servers.lr else was * self._of_servers.lr / first
            put_schedule(self._scheduler, self._stand_in, schedule)
            self._tell()
