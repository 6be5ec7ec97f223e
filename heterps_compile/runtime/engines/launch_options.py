"""The options of ``launch`` besides those of ``run``.

An option names the values of ``--on`` that take it as its subjects. Imports nothing heavy: ``--help`` reads it.

Left out: the options of ``run``, which every value takes (``run_options.py``).
"""

from heterps_compile.options import Choice, Command, CountRange, Flag, NamedTexts, Option, Sizes, Whole

TORCHRUN, SLURM, SKYPILOT, KUBEFLOW, RAY = STARTERS = ("torchrun", "slurm", "skypilot", "kubeflow", "ray")
ABOUT_LOSSES = ("decide", "spent", "deadline", "catalogue")
"""Options that configure what ``--decide`` answers about a lost host."""


def subject(name: str) -> str:
    """Return the subject of options that a value of ``--on`` takes."""
    return f"--on {name}"


def _on(*names: str) -> tuple[str, ...]:
    return tuple(map(subject, names))


LAUNCH = Command(
    "launch",
    _on(*STARTERS),
    (
        Option(
            name="on",
            words="--on",
            help=f"Print what starts the run with it; ray starts, follows and ends it: {', '.join(STARTERS)}.",
            type=Choice(STARTERS),
            metavar="NAME",
            default=TORCHRUN,
        ),
        Option(
            name="only_print",
            words="--print",
            help="Print the placement group and the command of an actor; start nothing.",
            type=Flag(),
            default=False,
            subjects=_on(RAY),
        ),
        Option(
            name="slots",
            words="--slots",
            help="Processes of a device type on one host; may be repeated.",
            type=Sizes(),
            metavar="TYPE=N",
            default_words="devices of the machine that was chosen, or of one in the pool",
            subjects=_on(TORCHRUN, SLURM, SKYPILOT, KUBEFLOW),
        ),
        Option(
            name="resources",
            words="--resource",
            help="Hosts of a device type, as the scheduler names them: a custom resource of Ray (heterps_TYPE "
            "otherwise), an option of sbatch, a key of SkyPilot's resources, a node label. May be repeated.",
            type=NamedTexts("TYPE=TEXT", "v100=partition=gpu"),
            metavar="TYPE=TEXT",
            default=(),
            subjects=_on(SLURM, SKYPILOT, KUBEFLOW, RAY),
        ),
        Option(
            name="max_restarts",
            words="--max-restarts",
            help="Restarts after a lost process, each from the last checkpoint.",
            type=Whole(0),
            metavar="N",
            default=0,
            subjects=_on(TORCHRUN, SKYPILOT, KUBEFLOW, RAY),
        ),
        Option(
            name="image",
            words="--image",
            help="Container image with heterps-compile.",
            metavar="NAME",
            subjects=_on(KUBEFLOW),
        ),
        Option(
            name="claim",
            words="--claim",
            help="Shared volume: a PersistentVolumeClaim, or a volume of sky volumes.",
            metavar="NAME",
            default_words="none",
            subjects=_on(SKYPILOT, KUBEFLOW),
        ),
        Option(
            name="mount",
            words="--mount",
            help="Mount point of that volume.",
            metavar="DIR",
            default="/shared",
            subjects=_on(SKYPILOT, KUBEFLOW),
        ),
        Option(
            name="ray_address",
            words="--ray-address",
            help="Address of the Ray cluster.",
            metavar="HOST:PORT",
            default="auto",
            subjects=_on(RAY),
        ),
        Option(
            name="elastic",
            words="--elastic",
            help="Least and most hosts: fewer when one is lost, more when one joins.",
            type=CountRange(),
            metavar="MIN:MAX",
            default_words="those it began with",
            subjects=_on(RAY),
            needs=("max_restarts",),
        ),
        Option(
            name="decide",
            words="--decide",
            help="The model of a folder of machines -o: when a host is lost, stay, wait or move is decided.",
            metavar="MODEL.onnx",
            default_words="stay",
            subjects=_on(RAY),
            needs=("elastic",),
        ),
        Option(
            name="spent",
            words="--spent",
            help="What the run has cost before this launch.",
            metavar="'120 USD'",
            subjects=_on(RAY),
            needs=("decide",),
        ),
        Option(
            name="deadline",
            words="--deadline",
            help="From now.",
            metavar="9h",
            default_words="that of machines -o",
            subjects=_on(RAY),
            needs=("decide",),
        ),
        Option(
            name="catalogue",
            words="--catalogue",
            help="Today's offers, as machines takes them.",
            metavar="FILE.csv",
            default_words="the built-in ones",
            subjects=_on(RAY),
            needs=("decide",),
        ),
    ),
)
"""The options of ``launch`` besides those of ``run``."""
