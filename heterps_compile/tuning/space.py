"""A space of configurations: parameters, when each is active, and what must not come together.

A configuration has a value for every active parameter and for no other. The methods see a space as a cube: a vector
with one place from 0 to 1 for every parameter, active or not.

Left out: how a space is written (``space_file.py``), disjoint parts of it (``subspaces.py``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from heterps_compile.errors import InfeasibleError, InputError
from heterps_compile.escape import printable, short

from .parameters import Condition, Parameter, Value, among

Config = Mapping[str, Value]
"""The active parameters of one trial, by name."""

Vector = NDArray[np.float64]

PARTS = ("train", "model", "plan")
"""What a parameter is for, by the beginning of its name: the training, the model, the plan that it runs by."""

_MOST_DRAWS = 1_000


@dataclass(frozen=True)
class Space:
    """Parameters, each after those that its condition asks about. Made by ``make_space.py``, which checks the laws.

    Attributes:
        parameters: All of them.
        forbidden: Conditions, none of which holds in a configuration.
    """

    parameters: tuple[Parameter, ...]
    forbidden: tuple[Condition, ...] = ()

    @cached_property
    def by_name(self) -> Mapping[str, Parameter]:
        """Return the parameters by name."""
        return MappingProxyType({parameter.name: parameter for parameter in self.parameters})

    def config_at(self, vector: Vector) -> Config:
        """Return the configuration at a vector of the cube; places of inactive parameters count for nothing."""
        config: dict[str, Value] = {}
        for parameter, u in zip(self.parameters, vector.tolist(), strict=True):
            if self.is_active(parameter, config):
                config[parameter.name] = parameter.at(u)
        return config

    def vector_of(self, config: Config) -> Vector:
        """Return the vector of a configuration, with 0.5 for what is not active.

        Raises:
            InputError: where the configuration is none of this space.
        """
        self.check(config)
        return np.array([p.place(config[p.name]) if p.name in config else 0.5 for p in self.parameters])

    def is_active(self, parameter: Parameter, config: Config) -> bool:
        """Return whether a parameter is active with the values that a configuration has before it."""
        return _holds(parameter.when, config)

    def is_allowed(self, config: Config) -> bool:
        """Return whether no forbidden combination is in a configuration."""
        return not any(_holds(condition, config) for condition in self.forbidden)

    def check(self, config: Config) -> None:
        """Check that a configuration is one of this space.

        Raises:
            InputError: naming the first parameter that is unknown, absent, inactive or out of its range.
        """
        for name in config:
            if name not in self.by_name:
                raise InputError(f"the configuration sets {_named(name)}, which the space does not have")
        for parameter in self.parameters:
            name, active = parameter.name, self.is_active(parameter, config)
            if active != (name in config):
                fault = "does not set it, and it is active" if active else "sets it, and it is not active"
                raise InputError(f"parameter {_named(name)}: the configuration {fault} with the values it has")
            if active and not parameter.accepts(config[name]):
                raise InputError(f"parameter {_named(name)}: {short(config[name])} is none of its values")
        if not self.is_allowed(config):
            raise InputError("the configuration has a combination in it that the space forbids")

    def draw(self, random: np.random.Generator) -> Vector:
        """Draw a vector of the cube, uniformly among those whose configuration is allowed.

        Raises:
            InfeasibleError: where a thousand draws in a row are forbidden.
        """
        for _ in range(_MOST_DRAWS):
            vector = random.random(len(self.parameters))
            if not self.forbidden or self.is_allowed(self.config_at(vector)):
                return vector
        raise InfeasibleError(
            f"{_MOST_DRAWS:,} configurations drawn in a row were forbidden; let the {len(self.forbidden)} forbidden "
            "combinations leave more of the space"
        )


def _holds(condition: Condition, config: Config) -> bool:
    return all(clause.name in config and among(config[clause.name], clause.values) for clause in condition)


def split_parts(config: Config) -> Mapping[str, dict[str, Value]]:
    """Return the values by part (``train``, ``model``, ``plan``), their names without it.

    Raises:
        InputError: for a name that begins with no part.
    """
    parts: dict[str, dict[str, Value]] = {part: {} for part in PARTS}
    for name, value in config.items():
        part, dot, rest = name.partition(".")
        if part not in parts or not dot:
            raise InputError(f"parameter {_named(name)} is for nothing: begin its name with train., model. or plan.")
        parts[part][rest] = value
    return parts


def _named(name: str) -> str:
    return repr(printable(name))
