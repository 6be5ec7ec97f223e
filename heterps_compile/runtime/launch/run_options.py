"""The options of a run, each declared once, with what it is for: training, inference, or both.

Left out: the run's options as a value that travels (``options.py``).
"""

from heterps_compile.options import Amount, Command, Flag, Option, Size, Speeds, Whole, Wholes

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
