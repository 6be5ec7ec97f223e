"""Choose numbers for the dimensions of an ONNX model that the user left free.

The batch is 32, every other dimension 128, or the nearest number that the model takes, down to 1::

    numbers <- {batch: 4, others: 128}             a small batch, so that runs are short
    while the trial run fails at some node:
        among the free dimensions that reach this node, change one or several:
            to the batch or another free dimension; to what the model's error says it needs; to the batch 1;
            to the next of 64, 256, 32, 224, 512, ...
        keep the first change with which the run succeeds or fails at a later node
    a dimension that only works where it is the batch is the batch: both have one number from here on
    batch <- 32, or 16, 8, 4, where a trial run accepts it; 32 without a run where that would take long

At most 48 runs of at most 5 s of CPU time each, 60 s in all, and a few more to settle. Where ONNX Runtime cannot open
the model, shape inference decides alone.

Not covered: one run (:mod:`.onnx_trial`); names of dimensions (:mod:`.onnx_dims`).
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from math import log, prod
from pathlib import Path

import onnx_ir as ir

from heterps_compile.errors import InputError
from heterps_compile.ir.default_size import BATCH, OTHER, DefaultSize, defaults_in_words
from heterps_compile.logger import CHOSEN, LOG
from heterps_compile.options import MOST_WHOLE
from heterps_compile.progress import check
from heterps_compile.units import counted

from .onnx_bodies import every_node, subgraphs
from .onnx_dims import BoundInputs
from .onnx_inputs import Array, drawn_values
from .onnx_names import quote
from .onnx_trial import Refusal, Trials

_SMALL_BATCH = 4
_MOST_TRIALS = 48
_MOST_S = 60.0
_MOST_FINAL_S = 2.0  # of the run at the final batch; what would take longer is not run
_MOST_ELEMENTS = 2**22  # of one input in a trial at the small batch
_NUMBERS_READ = 6  # of the model's error
_LADDER = (64, 256, 32, 224, 512, 48, 16, 320, 640, 8, 96, 1024, 4, 2, 1, 400, 4096, 16000)

Numbers = dict[str, int]


def choose_numbers(
    model: ir.Model, bound: BoundInputs, given: Mapping[str, Array], path: Path | None = None
) -> tuple[BoundInputs, list[str]]:
    """Bind every free dimension; chosen numbers are :class:`DefaultSize`.

    Returns the inputs, and a note if a limit ended trial runs.

    Args:
        model: The model, normalised.
        bound: Its inputs, bound as far as the user gave numbers.
        given: Arrays that the user gave, by input.
        path: Of the model, for messages.

    Raises:
        InputError: where no numbers are found, naming all that are missing, with a command that has them.
    """
    if not bound.free:
        return bound, []
    search = _Search(model, bound, Trials(model, given), path)
    chosen = search.run()
    ended = [refusal.reason for refusal in search.outcomes.values() if refusal is not None and refusal.is_unfinished]
    if not ended:
        return chosen, []
    shown = defaults_in_words(chosen.bindings)
    return chosen, [f"ended early: {counted(len(ended), 'trial run')} ({ended[0]}); the model may refuse {shown}"]


@dataclass(slots=True)
class _Search:
    model: ir.Model
    bound: BoundInputs
    trials: Trials
    path: Path | None
    hints: list[int] = field(default_factory=list)
    outcomes: dict[tuple[tuple[str, int], ...], Refusal | None] = field(default_factory=dict)

    def run(self) -> BoundInputs:
        """Search as the module says."""
        numbers = self._start()
        refusal = self._try(numbers)
        while refusal is not None and not refusal.is_unfinished:  # nothing speaks against numbers whose run is ended
            found = self._improve(numbers, refusal)
            if found is None:
                raise InputError(self._failure(numbers, refusal))
            numbers, refusal = found
        return self._settle(numbers)

    @property
    def _batch(self) -> str:
        """Find the batch symbol that trials may change; "" if fixed."""
        symbol = self.bound.batch_symbol
        is_held = any(symbol in self.bound.shapes[name] for name in self.trials.given)
        return "" if symbol is None or is_held else symbol

    @property
    def _is_batch_free(self) -> bool:
        return self._batch in self.bound.free

    @property
    def _samples(self) -> int:
        """Find the batch of the final numbers."""
        return BATCH if self.bound.batch_symbol in self.bound.free else self.bound.batch

    @property
    def _small(self) -> int:
        """Find the batch that trials run at."""
        return min(self._samples, _SMALL_BATCH) if self._batch else self._samples

    @property
    def _is_spent(self) -> bool:
        """Check whether only the last trials are left."""
        return self.trials.count >= _MOST_TRIALS or self.trials.spent_s > _MOST_S

    def _leading(self) -> set[str]:
        """Find the free dimensions that inputs begin with, but for the batch."""
        first = {shape[0] for shape in self.bound.shapes.values() if shape}
        return {name for name in self.bound.free if name in first and name != self._batch}

    def _start(self) -> Numbers:
        """Compute the numbers of the first trial; smaller ones where an input would be large."""
        leading, size = self._leading(), OTHER
        while True:
            numbers = {name: self._small if name in leading else size for name in self.bound.free}
            if self._batch:
                numbers[self._batch] = self._small
            if size == 1 or not self._is_large(numbers):
                return _without_computed(self.bound, numbers)
            size //= 2

    def _is_large(self, numbers: Numbers) -> bool:
        """Say whether an input would have more elements than a trial at the small batch should take."""
        filled = self.bound.bind(numbers)
        return any(prod(filled.numbers(name)) > _MOST_ELEMENTS for name in filled.shapes)

    def _try(self, numbers: Numbers) -> Refusal | None:
        key = tuple(sorted(numbers.items()))
        if key not in self.outcomes:
            check()
            self.outcomes[key] = self.trials(self.bound.bind(numbers))
        return self.outcomes[key]

    def _improve(self, numbers: Numbers, refusal: Refusal) -> tuple[Numbers, Refusal | None] | None:
        """Find the first change that lets the model run further."""
        for change in self._changes(numbers, refusal):
            changed = numbers | change
            if tuple(sorted(changed.items())) in self.outcomes or self._is_large(changed):
                continue
            if self._is_spent:
                return None
            found = self._try(changed)
            if found is None or found.place > refusal.place:
                return changed, found
        return None

    def _changes(self, numbers: Numbers, refusal: Refusal) -> Iterator[Numbers]:
        """Yield changes of the dimensions that reach the node that failed, the likeliest first."""
        groups = [list(map(int, re.findall(r"\d+", text))) for text in re.findall(r"\{([\d, ]+)\}", refusal.reason)]
        read = [int(text) for text in re.findall(r"(?<![\w.])\d{1,7}(?![\w.])", refusal.reason)]
        hints = list(dict.fromkeys(number for number in read if 0 < number <= MOST_WHOLE))[:_NUMBERS_READ]
        self.hints += hints
        reached = [name for name in self._reaching(refusal.place) if name in numbers]
        others = [name for name in reached if name != self._batch]
        for name in others:
            for number in dict.fromkeys((self._small, *numbers.values())):
                yield {name: number}
        yield from _scaled(numbers, others, [prod(group) for group in groups])
        for hint in hints:
            for name in others:
                yield {name: hint}
        if self._is_batch_free and self._batch in reached:
            yield {self._batch: 1}
        yield from _scaled(numbers, others, hints)
        for size in _LADDER:
            for name in others:
                yield {name: size}
            if len(others) > 1:
                yield dict.fromkeys(others, size)
        if self._is_batch_free and self._batch in reached:
            for size in (2, *hints):
                yield {self._batch: size}

    def _reaching(self, place: int) -> list[str]:
        """Find the free dimensions that a node depends on; all if unknown."""
        failed = next(islice(every_node(self.model.graph), place, None)) if place >= 0 else None
        reaching: list[str] = []
        if failed is not None:
            pending, seen = [failed], {failed}
            while pending:
                node = pending.pop()
                if node.graph is not self.model.graph or any(True for _ in subgraphs(node)):  # it reads more
                    return list(self.bound.free)
                for value in node.inputs:
                    maker = None if value is None else value.producer()
                    if maker is not None and maker not in seen:
                        seen.add(maker)
                        pending.append(maker)
                    shape = () if value is None else self.bound.shapes.get(value.name or "", ())
                    reaching += [dim for dim in shape if isinstance(dim, str)]
        return [name for name in self.bound.free if name in reaching] or list(self.bound.free)

    def _settle(self, numbers: Numbers) -> BoundInputs:
        """Bind the inputs to accepted numbers, with the largest batch."""
        run_s = self.trials.run_s
        batch, same = self._batch, self._same_as_batch(numbers)
        leading = self._leading() - same
        found = numbers = self._nearer(numbers, leading | same)
        sizes = (BATCH, BATCH // 2, BATCH // 4) if self._is_batch_free else (self._samples,)
        if batch and numbers[batch] == self._small:
            for samples in (*sizes, self._small):
                follow = same | {name for name in leading if numbers[name] == self._small}
                found = numbers | dict.fromkeys((batch, *follow), samples)
                if run_s * samples > _MOST_FINAL_S * self._small or not self._is_batch_free:
                    break
                refusal = self._try(found)
                if refusal is None or refusal.is_unfinished:
                    break
        chosen: dict[str, int] = {}
        for name, number in found.items():
            if name in same:
                chosen[name] = DefaultSize(number, same_as=batch)
            elif name in self.bound.free:
                wanted = BATCH if name == batch else found.get(batch, self._samples) if name in leading else OTHER
                chosen[name] = DefaultSize(number, "default" if number == wanted else "nearest", is_batch=name == batch)
        LOG.info(CHOSEN, defaults_in_words(chosen))
        return self.bound.bind(chosen)

    def _nearer(self, numbers: Numbers, held: set[str]) -> Numbers:
        """Move numbers that equal the batch by chance towards the default."""
        for name in numbers:
            if name == self._batch or name in held or numbers[name] != self._small:
                continue
            read = sorted(set(self.hints), key=lambda number: abs(log(number / OTHER)))
            for size in dict.fromkeys((*read[:_NUMBERS_READ], *_LADDER)):
                if size <= self._small or self._is_large(numbers | {name: size}):
                    continue
                if self._is_spent:
                    break
                if self._try(numbers | {name: size}) is None:
                    numbers = numbers | {name: size}
                    break
        return numbers

    def _same_as_batch(self, numbers: Numbers) -> set[str]:
        """Find dimensions that change only together with the batch."""
        batch = self._batch
        alike = {name for name in numbers if batch and name != batch and numbers[name] == numbers[batch] == self._small}
        more = self._small + 2
        moved = numbers | dict.fromkeys((batch, *alike), more)
        if not alike or self._try(moved) is not None:
            return set()
        leading = self._leading()
        return {
            name
            for name in alike
            if (name in leading if self._is_spent else self._try(moved | {name: more + 1}) is not None)
        }

    def _failure(self, numbers: Numbers, refusal: Refusal) -> str:
        """Say that no numbers were found, with a command that has a place for each."""
        free = [name for name in self.bound.free if name in numbers]
        options = [
            "--batch N" if name == self.bound.batch_symbol else f"--shape {quote(name)[1:-1]}=N" for name in free
        ]
        tried = ", ".join(f"{quote(name)} = {number}" for name, number in numbers.items())
        named = {name: self.bound.nameless.get(name, "") for name in free}
        shown = ", ".join(f"{quote(name)}{f' ({told})' if told else ''}" for name, told in named.items())
        model = "MODEL.onnx" if self.path is None else self.path.name
        return (
            f"the model has free dimensions without a number: {shown}; and no default is accepted after "
            f"{counted(self.trials.count, 'trial run')} (at {tried}: {refusal.reason})"
            f"{drawn_values(self.model.graph, self.trials.given)}. Fix: heterps-compile {model} {' '.join(options)}"
        )


def _without_computed(bound: BoundInputs, numbers: Numbers) -> Numbers:
    """Compute the numbers without those of dimensions that are computed from others."""
    plain = {name: number for name, number in numbers.items() if not any(sign in name for sign in "+-*/")}
    filled = bound.bind(plain)
    return plain | {name: number for name, number in numbers.items() if name in filled.free}


def _scaled(numbers: Numbers, others: list[str], hints: list[int]) -> Iterator[Numbers]:
    """Yield sizes that would change one number in the model's error."""
    for first in hints:
        for second in hints:
            if first == second or not first or not second or not others:
                continue
            ratio = second / first
            each = {name: numbers[name] * ratio ** (1 / len(others)) for name in others}
            if all(abs(size - round(size)) < 1e-6 and 1 <= round(size) <= MOST_WHOLE for size in each.values()):
                yield {name: round(size) for name, size in each.items()}
            for name in others:
                size, rest = divmod(numbers[name] * second, first)
                if not rest and 1 <= size <= MOST_WHOLE:
                    yield {name: size}
