"""The data of validations: opened anew for each where they can be read once, and counted before the first.

Every sample counts once, so the data must have an end, which every rank knows before the first step.

Left out: the data of the training (``launch/run_data.py``), the passes over them (``forward_pass.py``).
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from heterps_compile.errors import InputError, RunError
from heterps_compile.escape import printable
from heterps_compile.plan.scoring_files import plan_for_scoring
from heterps_compile.runtime.data.identity import Identity, difference, identity_of, name_with_rows
from heterps_compile.runtime.data.iterable import IterableSource
from heterps_compile.runtime.data.open_source import open_source
from heterps_compile.runtime.data.sample_source import Source
from heterps_compile.runtime.launch.combinations import TRAINING_FILE, refuse_combinations
from heterps_compile.runtime.launch.prepare import Prepared
from heterps_compile.runtime.launch.rank_context import RankContext
from heterps_compile.runtime.launch.run_data import inputs_of_run, name_of_spec, try_sample
from heterps_compile.runtime.launch.run_options import GIVEN, RunOptions
from heterps_compile.runtime.launch.training_file import Training, functions_of, in_function
from heterps_compile.strict_json import received

if TYPE_CHECKING:
    from heterps_compile.runtime.c10d import Store

_KEY = "validation-data"
_COLUMNS_SHOWN = 8


@dataclass(frozen=True, slots=True)
class ValidationSize:
    """What every rank knows of the validation data.

    Attributes:
        samples: There are.
        identity: What tells them from others.
    """

    samples: int
    identity: Identity


class ValidationData:
    """The validation data as a rank reads them."""

    def __init__(self, context: RankContext, training: Training) -> None:
        """Open nothing yet: many ranks read none of them."""
        self._context, self._training = context, training
        self._opened: Source | None = None
        self._is_checked = False
        options, given = context.options, context.spec.validation
        self._is_named = given is not None or options.validate is not None
        self._name = name_of_spec(options.validate, given) if self._is_named else "validation_data()"

    def _source(self) -> Source | None:
        """Return the data that are named or given, opened once; None where they come from the training file.

        Raises:
            HeterpsError: where they cannot be read, or have no end.
        """
        if self._opened is None and self._is_named:
            context = self._context
            given, spec = context.spec.validation, context.options.validate
            if given is not None or spec is None:
                self._opened = given
            else:
                plan, folder = context.prepared.plan, context.prepared.folder
                wanted = inputs_of_run(plan, folder, context.options, self._training)
                self._opened = open_source(spec, wanted=wanted)
            if self._opened is not None:
                self._name = name_with_rows(self._opened, self._name)
                refuse_endless(self._opened, self._name)
        return self._opened

    def size(self) -> ValidationSize:
        """Count the samples; goes through what can be read only from front to back.

        Raises:
            InputError: where there is none.
        """
        source = self._source()
        if source is not None:
            return ValidationSize(source.samples or 0, identity_of(source, self._name))
        first = IterableSource(self._items(), is_batched=True)  # refuses what is none
        identity = identity_of(first, self._name)
        counted = CountedItems(self._items())
        for _ in counted:
            pass
        return ValidationSize(counted.samples, identity)

    def open(self, size: ValidationSize, rank: int) -> "tuple[Source, CountedItems | None]":
        """Return the samples from the first on, and what counts those that are read from front to back.

        Args:
            size: What rank 0 validates on.
            rank: This one.

        Raises:
            RunError: where these are other samples.
        """
        source, counted = self._source(), None
        if source is None:
            counted = CountedItems(self._items())
            source = IterableSource(counted, is_batched=True)
        elif self._is_checked:
            return source, None
        differ = difference(size.identity, identity_of(source, self._name))
        if differ is not None:
            raise RunError(
                f"rank {rank} validates on other data ({differ[1]}) than rank 0 when the run began ({differ[0]}); give "
                f"all the same, in the same order every time (a DataLoader must not shuffle)"
            )
        self._is_checked = True
        return source, counted

    def _items(self) -> Iterable[Mapping[str, Any]]:
        function = self._training.validation_data
        assert function is not None  # noqa: S101 - there is no source
        with in_function("validation_data", function):
            items = function()
        if not isinstance(items, Iterable):
            raise InputError(
                f"validation_data() of the training file gave a {type(items).__name__}; it must give an iterable of "
                f"batches, from the first on, every time it is called"
            )
        return items


class CountedItems:
    """Gives items once, and counts the samples in them."""

    def __init__(self, items: Iterable[Mapping[str, Any]]) -> None:
        self._iterator = iter(items)
        self.samples = 0

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return self

    def __next__(self) -> Mapping[str, Any]:
        item = next(self._iterator)
        try:
            self.samples += len(next(iter(item.values())))
        except (AttributeError, StopIteration, TypeError) as error:
            raise InputError(
                f"validation_data() of the training file gives a {type(item).__name__} that is no batch; give dicts of "
                f"columns [samples, ...]"
            ) from error
        return item

    def refuse_more(self, samples: int) -> None:
        """Check that there were so many samples, and no more.

        Raises:
            RunError: with both numbers.
        """
        for _ in self:
            pass
        if self.samples != samples:
            raise RunError(
                f"validation_data() of the training file gave {self.samples:,} samples, and {samples:,} when the run "
                f"began; give the same every time"
            )


def refuse_endless(source: Source, name: str) -> None:
    """Refuse data that validation could not go through once, in order.

    Raises:
        InputError: saying why.
    """
    if source.samples is None:
        raise InputError(
            f"the validation data {printable(name)!r} have no end, and a validation takes every sample once; name a "
            f"file (--validate FILE), or define validation_data() in the training file"
        )
    if not source.samples:
        raise InputError(f"the validation data {printable(name)!r} have no samples; name data that have some")


def refuse_other_columns(training: Iterable[str], validation: Iterable[str]) -> None:
    """Refuse validation data that lack a column of those of the training.

    Raises:
        InputError: naming the columns.
    """
    there = list(validation)
    missing = [name for name in training if name not in there]
    if missing:
        listed = ", ".join(repr(printable(name)) for name in missing[:_COLUMNS_SHOWN])
        has = ", ".join(repr(printable(name)) for name in there[:_COLUMNS_SHOWN]) or "none"
        raise InputError(
            f"the validation data have no column {listed}, which the training data have (they have {has}); give them "
            f"the same columns"
        )


def validates(options: RunOptions, training: Training | None, given: Source | None = None) -> bool:
    """Check if a run validates.

    Raises:
        RunError: if options and functions of the training file do not go together.
    """
    if training is None:
        return False
    refuse_combinations(TRAINING_FILE, functions_of(options, training))
    return options.validate is not None or given is not None or training.validation_data is not None


def try_validation(options: RunOptions, prepared: Prepared) -> None:
    """Look at the validation data of a run before any process has started, as its ranks will.

    Args:
        options: Of the run.
        prepared: The run.

    Raises:
        HeterpsError: where they have no end or no samples, are not what the model takes, or lack a column that the
            training data have.
    """
    if options.validate is None or options.validate == GIVEN:
        return
    plan = plan_for_scoring(prepared.plan)
    wanted = inputs_of_run(plan, prepared.folder, options)
    source = open_source(options.validate, wanted=wanted)
    refuse_endless(source, name_of_spec(options.validate))
    if options.data and options.data != GIVEN:
        opened = open_source(options.data, wanted=wanted, seed=options.seed)
        refuse_other_columns(opened.columns, source.columns)
    try_sample(source, plan, wanted, options.train)


def say_size(store: "Store", size: ValidationSize) -> None:
    """Tell all ranks what rank 0 validates on."""
    store.set(_KEY, json.dumps(asdict(size)))


def hear_size(store: "Store") -> ValidationSize:
    """Wait for what rank 0 validates on.

    Raises:
        RunError: where it said something else.
    """
    return received(ValidationSize, store.get(_KEY), "what rank 0 says of the validation data")
