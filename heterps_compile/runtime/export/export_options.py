"""The options of ``export``. Imports nothing heavy: ``--help`` reads it."""

from heterps_compile.options import Command, Flag, Option, Text, Whole

CHECKPOINT = "a checkpoint"

EXPORT = Command(
    "export",
    (CHECKPOINT,),
    (
        Option(
            name="output",
            words="-o, --output",
            help="Where to, as .safetensors, .onnx or .pt2; the card is FILE.md beside it.",
            type=Text(),
            metavar="FILE",
            default="model.safetensors",
        ),
        Option(
            name="model",
            words="--model",
            help="The model that was compiled: its names are what is written.",
            type=Text(),
            metavar="MODEL.onnx",
            default=None,
            default_words="all that the checkpoint has",
        ),
        Option(
            name="best",
            words="--best",
            help="Of a folder of checkpoints the best by its metric, as --keep-best had it, not the last.",
            type=Flag(),
            default=False,
        ),
        Option(
            name="averaged",
            words="--averaged",
            help="The average of the weights (--ema), not the weights.",
            type=Flag(),
            default=False,
        ),
        Option(
            name="block",
            words="--block",
            help="The predictor of this block of the data, from 1, as local(rule=mm) and rule=mc keep them.",
            type=Whole(),
            metavar="N",
            default=None,
            default_words="the weights",
            against=("averaged",),
        ),
        Option(
            name="force",
            words="--force",
            help="Replace files that are there.",
            type=Flag(),
            default=False,
        ),
    ),
)
