"""The options of the command ``tune``. Imports nothing heavy: ``--help`` reads it."""

from typing import Any

from heterps_compile.options import SEED, Amount, Choice, Command, Flag, Option, Text, Whole

BEGUN, RESUMED, SHOWN = "a search that begins", "a search that goes on", "a search that is shown"

METHOD_NAMES = ("random", "hyperband", "tpe", "dehb")
RULE_NAMES = ("whole", "plain", "cost")
ENGINE_NAMES = ("local", "ray")

_BEGINS = (BEGUN,)
_RUNS = (BEGUN, RESUMED)


def _option(name: str, words: str, type_: Any, help_text: str, metavar: str = "", **more: Any) -> Option:
    return Option(name=name, words=words, type=type_, help=help_text, metavar=metavar, **{"subjects": _BEGINS, **more})


TUNE = Command(
    "tune",
    (BEGUN, RESUMED, SHOWN),
    (
        _option(
            "model", "--model", Text(), "Its build(config) gives the model of a trial; or one model.onnx.", "FILE.py",
        ),
        _option("train", "--train", Text(), "Its loss, optimizer and metrics, as run takes them.", "FILE.py"),
        _option(
            "data", "--data", Text(), "To train on, as run takes them.", "SPEC", default="",
            default_words="data() of the training file",
        ),
        _option(
            "validate", "--validate", Text(), "To validate on.", "SPEC",
            default_words="validation_data() of the training file",
        ),
        _option(
            "validate_every", "--validate-every", Whole(1), "Steps between two validations.", "N",
            default_words="an epoch",
        ),
        _option("metric", "--metric", Text(), "Of the validation at the end of a trial.", "NAME"),
        _option("maximise", "--max", Flag(), "The highest value is the best.", default=False, against=("minimise",)),
        _option("minimise", "--min", Flag(), "The lowest is.", default=False),
        _option("trials", "--trials", Whole(1, 1_000_000), "In all, short ones too.", "N", default=100, subjects=_RUNS),
        _option("method", "--method", Choice(METHOD_NAMES), "What is tried next.", default="dehb"),
        _option(
            "fidelity", "--fidelity", Text(), "How long the shortest and a whole trial train: steps, samples, epochs.",
            "MIN:MAX:UNIT", default="1:9:epochs",
        ),
        _option(
            "eta", "--eta", Whole(2, 100), "One in so many trials is trained on, so many times as long.", "N",
            default=3,
        ),
        _option(
            "rule", "--rule", Choice(RULE_NAMES), "Which class of workers a trial is for.",
            default_words="cost; whole where there is one class",
        ),
        _option("pool", "--pool", Text(), "The machines: a file, or a built-in pool.", "FILE.toml", default="local"),
        _option(
            "workers", "--workers", Text(), "How many of each type at once, with how many units: fast=1x2,slow=2x1.",
            "NAME=NxU,...", default_words="one a unit of the pool",
        ),
        _option("money", "--budget", Text(), "What workers may cost in all, such as '20 USD'.", "MONEY"),
        _option("time_limit", "--time-limit", Amount(above_zero=True), "Of one trial.", "SECONDS"),
        _option(
            "retries", "--retries", Whole(0, 1_000), "How often a trial that failed is started again.", "N", default=1,
        ),
        _option("seed", "--seed", SEED, "Of chance.", "N", default=0),
        _option(
            "engine", "--engine", Choice(ENGINE_NAMES), "What starts trials: processes here, or Ray.", default="local",
            subjects=_RUNS,
        ),
        _option(
            "address", "--address", Text(), "Of a cluster of Ray, or auto.", "HOST:PORT",
            default_words="Ray is started here", subjects=_RUNS,
        ),
        _option("output", "-o, --output", Text(), "Folder of the search.", "DIR", subjects=_RUNS),
        _option(
            "resume", "--resume", Flag(), "Go on with the search in DIR.", default=False, subjects=(), needs=("output",)
        ),
        _option("show", "--show", Text(), "Show how the search in DIR stands; it may be running.", "DIR", subjects=()),
        _option(
            "report", "--report", Text(), "Write a page with pictures; it fetches nothing.", "FILE.html", subjects=(),
        ),
        _option("no_verify", "--no-verify", Flag(), "Do not run compiled models against the whole.", default=False),
        _option("quiet", "-q, --quiet", Flag(), "No line for every trial.", default=False, subjects=_RUNS),
    ),
)  # fmt: skip
