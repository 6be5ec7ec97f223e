"""What a step of a conv net takes on one GPU: forms of which the nets that are fitted choose one.

Of a net are known (:class:`Net`) its FLOPs, its trainable tensors and the size of its graph, which both stand for how
many operations it has, and the width of its widest 3 x 3 convolution. A form is a sum of two or three terms::

    arithmetic = FLOPs / (peak e) x padded channels / channels    scales with a GPU's cores and clock
    memory     = bytes x operations x width                       scales with its memory rate
    starts     = time x operations, by the graph or by tensors    scales with its clock
    fixed      = a constant                                       scales with its clock

A product on a GPU is cut into tiles, the last of which computes channels that are not there (NVIDIA, *Matrix
multiplication background*, "tile quantization"): channels are rounded up to 32 or 64, or counted as they are. The nets
have three groups of layers with w / 4, w / 2 and w channels and the same FLOPs (He et al. 2016, section 4.2).

Factors are 0 or more, of the least squares of the relative error. The form and the tile are chosen by leaving one
fitted net out after another (the least mean error): nothing that is judged has a part in it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
from scipy.optimize import nnls

TILES = (1, 32, 64)
SUMS: tuple[tuple[str, ...], ...] = (
    ("arithmetic", "tensors"),
    ("arithmetic", "graph"),
    ("arithmetic", "memory"),
    ("arithmetic", "memory", "graph"),
    ("arithmetic", "tensors", "fixed"),
    ("arithmetic", "graph", "fixed"),
)


@dataclass(frozen=True, slots=True)
class Net:
    """A net: forward and backward FLOPs of a sample, trainable tensors, megabytes of its graph, channels."""

    flops: float
    tensors: float
    graph_mb: float
    width: float

    def terms(self, tile: int) -> dict[str, float]:
        """Every term of a form, near 1."""
        padded = [ceil(channels / tile) * tile / channels for channels in (self.width / 4, self.width / 2, self.width)]
        return {
            "arithmetic": self.flops / 1e10 * sum(padded) / len(padded),
            "memory": self.graph_mb * self.width / 1e3,
            "graph": self.graph_mb / 10,
            "tensors": self.tensors / 1e3,
            "fixed": 1.0,
        }


@dataclass(frozen=True, slots=True)
class Form:
    """The terms that are added up, and the channels of a tile."""

    names: tuple[str, ...]
    tile: int

    def __str__(self) -> str:
        return " + ".join(self.names) + (f", tiles of {self.tile}" if self.tile > 1 else "")


FORMS = tuple(Form(names, tile) for names in SUMS for tile in TILES)
Timed = Sequence[tuple[Net, float]]
"""Nets, and the seconds of their step."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """A form with the seconds of a unit of every term."""

    form: Form
    factors: Mapping[str, float]

    def step_s(self, net: Net) -> float:
        terms = net.terms(self.form.tile)
        return sum(factor * terms[name] for name, factor in self.factors.items())

    def on(self, scales: Mapping[str, float]) -> "Fitted":
        """Return the form on another GPU, where terms take so many times as long."""
        return Fitted(self.form, {name: factor * scales.get(name, 1.0) for name, factor in self.factors.items()})


def fit(form: Form, timed: Timed) -> Fitted:
    terms = [net.terms(form.tile) for net, _ in timed]
    matrix = [[of[name] / step_s for name in form.names] for of, (_, step_s) in zip(terms, timed, strict=True)]
    factors, _ = nnls(np.array(matrix), np.ones(len(timed)))
    return Fitted(form, dict(zip(form.names, map(float, factors), strict=True)))


def left_out_error(form: Form, timed: Timed) -> float:
    """Return the mean size of the relative error of nets that are left out of the fit, one after another."""
    sizes = []
    for i, (net, step_s) in enumerate(timed):
        others = [each for j, each in enumerate(timed) if j != i]
        sizes.append(abs(fit(form, others).step_s(net) / step_s - 1))
    return sum(sizes) / len(sizes)


def choose_form(gpus: Sequence[Timed]) -> Form:
    """Return the form that does best on nets left out, over all these GPUs; the first of equals."""
    return min(FORMS, key=lambda form: sum(left_out_error(form, timed) for timed in gpus))
