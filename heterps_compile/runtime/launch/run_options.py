"""The options of a run, each declared once, and their values as one that travels to its processes as JSON.

Left out: what needs the plan to check it (``prepare.py``), and the plan itself, which every rank reads and hashes.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar

from heterps_compile.errors import InputError, UnknownNameError
from heterps_compile.options import MOST_WHOLE, Amount, Command, Flag, Option, Size, Speeds, Whole, Wholes

WIRES = ("float32", "float16", "bfloat16")
OUTPUT_FORMATS = ("safetensors", "npz")
SERVER_OPTIMIZERS = ("sgd", "adagrad", "adam")

TRAINING, INFERENCE = "training (--train FILE.py)", "inference"
MOST_SEED = 2**63 - 1

_SERVED = ("parameter_servers",)
_KEPT = ("checkpoint",)

RUN = Command(
    "run",
    (TRAINING, INFERENCE),
    (
        Option(
            name="train", words="--train", metavar="FILE.py", subjects=(TRAINING,),
            help="Train with the loss and the optimizer of this file.",
        ),
        Option(
            name="data", words="--data", metavar="SPEC", default="",
            help="x.parquet, a folder of such, x.tsv, or random.",
        ),
        Option(
            name="steps", words="--steps", metavar="N", type=Whole(), help="In all.",
            default_words="all that the data have", against=("epochs",),
        ),
        Option(name="epochs", words="--epochs", metavar="N", type=Whole(), default=1, help="Over the data."),
        Option(
            name="replicas", words="--replicas", metavar="N,N,...", type=Wholes("counts", "2,1"), default=(),
            help="Of every stage.", default_words="the plan's",
        ),
        Option(
            name="schedule", words="--schedule", metavar="NAME", help="gpipe, 1f1b or interleaved-1f1b.",
            default_words="the plan's",
        ),
        Option(
            name="micro_batches", words="--micro-batches", metavar="N", type=Whole(), help="In a step.",
            default_words="the plan's",
        ),
        Option(
            name="batch", words="--batch", metavar="N", type=Whole(), help="Samples in a step.",
            default_words="the plan's",
        ),
        Option(
            name="speeds", words="--speeds", metavar="A,B;C", type=Speeds(), default=(),
            help="Of replicas that differ, stage by stage.",
        ),
        Option(
            name="wire", words="--wire", metavar="DTYPE", default=WIRES[0], help="Of floats between stages."
        ),
        Option(
            name="exact_sums", words="--exact-sums", type=Flag(), default=False, subjects=(TRAINING,),
            help="Sum gradients in one process's order, to its very bits; slower.",
        ),
        Option(
            name="clip_norm", words="--clip-norm", metavar="X", type=Amount(above_zero=True), subjects=(TRAINING,),
            help="Clip the norm of the whole model's gradients to this.",
        ),
        Option(
            name="seed", words="--seed", metavar="N", type=Whole(0, MOST_SEED), default=0, help="Of chance."
        ),
        Option(
            name="threads", words="--threads", metavar="N", type=Whole(1, 1024), default=1, help="Of every process."
        ),
        Option(
            name="weights", words="--weights", metavar="DIR/step-N",
            help="Begin with the weights of this checkpoint.",
        ),
        Option(
            name="checkpoint", words="--checkpoint", metavar="DIR", subjects=(TRAINING,),
            help="Keep checkpoints there; one at the end, and when interrupted.",
        ),
        Option(
            name="every", words="--every", metavar="N", type=Whole(), subjects=(TRAINING,), needs=_KEPT,
            help="Steps between two checkpoints.",
        ),
        Option(
            name="keep", words="--keep", metavar="N", type=Whole(), default=3, subjects=(TRAINING,), needs=_KEPT,
            help="Checkpoints kept.",
        ),
        Option(
            name="resume", words="--resume", type=Flag(), default=False, subjects=(TRAINING,), needs=_KEPT,
            help="Go on from the last checkpoint, with other replicas or cuts too.",
        ),
        Option(
            name="hang_after", words="--hang-after", metavar="SECONDS", type=Amount(above_zero=True), default=10.0,
            help="A process that makes no progress for so long hangs.",
        ),
        Option(
            name="parameter_servers", words="--parameter-servers", metavar="N", type=Whole(0), default=0,
            subjects=(TRAINING,), help="Serve embedding tables from N.",
        ),
        Option(
            name="server_optimizer", words="--server-optimizer", metavar="NAME", default=SERVER_OPTIMIZERS[0],
            subjects=(TRAINING,), needs=_SERVED, help="sgd, adagrad or adam.",
        ),
        Option(
            name="server_learning_rate", words="--server-learning-rate", metavar="X", type=Amount(above_zero=True),
            default=0.01, subjects=(TRAINING,), needs=_SERVED, help="Of that optimizer.",
        ),
        Option(
            name="server_memory", words="--server-memory", metavar="SIZE", type=Size(), subjects=(TRAINING,),
            needs=_SERVED, help="Of each server; the rest of the rows lies on disk.",
        ),
        Option(
            name="server_directory", words="--server-directory", metavar="DIR", subjects=(TRAINING,),
            needs=("parameter_servers", "server_memory"), help="Where the rest lies.",
            default_words="a temporary folder",
        ),
        Option(
            name="staleness", words="--staleness", metavar="STEPS", type=Whole(0), default=0, subjects=(TRAINING,),
            needs=_SERVED, help="By how many steps pulls may miss pushes.",
        ),
        Option(
            name="expect_sha256", words="--expect-sha256", metavar="HEX",
            help="Of the folder's plan.json: refuse another, its stages may be code.",
        ),
        Option(
            name="hosts", words="--hosts", metavar="FILE.toml", help="Several machines and the secret they share.",
            default_words="this one",
        ),
        Option(
            name="host", words="--host", metavar="N", type=Whole(), needs=("hosts",),
            help="Which of them, from 1, this machine is: start its ranks.",
        ),
        Option(
            name="trace", words="--trace", metavar="FILE.json",
            help="Write some steps as a Chrome trace, for ui.perfetto.dev.",
        ),
        Option(name="log", words="--log", metavar="FILE.jsonl", help="Write a line of JSON for every step."),
        Option(name="telemetry", words="--telemetry", metavar="DIR", help="Keep there what every rank tells."),
        Option(name="tensorboard", words="--tensorboard", metavar="DIR", help="Write scalars for TensorBoard."),
        Option(
            name="output", words="--output", metavar="DIR", subjects=(INFERENCE,), help="Keep what inference gives."
        ),
        Option(
            name="output_format", words="--output-format", metavar="NAME", default=OUTPUT_FORMATS[0],
            subjects=(INFERENCE,), needs=("output",), help="safetensors or npz.",
        ),
        Option(name="quiet", words="-q, --quiet", type=Flag(), default=False, help="Only the summary."),
    ),
)  # fmt: skip

GIVEN = "<object>"
"""What stands for a training file or data that are given as objects."""


FIELD_NAMES = {
    "hang_after_s": "hang_after",
    "servers.count": "parameter_servers",
    "servers.optimizer": "server_optimizer",
    "servers.learning_rate": "server_learning_rate",
    "servers.staleness": "staleness",
    "servers.memory_bytes": "server_memory",
    "servers.directory": "server_directory",
}
"""What an option is declared as, where its field has another name."""

_DEFAULTS = {option.name: option.default for option in RUN.options}
_DECLARED = {*_DEFAULTS, "hang_after_s"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """The parameter servers of a run.

    Attributes:
        count: Processes; 0 for none, and the tables stay in their stages.
        optimizer: One of :data:`SERVER_OPTIMIZERS`.
        learning_rate: Of that optimiser.
        staleness: Steps that a pull may be ahead of the pushes of others; 0 is synchronous.
        memory_bytes: Of rows and their index that one server keeps in memory; None for all.
        directory: Where the other rows lie.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "strict": True}

    count: int = 0
    optimizer: str = "sgd"
    learning_rate: float = 0.01
    staleness: int = 0
    memory_bytes: int | None = None
    directory: str | None = None

    def __post_init__(self) -> None:
        _at_least(0, parameter_servers=self.count, staleness=self.staleness)
        _one_of("optimiser of parameter servers", self.optimizer, SERVER_OPTIMIZERS)
        _positive(server_learning_rate=self.learning_rate)
        if self.memory_bytes is not None:
            _at_least(1, server_memory=self.memory_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """One run.

    Attributes:
        directory: The compiled folder.
        data: What is read (``data/open_source.py``); "" where the training file has ``data()``.
        train: Path of the training file; None for inference.
        steps: In all, those before a resume included; None for all that the data have.
        epochs: Times the data are gone through, where ``steps`` is None.
        replicas: Of every stage; empty for the plan's.
        schedule: Its name; None for the plan's.
        micro_batches: In a step; None for the plan's.
        batch: Samples in a step; None for the plan's.
        speeds: Per position of the pipeline, how fast each replica is beside the others; empty for equal ones.
        wire: What float32 values travel as.
        exact_sums: Whether gradients are added up in the order of one process.
        clip_norm: Of the gradients of the whole model, at most; None for any.
        seed: Of dropout, shuffling and generated data.
        threads: Of every process.
        weights: Folder of one checkpoint, whose weights the run begins with; None for those that were compiled.
        checkpoint: Folder of the checkpoints; None for none.
        every: Steps between two of them; None for one at the end alone.
        keep: How many are kept.
        resume: Whether to go on from the last one.
        hang_after_s: Seconds without progress after which a process is taken to hang.
        trace: File for a Chrome trace of the run; None for none.
        log: File for JSON lines of every step; None for none.
        telemetry: Folder that all machines share, for what ranks tell of their steps; None for a temporary one.
        tensorboard: Folder for TensorBoard scalars; None for none.
        output: Folder for what inference gives; None where it is thrown away.
        output_format: One of :data:`OUTPUT_FORMATS`.
        quiet: Whether the run says nothing but its summary.
        expect_sha256: Of the folder's ``plan.json``, from somewhere that can be trusted; None to take its own word.
        hosts: File of hosts, where ranks are of several machines; None where they are of one.
        host: Which of them this machine is, from 1; None where a rank is started already.
        servers: The parameter servers.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "strict": True}

    directory: str
    data: str = ""
    train: str | None = None
    steps: int | None = None
    epochs: int = 1
    replicas: tuple[int, ...] = ()
    schedule: str | None = None
    micro_batches: int | None = None
    batch: int | None = None
    speeds: tuple[tuple[float, ...], ...] = ()
    wire: str = WIRES[0]
    exact_sums: bool = False
    clip_norm: float | None = None
    seed: int = 0
    threads: int = 1
    weights: str | None = None
    checkpoint: str | None = None
    every: int | None = None
    keep: int = 3
    resume: bool = False
    hang_after_s: float = 10.0
    trace: str | None = None
    log: str | None = None
    telemetry: str | None = None
    tensorboard: str | None = None
    output: str | None = None
    output_format: str = OUTPUT_FORMATS[0]
    quiet: bool = False
    expect_sha256: str | None = None
    hosts: str | None = None
    host: int | None = None
    servers: ServerOptions = field(default_factory=ServerOptions)

    def __post_init__(self) -> None:
        _at_least(1, steps=self.steps, epochs=self.epochs, micro_batches=self.micro_batches, batch=self.batch)
        _at_least(1, threads=self.threads, every=self.every, keep=self.keep)
        _at_least(0, seed=self.seed)
        for replicas in self.replicas:
            _at_least(1, replicas=replicas)
        for speeds in self.speeds:
            for speed in speeds:
                _positive(speeds=speed)
        _positive(hang_after=self.hang_after_s)
        if self.hang_after_s > MOST_WHOLE:
            raise InputError(f"--hang-after is {self.hang_after_s:g}; it must be {MOST_WHOLE} seconds or fewer")
        if self.clip_norm is not None:
            _positive(clip_norm=self.clip_norm)
        _one_of("wire format", self.wire, WIRES)
        _one_of("output format", self.output_format, OUTPUT_FORMATS)
        values = self.by_name
        RUN.refuse(values, [name for name, value in values.items() if value != _DEFAULTS[name]], self.subject)
        if self.weights is not None and (self.servers.count or self.resume):
            name = "--resume" if self.resume else "--parameter-servers"
            raise InputError(f"--weights and {name} do not go together; to go on from a checkpoint take --resume alone")
        if self.clip_norm is not None and self.servers.count:
            raise InputError(
                "--clip-norm and --parameter-servers do not go together: a norm is known when all gradients of a step "
                "are, and servers step their rows as they are pushed; leave one of the two out"
            )
        if not self.data and self.train is None:
            raise InputError("inference needs data to read (--data FILE, or --data random)")

    @property
    def by_name(self) -> dict[str, Any]:
        """Return the values by the names that the options are declared under."""
        own = {FIELD_NAMES.get(f.name, f.name): getattr(self, f.name) for f in fields(self) if f.name in _DECLARED}
        return own | {FIELD_NAMES[f"servers.{f.name}"]: getattr(self.servers, f.name) for f in fields(self.servers)}

    @property
    def subject(self) -> str:
        """Say what the run is, in the words of the options' declarations."""
        return TRAINING if self.training else INFERENCE

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
        local = {"directory", "train", "data", "checkpoint", "output", "trace", "log", "telemetry", "tensorboard"}
        local |= {"weights", "threads", "quiet", "hosts", "host"}
        agreed = {f.name: asdict(self)[f.name] for f in fields(self) if f.name not in local}
        return agreed | {name: getattr(self, name) is not None for name in ("train", "checkpoint", "weights", "output")}


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


def _at_least(least: int, **numbers: int | None) -> None:
    for name, number in numbers.items():
        if number is not None and number < least:
            raise InputError(f"{_option(name)} is {number}; it must be {least} or more")


def _positive(**numbers: float) -> None:
    for name, number in numbers.items():
        if not (math.isfinite(number) and number > 0):
            raise InputError(f"{_option(name)} is {number}; it must be above zero and finite")


def _one_of(what: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        raise UnknownNameError(what, name, known)


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
