"""The options of a run, and their values as one that travels to its processes as JSON.

Each field of :class:`RunOptions` and :class:`ServerOptions` declares its option: how it is called and written, its
default and its help. The options of the commands, the keywords of ``run()`` and what ranks are sent are made from these
declarations.

Left out: what needs the plan to check it (``prepare.py``), and the plan itself, which every rank reads and hashes.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from typing import Any, ClassVar

from heterps_compile.cost.precision import PRECISIONS
from heterps_compile.errors import InputError
from heterps_compile.options import (
    MOST_WHOLE,
    SEED,
    Amount,
    Choice,
    Command,
    Flag,
    Option,
    Size,
    Text,
    Whole,
    Wholes,
)
from heterps_compile.runtime.validation.best import BestMetric, parse_best
from heterps_compile.units import plain_number

from .option_fields import SUBJECTS, CountOrWord, FilePath, Speeds, check_values, declared, option, training_option
from .server_options import ServerOptions

WIRES = ("float32", "float16", "bfloat16")
OUTPUT_FORMATS = ("safetensors", "npz")
ALL_SAMPLES = "all"

TRAINING, INFERENCE = SUBJECTS

_kept_option = partial(training_option, needs=("checkpoint",))
_JUDGED = ("checkpoint", "keep_best")

GIVEN = "<object>"
"""What stands for a training file or data that are given as objects."""


def check_rules(text: str) -> None:
    """Check that a text says by which rules the replicas of a run agree.

    Raises:
        InputError: where it is none, or leaves them to the planner.
        UnknownNameError: for an unknown rule or option.
    """
    from heterps_compile.sync_rules.assignment import parse_assignment, parse_choice  # noqa: PLC0415 - beside its one use

    if parse_choice(text) is not None:
        raise InputError(
            "--sync auto leaves the rules to the planner, which chooses them for a plan and not for a run; compile "
            "with --sync auto and run that plan, or name the rules (--sync 'topk(density=0.01)')"
        )
    parse_assignment(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """One run: the compiled folder, and its options, of which the help of each says what it is."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "strict": True}

    directory: str
    train: str | None = training_option(
        "--train", FilePath(), "Train with the loss and the optimizer of this file.", metavar="FILE.py"
    )
    data: str = option(
        "--data", FilePath(), "x.parquet, x.csv, a folder of one kind, x.tsv, or random.", metavar="SPEC", default=""
    )
    validate: str | None = training_option(
        "--validate", FilePath(), "Validate on these data, at the end of epochs and of the run.", metavar="SPEC"
    )
    validate_every: int | None = training_option(
        "--validate-every", Whole(), "Steps between two validations.", metavar="N", default_words="an epoch"
    )
    steps: int | None = option(
        "--steps", Whole(), "In all.", metavar="N", default_words="all that the data have", against=("epochs",)
    )
    epochs: int = option("--epochs", Whole(), "Over the data.", metavar="N", default=1)
    shuffle: int | str | None = training_option(
        "--shuffle",
        CountOrWord(ALL_SAMPLES),
        "Mix samples with so many neighbours, or with all.",
        metavar="WINDOW|all",
        default_words="in their order",
    )
    replicas: tuple[int, ...] = option(
        "--replicas",
        Wholes("counts", "2,1"),
        "Of every stage.",
        metavar="N,N,...",
        default=(),
        default_words="the plan's",
    )
    schedule: str | None = option(
        "--schedule", Text(), "gpipe, 1f1b or interleaved-1f1b.", metavar="NAME", default_words="the plan's"
    )
    micro_batches: int | None = option(
        "--micro-batches", Whole(), "In a step.", metavar="N", default_words="the plan's"
    )
    batch: int | None = option("--batch", Whole(), "Samples in a step.", metavar="N", default_words="the plan's")
    speeds: tuple[tuple[float, ...], ...] = option(
        "--speeds", Speeds(), "Of replicas that differ, stage by stage.", metavar="A,B;C", default=()
    )
    precision: str | None = option(
        "--precision",
        Choice(tuple(PRECISIONS)),
        "What forwards compute in, and their values travel in; weights stay float32.",
        default_words="the plan's",
    )
    wire: str = option("--wire", Choice(WIRES), "Of float32 values between stages.", default=WIRES[0])
    sync: str | None = training_option(
        "--sync",
        Text(),
        "How replicas agree: all-reduce, topk(density=0.01), powersgd, adasum, local(steps=4), or stage by stage.",
        metavar="RULES",
        default_words="the plan's",
    )
    clip_norm: float | None = training_option(
        "--clip-norm", Amount(above_zero=True), "Clip the norm of the whole model's gradients to this.", metavar="X"
    )
    ema: float | None = training_option(
        "--ema",
        Amount(above_zero=True, below=1),
        "Keep an exponential moving average of the weights, such as 0.999; validations are of it.",
        metavar="DECAY",
    )
    seed: int = option("--seed", SEED, "Of chance.", metavar="N", default=0)
    threads: int = option("--threads", Whole(1, 1024), "Of every process.", metavar="N", default=1)
    weights: str | None = option(
        "--weights",
        FilePath(),
        "Weights to begin with, a checkpoint or a state dict.",
        metavar="DIR|FILE.safetensors",
        against=("resume",),
    )
    averaged: bool = option(
        "--averaged", Flag(), "Of these weights, the average (--ema).", default=False, needs=("weights",)
    )
    block: int | None = option(
        "--block",
        Whole(),
        "Of these weights, the predictor of this block of the data, from 1.",
        metavar="N",
        needs=("weights",),
        against=("averaged",),
    )
    checkpoint: str | None = training_option(
        "--checkpoint", FilePath(), "Keep checkpoints there; one at the end, and when interrupted.", metavar="DIR"
    )
    every: int | None = _kept_option("--every", Whole(), "Steps between two checkpoints.", metavar="N")
    keep: int = _kept_option("--keep", Whole(), "Checkpoints kept.", metavar="N", default=3)
    keep_best: str | None = _kept_option(
        "--keep-best",
        Text(),
        "Keep the checkpoint of the best validation too: loss, auc:max, error:min.",
        metavar="METRIC",
    )
    stop_after: int | None = training_option(
        "--stop-after", Whole(), "End after so many validations without a better one.", metavar="N", needs=_JUDGED
    )
    resume: bool = _kept_option(
        "--resume", Flag(), "Go on from the last checkpoint, with other replicas or cuts too.", default=False
    )
    restarts: int = _kept_option(
        "--restarts",
        Whole(0),
        "How often to go on from the last checkpoint after a process failed.",
        metavar="N",
        default=0,
    )
    hang_after_s: float = option(
        "--hang-after",
        Amount(above_zero=True, most=MOST_WHOLE),
        "A process that makes no progress for so long hangs.",
        metavar="SECONDS",
        default=10.0,
    )
    servers: ServerOptions = field(default_factory=ServerOptions)
    expect_sha256: str | None = option(
        "--expect-sha256", Text(), "Of the folder's plan.json: refuse another, its stages may be code.", metavar="HEX"
    )
    device_type: str | None = option(
        "--device-type",
        Text(),
        "Device type of this rank: it gets stages of that type.",
        metavar="NAME",
        default_words="that of its GPU, else any",
    )
    trace: str | None = option(
        "--trace", FilePath(), "Write some steps as a Chrome trace, for ui.perfetto.dev.", metavar="FILE.json"
    )
    log: str | None = option("--log", FilePath(), "Write a line of JSON for every step.", metavar="FILE.jsonl")
    telemetry: str | None = option("--telemetry", FilePath(), "Keep there what every rank tells.", metavar="DIR")
    tensorboard: str | None = option("--tensorboard", FilePath(), "Write scalars for TensorBoard.", metavar="DIR")
    output: str | None = option(
        "--output", FilePath(), "Keep what inference gives.", metavar="DIR", subjects=(INFERENCE,)
    )
    output_format: str = option(
        "--output-format",
        Choice(OUTPUT_FORMATS),
        "Of its files.",
        default=OUTPUT_FORMATS[0],
        subjects=(INFERENCE,),
        needs=("output",),
    )
    quiet: bool = option("-q, --quiet", Flag(), "Only the summary.", default=False)

    def __post_init__(self) -> None:
        check_values(self)
        check_values(self.servers)
        values = self.by_name
        given = [option.name for option in RUN.options if values[option.name] != option.default]
        RUN.refuse(values, given, self.subject)
        if self.keep_best is not None:
            parse_best(self.keep_best)
        if self.sync is not None:
            check_rules(self.sync)

    @property
    def by_name(self) -> dict[str, Any]:
        """Return the values by the names that the options are declared under."""
        own = {option.name: getattr(self, name) for name, option in declared(RunOptions)}
        return own | {option.name: getattr(self.servers, name) for name, option in declared(ServerOptions)}

    @property
    def from_block(self) -> int | None:
        """Return the block, from 0, with whose predictor the run begins; None for the weights."""
        return None if self.block is None else self.block - 1

    @property
    def subject(self) -> str:
        """Say what the run is, in the words of the options' declarations."""
        return TRAINING if self.training else INFERENCE

    @property
    def best(self) -> BestMetric | None:
        """Return the metric that says which validation is the best; None for nothing."""
        return None if self.keep_best is None else parse_best(self.keep_best)

    @property
    def training(self) -> bool:
        """Tell whether weights are trained."""
        return self.train is not None

    def to_json(self) -> str:
        """Return text that :func:`options_from_json` reads back."""
        import json  # noqa: PLC0415 - beside its one use

        return json.dumps(asdict(self), sort_keys=True)

    def shared(self) -> dict[str, Any]:
        """Return the options that all ranks must agree on; of those that are a host's own paths, whether given."""
        local = {name for name, option in declared(RunOptions) if isinstance(option.type, FilePath)}
        local |= {"directory", "threads", "quiet", "device_type"}
        agreed = {f.name: asdict(self)[f.name] for f in fields(self) if f.name not in local}
        return agreed | {name: getattr(self, name) is not None for name in _PATHS}


_PATHS = ("train", "validate", "checkpoint", "weights", "output")


def _in_order() -> Iterator[Option]:
    """Yield the options of a run in the order of the help: those of servers where their field stands."""
    own = dict(declared(RunOptions))
    for one in fields(RunOptions):
        if one.name == "servers":
            yield from (option for _, option in declared(ServerOptions))
        elif one.name in own:
            yield own[one.name]


RUN = Command("run", (TRAINING, INFERENCE), tuple(_in_order()))

RESIZABLE = ("replicas", "speeds", "schedule", "micro_batches", "parameter_servers")
"""What a run can change while it runs; steps, batch, data and seed stay, so that no sample is lost or repeated."""

RESIZE = Command(
    "resize",
    (TRAINING,),
    (
        Option(name="to", words="--to", type=Text(), help="Another folder compiled of the same model.", metavar="DIR"),
        *(replace(RUN.option(one), default_words="the same", default=None, needs=(), against=()) for one in RESIZABLE),
    ),
)

_FIELDS = {option.name: name for name, option in declared(RunOptions)}
_SERVER_FIELDS = {option.name: name for name, option in declared(ServerOptions)}


def by_field(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by the fields of :class:`RunOptions`, where they are given by these or by the options' names."""
    found = {_FIELDS.get(name, name): value for name, value in values.items() if name not in _SERVER_FIELDS}
    servers = {_SERVER_FIELDS[name]: value for name, value in values.items() if name in _SERVER_FIELDS}
    return {**found, "servers": replace(found.get("servers", ServerOptions()), **servers)} if servers else found


def frozen(value: Any) -> Any:
    """Return a list or tuple, and those in it, as tuples; other values as they are."""
    return tuple(map(frozen, value)) if isinstance(value, list | tuple) else value


def option_names(values: Mapping[str, Any]) -> set[str]:
    """Return the names of the options that are given, be it by the names of their fields."""
    named = {name: option for option, name in _FIELDS.items()}
    return {named.get(name, name) for name in values}


def options_from_json(text: str) -> RunOptions:
    """Read what :meth:`RunOptions.to_json` wrote.

    Raises:
        InputError: where it is something else.
    """
    from pydantic import TypeAdapter, ValidationError  # noqa: PLC0415 - only in the processes of a run

    try:
        return TypeAdapter(RunOptions).validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the text"
        raise InputError(f"options of the run: {place}: {first['msg']}") from error


def option_words(options: RunOptions) -> list[str]:
    """Return the words of the options that have another value than their default, with absolute paths."""
    values, words = options.by_name, list[str]()
    for one in RUN.options:
        if (value := values[one.name]) != one.default:
            word = one.words.split(", ")[-1]
            words += [word] if isinstance(one.type, Flag) else [word, _as_written(one, value)]
    return words


def _as_written(one: Option, value: Any) -> str:
    from heterps_compile.runtime.data.open_source import is_random  # noqa: PLC0415 - torch only when it runs
    from heterps_compile.runtime.data.remote_file import is_remote  # noqa: PLC0415 - as above

    is_no_path = one.name in ("data", "validate") and (is_random(value) or is_remote(value))
    if isinstance(one.type, FilePath) and not is_no_path:
        return os.path.abspath(str(value))  # the line may be typed in another folder
    if isinstance(one.type, Size):
        return f"{value} B"
    if isinstance(one.type, Speeds):
        return ";".join(",".join(map(plain_number, part)) for part in value)
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return plain_number(value) if isinstance(value, float) else str(value)
