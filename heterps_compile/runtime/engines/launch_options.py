"""The options of ``launch`` beside those of ``run``: which engine, and what each engine is told.

An option names the engines that it means something for as its subjects; the dataclass of an engine has a field of the
same name, but for those of ``ABOUT_LOSSES``. Imports nothing heavy: ``--help`` reads it.

Left out: the options of ``run``, which every engine takes (``run_options.py``).
"""

from heterps_compile.options import Command, CountRange, Flag, NamedTexts, Option, Repeated, Text, Whole

BY_HAND = "hand"
ENGINE_NAMES = (BY_HAND, "ssh", "slurm", "ray", "kubernetes", "skypilot")
OTHER = "an engine of another package"
ABOUT_LOSSES = ("decide", "spent", "deadline", "catalogue")
"""Options of engines that can go on without a host which the command reads itself, to decide about lost hosts."""


def subject(name: str) -> str:
    """Return what an engine is called as the subject of an option."""
    return f"--on {name}" if name in ENGINE_NAMES else OTHER


def _of(*names: str) -> tuple[str, ...]:
    return tuple(map(subject, names))


def _of_types(name: str, words: str, help_text: str, example: str, *engines: str) -> Option:
    """Return an option that says something of device types."""
    return Option(
        name=name,
        words=words,
        help=f"{help_text} May be repeated.",
        type=NamedTexts("TYPE=TEXT", example),
        metavar="TYPE=TEXT",
        default=(),
        subjects=_of(*engines),
    )


LAUNCH = Command(
    "launch",
    (*_of(*ENGINE_NAMES), OTHER),
    (
        Option(
            name="on",
            words="--on",
            help=f"Start the run with it, follow it and end it: {', '.join(ENGINE_NAMES)}. By hand, lines are printed.",
            type=Text(),
            metavar="ENGINE",
            default=BY_HAND,
        ),
        Option(
            name="only_print",
            words="--print",
            help="Print what the engine would do; start nothing.",
            type=Flag(),
            default=False,
        ),
        Option(
            name="no_check",
            words="--no-check",
            help="Do not look the machines up from here.",
            type=Flag(),
            default=False,
            subjects=_of(BY_HAND, "ssh"),
        ),
        Option(
            name="python",
            words="--python",
            help="The Python there that has heterps-compile.",
            metavar="PATH",
            default="python3",
            subjects=_of("ssh", "slurm", "kubernetes", "skypilot"),
        ),
        Option(
            name="ssh_config",
            words="--ssh-config",
            help="Of OpenSSH, as ssh -F.",
            metavar="FILE",
            default_words="ssh's own",
            subjects=_of("ssh"),
        ),
        Option(
            name="max_restarts",
            words="--max-restarts",
            help="Times that a run which lost a process goes on from its last checkpoint.",
            type=Whole(0),
            metavar="N",
            default=0,
            subjects=_of("ssh", "ray", "kubernetes"),
        ),
        Option(
            name="elastic",
            words="--elastic",
            help="Run on so many hosts: on those left when one is lost, on more when one comes.",
            type=CountRange(),
            metavar="MIN:MAX",
            default_words="those it began with",
            subjects=_of("ssh", "ray"),
        ),
        Option(
            name="decide",
            words="--decide",
            help="The model of a folder of machines -o: when a host is lost, stay, wait or move is decided.",
            metavar="MODEL.onnx",
            default_words="stay",
            subjects=_of("ssh", "ray"),
            needs=("elastic",),
        ),
        Option(
            name="spent",
            words="--spent",
            help="What the run has cost before this launch.",
            metavar="'120 USD'",
            subjects=_of("ssh", "ray"),
            needs=("decide",),
        ),
        Option(
            name="deadline",
            words="--deadline",
            help="From now.",
            metavar="9h",
            default_words="that of machines -o",
            subjects=_of("ssh", "ray"),
            needs=("decide",),
        ),
        Option(
            name="catalogue",
            words="--catalogue",
            help="Today's offers, as machines takes them.",
            metavar="FILE.csv",
            default_words="the built-in ones",
            subjects=_of("ssh", "ray"),
            needs=("decide",),
        ),
        Option(
            name="shared",
            words="--shared",
            help="A folder that this machine and the others share, for script, secret and log.",
            metavar="DIR",
            subjects=_of("slurm"),
        ),
        _of_types("partitions", "--partition", "Slurm's, of a device type.", "v100=gpu", "slurm"),
        _of_types("constraints", "--constraint", "Features of its nodes.", "v100=nvlink", "slurm"),
        _of_types("gpu_types", "--gpu-type", "What Slurm calls its GPUs.", "v100=tesla", "slurm"),
        Option(
            name="sbatch",
            words="--sbatch",
            help="Another option of every component, such as --sbatch=--time=1:00:00; may be repeated.",
            type=Repeated(),
            metavar="--NAME=VALUE",
            default=(),
            subjects=_of("slurm"),
        ),
        Option(
            name="ray_address",
            words="--ray-address",
            help="Of the Ray cluster.",
            metavar="HOST:PORT",
            default="auto",
            subjects=_of("ray"),
        ),
        _of_types("resources", "--resource", "Ray's custom resource; heterps_TYPE otherwise.", "v100=volta", "ray"),
        Option(
            name="image",
            words="--image",
            help="Of pods; it has heterps-compile.",
            metavar="NAME",
            subjects=_of("kubernetes"),
        ),
        Option(
            name="claim",
            words="--claim",
            help="The volume that machines share: a PersistentVolumeClaim, or one of sky volumes.",
            metavar="NAME",
            subjects=_of("kubernetes", "skypilot"),
        ),
        Option(
            name="storage",
            words="--storage",
            help="Write that claim too, of so much.",
            metavar="SIZE",
            default_words="it is there",
            subjects=_of("kubernetes"),
        ),
        Option(
            name="mount",
            words="--mount",
            help="Where the volume is, here and in pods: all paths of the run lie in it.",
            metavar="DIR",
            default="/shared",
            subjects=_of("kubernetes", "skypilot"),
        ),
        Option(
            name="run_name",
            words="--run-name",
            help="What the run is called there.",
            metavar="NAME",
            default="heterps",
            subjects=_of("kubernetes", "skypilot"),
        ),
        _of_types("selectors", "--select", "A label of its nodes.", "v100=gpu.type=v100", "kubernetes"),
        _of_types(
            "limits", "--limit", "What a pod of it takes; nvidia.com/gpu=1 for a GPU.", "v100=a/gpu=1", "kubernetes"
        ),
        Option(
            name="setup",
            words="--setup",
            help="What a new machine runs first, such as 'pip install heterps-compile[torch]'.",
            metavar="COMMAND",
            subjects=_of("skypilot"),
        ),
        _of_types("offers", "--offer", "A key of SkyPilot's resources.", "v100=accelerators=V100:1", "skypilot"),
        _of_types("slots", "--slots", "Processes that one of its nodes takes; 1 otherwise.", "cpu-core=8", "skypilot"),
        Option(
            name="engine_options",
            words="--engine-option",
            help="For an engine of another package; may be given often.",
            type=NamedTexts("NAME=VALUE", "queue=night"),
            metavar="NAME=VALUE",
            default=(),
            subjects=(OTHER,),
        ),
    ),
)
"""What ``launch`` takes beside the options of ``run``."""
