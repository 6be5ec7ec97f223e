"""ADSAGA: asynchronous variance-reduced steps on a finite sum whose terms lie with their workers.

Glasgow and Wootters, "Asynchronous Distributed Optimization with Stochastic Delays", AISTATS 2022, arXiv 2009.10717. A
worker remembers the last gradient of every one of its terms (the table stays with the data) and sends what is new::

    worker j, with weights x' that it got some time ago       i: one of its own terms, drawn evenly
        g     = gradient of term i at x'
        h     = g - table[i];   table[i] = g                  the innovation, as long as the weights
    server, when h comes
        x     = x - step (h + mean)                           mean: of all tables of all workers
        mean  = mean + h / n
        and sends x back to j

At the minimum every innovation is 0, so that a constant step converges linearly: for m workers in about
``(n + sqrt(m) kappa) log(1 / eps)`` iterations, where asynchronous SGD at a constant step stays at the noise of its
gradients. As the table is refreshed at random, a part ``exp(-t / n)`` of it is as old as t iterations: with few workers
and the right step, a squared error of eps takes about ``n log(1 / eps)``.

Where it loses: memory, a gradient a term (``LinearTerms`` keeps one number instead); data that are seen once have no
table; steps that one worker stands make many workers diverge: 64 at 1 / (2 L) (``docs/synchronisation.md``).

Left out: processes. ``AsyncSaga`` is the server and its workers in one process, on a clock of random delays.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from heterps_compile.errors import InputError


class Terms(Protocol):
    """Terms of a finite sum, and what is remembered of the gradient of each."""

    @property
    def count(self) -> int:
        """Return n."""
        ...

    @property
    def width(self) -> int:
        """Return how many numbers are remembered of a gradient."""
        ...

    def remembered(self, term: int, weights: Tensor) -> Tensor:
        """Return a gradient as it is remembered, of shape (width,)."""
        ...

    def gradient(self, term: int, remembered: Tensor) -> Tensor:
        """Return the gradient that was remembered; linear in it."""
        ...


@dataclass(frozen=True, slots=True)
class AnyTerms:
    """Terms with any gradient, which is remembered whole.

    Attributes:
        count: n.
        width: How many weights there are.
        of: From a term and flat weights to the term's flat gradient.
    """

    count: int
    width: int
    of: Callable[[int, Tensor], Tensor]

    def remembered(self, term: int, weights: Tensor) -> Tensor:
        """Return the gradient."""
        return self.of(term, weights)

    def gradient(self, term: int, remembered: Tensor) -> Tensor:
        """Return what is given."""
        return remembered


@dataclass(frozen=True, slots=True)
class LinearTerms:
    """Terms of a linear model: a loss of the product of features and weights. One number a term is remembered.

    Attributes:
        features: Shape (n, weights).
        slope: From a term and its product to the derivative of its loss: ``product - target`` of least squares.
    """

    features: Tensor
    slope: Callable[[int, Tensor], Tensor]

    @property
    def count(self) -> int:
        """Return n."""
        return self.features.shape[0]

    @property
    def width(self) -> int:
        """Return 1."""
        return 1

    def remembered(self, term: int, weights: Tensor) -> Tensor:
        """Return the slope."""
        return self.slope(term, self.features[term] @ weights).reshape(1)

    def gradient(self, term: int, remembered: Tensor) -> Tensor:
        """Return the features times the slope."""
        return self.features[term] * remembered


class Worker:
    """The terms of one worker, with their table."""

    def __init__(self, terms: Terms, own: Sequence[int], weights: Tensor) -> None:
        """Begin with the gradients at the first weights in the table: one pass over the data."""
        self.terms, self.own = terms, tuple(own)
        self.table = torch.stack([terms.remembered(term, weights) for term in self.own])

    def innovation(self, place: int, weights: Tensor) -> Tensor:
        """Return what is new of the ``place``-th own term at some weights, and remember it."""
        term = self.own[place]
        now = self.terms.remembered(term, weights)
        new = self.terms.gradient(term, now - self.table[place])
        self.table[place] = now
        return new

    def table_sum(self) -> Tensor:
        """Return the sum of the remembered gradients."""
        gradients = zip(self.own, self.table, strict=True)
        return torch.stack([self.terms.gradient(term, kept) for term, kept in gradients]).sum(0)


class Server:
    """The weights, and the mean of all tables."""

    def __init__(self, weights: Tensor, workers: Sequence[Worker], step: float) -> None:
        """Begin; also after a restart, as innovations that were on their way are in the tables and not in the mean."""
        self.weights, self.step = weights.clone(), step
        self.count = sum(len(worker.own) for worker in workers)
        self.mean = torch.stack([worker.table_sum() for worker in workers]).sum(0) / self.count

    def take(self, innovation: Tensor) -> Tensor:
        """Step on an innovation and return the weights, which later steps leave alone."""
        self.weights = self.weights - self.step * (innovation + self.mean)
        self.mean = self.mean + innovation / self.count
        return self.weights


class AsyncSaga:
    """A server and its workers on a clock: each answers after an exponential delay of its own mean.

    ::

        terms = LinearTerms(features, lambda i, product: product - targets[i])
        saga = AsyncSaga(terms, torch.zeros(features.shape[1]), workers=16, step=0.25 / largest_square)
        for weights in saga.run(10_000):
            ...

    Attributes:
        server: The weights.
        workers: The tables.
        time: On the clock so far, in mean delays.
    """

    def __init__(
        self,
        terms: Terms,
        start: Tensor,
        *,
        workers: int,
        step: float,
        seed: int = 0,
        delays: Sequence[float] | None = None,
        variance_reduced: bool = True,
    ) -> None:
        """Deal the terms to workers at random and send out the first weights.

        Args:
            terms: The sum.
            start: The first weights, flat.
            workers: m.
            step: 1 / (4 L), with L the largest curvature of a term, is a good one for up to 64 workers.
            seed: Of terms and delays.
            delays: Mean delay of each worker; 1 by default.
            variance_reduced: False gives asynchronous SGD with the same terms and delays, to compare with.

        Raises:
            InputError: More workers than terms, a step or delay that is not above 0.
        """
        means = [1.0] * workers if delays is None else list(delays)
        if not 1 <= workers <= terms.count:
            raise InputError(f"{terms.count} terms cannot be dealt to {workers} workers; each needs one at least")
        if not step > 0 or len(means) != workers or not all(mean > 0 for mean in means):
            raise InputError(
                f"{workers} workers need a step and a mean delay each, above 0, not {step:g} and {means[:8]}"
            )
        self.time = 0.0
        self._drawn, self._delays = torch.Generator().manual_seed(seed), means
        self._variance_reduced, self._terms = variance_reduced, terms
        order = torch.randperm(terms.count, generator=self._drawn).tolist()
        self.workers = [Worker(terms, order[worker::workers], start) for worker in range(workers)]
        self.server = Server(start, self.workers, step)
        self._due = [(self._delay(worker), worker, start) for worker in range(workers)]
        heapq.heapify(self._due)

    def _delay(self, worker: int) -> float:
        return self._delays[worker] * float(torch.empty(1).exponential_(generator=self._drawn))

    def run(self, iterations: int) -> Iterator[Tensor]:
        """Yield the weights after each of some iterations; call it again to go on."""
        for _ in range(iterations):
            self.time, worker, seen = heapq.heappop(self._due)
            own = self.workers[worker]
            place = int(torch.randint(len(own.own), (1,), generator=self._drawn))
            if self._variance_reduced:
                weights = self.server.take(own.innovation(place, seen))
            else:
                term = own.own[place]
                gradient = self._terms.gradient(term, self._terms.remembered(term, seen))
                weights = self.server.weights = self.server.weights - self.server.step * gradient
            heapq.heappush(self._due, (self.time + self._delay(worker), worker, weights))
            yield weights
