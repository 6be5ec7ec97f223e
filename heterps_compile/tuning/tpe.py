"""The tree-structured Parzen estimator of optuna, every trial trained whole.

Parameters are suggested in the order of the space, each where its condition holds. A configuration that is forbidden,
or was tried, is told to optuna as failed, which teaches it nothing: after five of them the next is drawn.

Left out: optuna's pruning, which needs losses on the way. Needs the package ``optuna``.
"""

import math
from typing import TYPE_CHECKING

from heterps_compile.packages import need

from .ask_tell import Fidelity, Method, Trial
from .parameters import Choice, Integer, Parameter, Value
from .space import Config, Space

if TYPE_CHECKING:
    import optuna

_TRIES = 5


class Tpe(Method):
    """Ask optuna, and tell it."""

    def __init__(self, space: Space, fidelity: Fidelity, seed: int) -> None:
        need("the search method 'tpe'", "tune")
        import optuna  # noqa: PLC0415 - an extra that only this method needs

        super().__init__(space, fidelity, seed)
        optuna.logging.disable_default_handler()
        self._failed = optuna.trial.TrialState.FAIL
        self._study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
        self._trials: dict[int, optuna.Trial] = {}

    def propose(self) -> Trial:
        """Return what optuna suggests, or a draw where that is forbidden or was tried five times in a row.

        Raises:
            InfeasibleError: where the space forbids whatever is drawn.
        """
        for _ in range(_TRIES):
            trial, config = self._suggested()
            if self.space.is_allowed(config) and self.is_new(config, self.fidelity.most):
                break
            self._study.tell(trial, state=self._failed)
        else:
            config = self.space.config_at(self.draw_new(self.fidelity.most))
            parameters = self.space.by_name
            self._study.enqueue_trial({name: _as_suggested(parameters[name], value) for name, value in config.items()})
            trial, config = self._suggested()
        found = self.next_trial(self.space.vector_of(config), self.fidelity.most)
        self._trials[found.number] = trial
        return found

    def _suggested(self) -> "tuple[optuna.Trial, Config]":
        trial = self._study.ask()
        config: dict[str, Value] = {}
        for parameter in self.space.parameters:
            if self.space.is_active(parameter, config):
                config[parameter.name] = _suggest(trial, parameter)
        return trial, config

    def learn(self, trial: Trial, loss: float) -> None:
        """Tell optuna."""
        theirs = self._trials.pop(trial.number)
        if math.isfinite(loss):
            self._study.tell(theirs, loss)
        else:
            self._study.tell(theirs, state=self._failed)


def _as_suggested(parameter: Parameter, value: Value) -> Value:
    return parameter.index(value) if isinstance(parameter, Choice) else value


def _suggest(trial: "optuna.Trial", parameter: Parameter) -> Value:
    if isinstance(parameter, Choice):
        index = trial.suggest_categorical(parameter.name, list(range(len(parameter.choices))))
        return parameter.choices[index]
    if isinstance(parameter, Integer):
        return trial.suggest_int(parameter.name, parameter.low, parameter.high, log=parameter.log)
    return trial.suggest_float(parameter.name, parameter.low, parameter.high, log=parameter.log)
