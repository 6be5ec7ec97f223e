"""The options of the commands that plan, and of those that read plans: each declared once, with what it is for.

Those of a request are declared on it (``request.py``); an option that several commands have is refined where a command
says it in other words.

Left out: the options of a run (``runtime/launch/run_options.py``), what an option is (``heterps_compile.options``).
"""

from dataclasses import replace
from typing import Any

from heterps_compile.options import (
    Amount,
    Choice,
    Command,
    Flag,
    Option,
    Percent,
    Repeated,
    Sizes,
    Text,
    Whole,
    Wholes,
    Words,
)

from .reading_options import BATCH, INPUTS, SHAPES, VALUES
from .request import DEFAULT_CLUSTER
from .request import OPTIONS as REQUEST

ONNX = "an ONNX model"
WORKLOAD = "a workload file"
GRAPH = "a PipeDream graph"
SPLIT_GRAPH = "a PipeDream graph split for max-load"
PROBLEM = "a problem file"
PLANNED_GRAPH = "a PipeDream graph with an --objective other than max-load"
_COSTS = (WORKLOAD, SPLIT_GRAPH)
_GIVEN = (PROBLEM, PLANNED_GRAPH)

PLAN, PLAN_WITH_MODEL = "a plan alone", "a plan with its --model"
SCHEMA = "--schema"
LAYER, LAYER_OF_PLAN = "a LAYER with its --model", "a LAYER of a plan alone"
PINS, INFEASIBLE = "pins of a plan", "--infeasible"
TWO_PLANS = "two plans"
MANIFEST = "--all"

FORMATS = ("text", "json", "markdown", "github")
CLOCKS = ("wall", "cpu")


def _option(name: str, words: str, type_: Any, help_text: str, metavar: str = "", **more: Any) -> Option:
    return Option(name=name, words=words, type=type_, help=help_text, metavar=metavar, **more)


_SHOWN_AS = "[TYPE=]FILE,..."
_CLUSTER = _option("cluster", "--cluster", Text(), "Pool of device types.", "NAME|FILE", default=DEFAULT_CLUSTER)
_PROFILE = _option("profile", "--profile", Text(), "Measured times of layers; see the command profile.", _SHOWN_AS)
_JSON = _option("as_json", "--json", Flag(), "Print one JSON document instead of tables.", default=False)
_REPORT = _option("report", "--report", Text(), "", "FILE.html")
_TRACE = _option(
    "trace", "--trace", Text(), "Write the simulated step as a Chrome trace, for ui.perfetto.dev.", "FILE.json"
)
_QUIET = _option("quiet", "-q, --quiet", Flag(), "", default=False)
_VERBOSE = _option("verbose", "-v, --verbose", Flag(), "", default=False)


def _for(option: Option, *subjects: str, **changes: Any) -> Option:
    """Return an option for some subjects, in a command's own words."""
    return replace(option, subjects=subjects, **changes)


COMPILE = Command(
    "compile",
    (ONNX, WORKLOAD, SPLIT_GRAPH, PROBLEM, PLANNED_GRAPH),
    (
        _option("output", "-o, --output", Text(), "Folder to write.", "DIR", default_words="MODEL.heterps here"),
        _option(
            "force", "--force", Flag(),
            "Replace DIR, with all that is in it, also where no compilation wrote it.", default=False,
        ),
        _for(
            _CLUSTER, ONNX, *_GIVEN,
            help="Pool of device types: a built-in one (see the command clusters) or a TOML file.",
        ),
        REQUEST["objective"],
        _for(REQUEST["min_throughput"], ONNX, *_GIVEN),
        _for(REQUEST["budget"], ONNX, *_GIVEN),
        _for(BATCH, ONNX),
        _for(SHAPES, ONNX),
        _for(VALUES, ONNX),
        _for(INPUTS, ONNX),
        _for(REQUEST["mode"], ONNX, SPLIT_GRAPH, PLANNED_GRAPH),
        _for(REQUEST["reading"], ONNX, *_GIVEN),
        _for(REQUEST["precision"], ONNX),
        _for(REQUEST["optimizer"], ONNX),
        _for(REQUEST["recompute"], ONNX),
        _for(REQUEST["method"], ONNX, *_GIVEN),
        _option(
            "backend", "--backend", Text(), "What the stages run on.", "NAME", default_words="the model's own",
            subjects=(ONNX,),
        ),
        _for(REQUEST["min_stages"], ONNX, *_GIVEN),
        _for(REQUEST["max_stages"], ONNX, *_GIVEN),
        _for(REQUEST["mixed_stages"], ONNX, PROBLEM),
        _for(REQUEST["provisioner"], ONNX),
        _for(REQUEST["synchronisation"], ONNX, PROBLEM),
        _for(REQUEST["allow"], ONNX, PROBLEM),
        _for(REQUEST["tables"], ONNX),
        _for(REQUEST["pins"], ONNX),
        _for(REQUEST["forbidden"], ONNX),
        _option(
            "warm_start", "--warm-start", Text(), "An old plan of the model, file or folder, to begin from.", "PLAN",
            subjects=(ONNX,),
        ),
        _for(_PROFILE, ONNX),
        REQUEST["seed"],
        REQUEST["time_limit"],
        _option(
            "accelerators", "--accelerators", Whole(0), "Of a workload, in place of the file's.", "N", subjects=_COSTS
        ),
        _option("cpus", "--cpus", Whole(0), "Of a workload, in place of the file's.", "N", subjects=(WORKLOAD,)),
        _option(
            "no_verify", "--no-verify", Flag(), "Do not run the stages against the whole model.", default=False,
            subjects=(ONNX,),
        ),
        _option(
            "stablehlo", "--stablehlo", Flag(), "Write stages of the backend jax as StableHLO too.", default=False,
            subjects=(ONNX,), needs=("backend",),
        ),
        _option(
            "annotate", "--annotate", Text(),
            "Write the whole model too, every node annotated with its stage for ONNX Runtime's own partitioning.",
            "FILE.onnx", subjects=(ONNX,),
        ),
        _JSON,
        _option(
            "passes", "--passes", Text(), "The passes that run, with their options; '?' prints the default ones.",
            "PASS{OPTION=VALUE},...", default_words="?", subjects=(ONNX,),
        ),
        _option(
            "print_after", "--print-after", Repeated(), "Print the draft after a pass; may be repeated.", "PASS",
            default=(), subjects=(ONNX,),
        ),
        _for(
            _REPORT, ONNX,
            help="Write a page with pictures of the plan, and of its changes against --warm-start; it fetches nothing.",
        ),
        _option(
            "plots", "--plots", Text(), "Write every picture as SVG, and as PNG where resvg-py is installed.", "DIR",
            subjects=(ONNX,),
        ),
        _for(_TRACE, ONNX),
        replace(_QUIET, help="Print the folder's path alone.", against=("verbose", "as_json")),
        replace(_VERBOSE, help="Print every layer, stage, total and note."),
    ),
)  # fmt: skip

BENCH = Command(
    "bench",
    (ONNX,),
    (
        _CLUSTER,
        replace(REQUEST["objective"], help="What is compared."),
        replace(REQUEST["min_throughput"], help="Throughput to reach."),
        REQUEST["budget"],
        replace(BATCH, help="Samples in one step, where the model is open."),
        SHAPES,
        REQUEST["mode"],
        _option("methods", "--methods", Text(), "Methods to compare.", "A,B,...", default_words="all"),
        _PROFILE,
        replace(REQUEST["seed"], help="Of every search."),
        replace(REQUEST["time_limit"], help="For each method, and proof."),
        _option("plot", "--plot", Text(), "Draw the comparison as a bar chart.", "FILE.svg"),
    ),
)

_TODAY = (
    _option("cluster", "--cluster", Text(), "Pool of today.", "NAME|FILE", default_words="the plan's own"),
    _option("profile", "--profile", Text(), "Measured times of layers, as compile takes them.", _SHOWN_AS),
    _option(
        "allow_stale", "--allow-stale", Flag(), "Go on where the plan was made from something else.", default=False
    ),
)
_WITH_MODEL = _option(
    "model", "--model", Text(), "Compute every estimate again, for this model and today's pool.", "MODEL.onnx",
    subjects=(PLAN_WITH_MODEL,),
)  # fmt: skip

_OF_A_MANIFEST = (
    _option(
        "all_plans", "--all", Flag(), "Take every plan of the manifest, heterps.toml here.", default=False,
        subjects=(MANIFEST,),
    ),
    _option(
        "manifest", "--manifest", Text(), "Take every plan of this one.", "FILE", default_words="heterps.toml",
        subjects=(MANIFEST,),
    ),
)  # fmt: skip

CHECK = Command(
    "check",
    (ONNX, PLAN, MANIFEST),
    (
        *_OF_A_MANIFEST,
        _option(
            "against", "--against", Text(), "The committed plan: a plan.json or a compiled folder.", "PLAN",
            subjects=(ONNX, PLAN),
        ),
        _option(
            "tolerance", "--tolerance", Percent(), "How much better a plan may exist.", "N%", default=0.01,
            subjects=(ONNX,),
        ),
        _for(_TODAY[0], ONNX, PLAN, default_words="the plan's: the built-in one, or as recorded"),
        _option(
            "update", "--update", Flag(),
            "Write the plan found now, where the committed one is not as good or as new.", default=False,
            subjects=(ONNX,),
        ),
        _for(_TODAY[1], ONNX),
        _for(BATCH, ONNX, help="Samples in one step.", default_words="the plan's"),
        _for(
            SHAPES, ONNX,
            help="Number of a free dimension; may be repeated. Others keep the plan's.", default_words="the plan's",
        ),
        _for(VALUES, ONNX, default_words="the plan's"),
        _for(INPUTS, ONNX),
        _option("form", "--format", Choice(FORMATS), "As in diff.", default=FORMATS[0]),
        _for(_REPORT, ONNX, help="Write a page too: from the committed plan to the one found now."),
    ),
)  # fmt: skip

UPDATE = Command(
    "update", (ONNX, MANIFEST), tuple(option for option in CHECK.options if option.name not in ("update", "report"))
)


SHOW = Command(
    "show",
    (PLAN, PLAN_WITH_MODEL, SCHEMA),
    (
        _for(_JSON, PLAN, PLAN_WITH_MODEL, help="Print the plan as today's version of plan.json."),
        _option("schema", "--schema", Flag(), "Print the JSON Schema of plan.json; takes no PLAN.", default=False),
        _for(
            _QUIET, PLAN, PLAN_WITH_MODEL, help="Print nothing: only check that every plan is sound.",
            against=("verbose", "as_json"),
        ),
        _for(
            _VERBOSE, PLAN, PLAN_WITH_MODEL, help="Print every layer with its stage and fingerprint.",
            against=("as_json",),
        ),
        _WITH_MODEL,
        *(_for(option, PLAN_WITH_MODEL) for option in _TODAY),
    ),
)  # fmt: skip

SIMULATE = Command(
    "simulate",
    (PLAN, PLAN_WITH_MODEL),
    (
        _option(
            "schedule", "--schedule", Text(), "gpipe, 1f1b, interleaved-1f1b or zero-bubble.", "NAME",
            default_words="all",
        ),
        _option(
            "micro_batches", "--micro-batches", Whole(), "In a step.", "N", default_words="the best of each schedule"
        ),
        replace(_WITH_MODEL, help="Compute times and memory again, and count every operation."),
        _TODAY[0],
        _for(_TODAY[1], PLAN_WITH_MODEL),
        _TODAY[2],
        replace(_JSON, help="Print one JSON document, with memory over time."),
        replace(_TRACE, help="Write the shortest step as a Chrome trace, for ui.perfetto.dev."),
    ),
)  # fmt: skip


PREDICT = Command(
    "predict",
    (PROBLEM, GRAPH),
    (
        _option("plan", "--plan", Text(), "Stages, replicas, micro-batch: a file of its own.", "PLAN", required=True),
        _option(
            "cluster", "--cluster", Text(), "Pool of device types.", "NAME|FILE",
            default_words="the problem's own; heterps-paper",
        ),
        _for(REQUEST["mode"], GRAPH, default="training"),
        _for(
            REQUEST["reading"], GRAPH,
            help="Of a graph: batches of one replica each (steady-state), or a step that ends before the next "
            "(one-batch-alone). A problem file states its own reading: batch_of.",
            default_words="steady-state",
        ),
        replace(_JSON, help="Print one JSON document instead of tables."),
    ),
)  # fmt: skip


def _asked(option: Option, help_text: str) -> Option:
    return _for(option, INFEASIBLE, help=f"With --infeasible: {help_text}")


EXPLAIN = Command(
    "explain",
    (LAYER, LAYER_OF_PLAN, PINS, INFEASIBLE),
    (
        _option(
            "model", "--model", Text(),
            "The model; without it, a layer is explained as far as the plan alone goes.", "MODEL.onnx",
            subjects=(LAYER, PINS, INFEASIBLE),
        ),
        _option(
            "plan", "--plan", Text(), "Its plan: a plan.json, a compiled folder, or git:REV:PATH.", "PLAN",
            subjects=(LAYER, LAYER_OF_PLAN, PINS),
        ),
        _option(
            "infeasible", "--infeasible", Flag(),
            "Say why no plan meets the options below, and what would help.", default=False, subjects=(INFEASIBLE,),
        ),
        *(_for(option, LAYER, PINS, INFEASIBLE) for option in _TODAY[:2]),
        _for(_TODAY[2], LAYER, PINS),
        replace(_JSON, help="Print one JSON document."),
        _asked(REQUEST["objective"], "what counts."),
        _asked(REQUEST["min_throughput"], "throughput the plan must reach."),
        _asked(REQUEST["budget"], "most the units may cost, such as '5 USD/h'."),
        _asked(BATCH, "samples in one step."),
        _asked(SHAPES, "number of a free dimension; may be repeated."),
        _asked(REQUEST["mode"], "what the stages are for."),
        _asked(REQUEST["min_stages"], "cut into so many or more."),
        _asked(REQUEST["max_stages"], "cut into so many or fewer."),
        _for(
            REQUEST["pins"], PINS, INFEASIBLE,
            help="With --plan: say what it would cost to have layers, by name, kind, intensity or pattern, on a device "
            "type; with --infeasible: what is asked of them. May be repeated.",
        ),
        _for(REQUEST["time_limit"], PINS, help="Of the search with the pins.", default_words="30"),
    ),
)  # fmt: skip

DIFF = Command(
    "diff",
    (TWO_PLANS, MANIFEST),
    (
        *_OF_A_MANIFEST,
        _option(
            "form", "--format", Choice(FORMATS), "github: annotations of a workflow, and the summary of its step.",
            default=FORMATS[0],
        ),
        _option(
            "fail_on", "--fail-on", Text(),
            "What counts as changed: placement, stages, replicas, rules, layers, settings, and limits on price, cost, "
            "throughput, step and memory such as price>5% or throughput<-2%; or nothing.",
            "WHAT,...", default_words="anything", subjects=(TWO_PLANS,),
        ),
        _for(_REPORT, TWO_PLANS, help="Write a page too, with pictures of both plans; it fetches nothing."),
    ),
)  # fmt: skip

PROFILE = Command(
    "profile",
    (ONNX,),
    (
        _option("output", "-o, --output", Text(), "File to write.", "FILE", default="profile.json"),
        _option("devices", "--device", Words(), "cpu, cuda:0, …", "A,B", default=("cpu",)),
        _option(
            "batches", "--batches", Wholes("batches", "1,8,64", 32), "To measure; times between are read off.", "N,N",
            default=(1, 8, 64),
        ),
        SHAPES,
        VALUES,
        INPUTS,
        replace(REQUEST["mode"], help="Training: backwards too."),
        replace(REQUEST["precision"], help="What layers compute in, as run --precision has them."),
        _option(
            "backend", "--backend", Text(), "What runs the layers.", "NAME",
            default_words="the model's own; torch for training",
        ),
        _option("threads", "--threads", Whole(1, 1024), "Of a layer.", "N", default=1),
        _option("repeats", "--repeats", Whole(2, 10_000), "Of a time, at least.", "N", default=15),
        _option(
            "clock", "--clock", Choice(CLOCKS),
            "wall, or cpu: the thread's own time, which others lengthen little.",
            default_words="cpu for one thread on cpu",
        ),
        _option("cache", "--cache", Text(), "Times measured before; new ones are added.", "FILE"),
        _option("problem", "--problem", Text(), "Problem file to write too, of the largest batch.", "FILE"),
        replace(_CLUSTER, help="Pool of the problem file.", default=None, default_words="local", needs=("problem",)),
        _option(
            "no_replicas", "--no-replicas", Flag(), "Do not measure what several processes gain or lose.", default=False
        ),
        _option(
            "no_link", "--no-link", Flag(), "Do not measure the link between processes (and beta).", default=False
        ),
    ),
)  # fmt: skip

CATALOGUE = "a catalogue"
OFFER_SORTS = ("price", "unit-price", "spot", "gpu", "region", "date")

OFFERS = Command(
    "offers",
    (CATALOGUE,),
    (
        _option("gpu", "--gpu", Words(), "Kinds of GPUs, or patterns such as a100*; none: no GPU.", "A,B", default=()),
        _option("region", "--region", Words(), "Regions, or patterns such as eu-*.", "A,B", default=()),
        _option("provider", "--provider", Words(), "Who rents them out.", "A,B", default=()),
        _option("spot", "--spot", Flag(), "Only what has a spot price.", default=False),
        _option(
            "catalogue", "--catalogue", Text(), "A CSV file: this package's own format, SkyPilot's or gpuhunt's.",
            "FILE", default_words="the built-in one",
        ),
        _option(
            "sort", "--sort", Choice(OFFER_SORTS), "Ascending; unit-price is of a GPU, or of a core.",
            default=OFFER_SORTS[0],
        ),
        _option(
            "fresh_days", "--fresh-days", Whole(0, 36_500), "How old a price may be before its age is told.", "DAYS",
            default=90,
        ),
        replace(_JSON, help="Print one JSON document instead of a table."),
    ),
)  # fmt: skip

ADVISE = Command(
    "advise",
    (ONNX,),
    (
        _option(
            "gpu", "--gpu", Text(), "A GPU with a data sheet, such as v100, or a type of --cluster.", "NAME",
            required=True,
        ),
        _option("speed_up", "--speed-up", Amount(above_zero=True), "Wanted over one GPU.", "S", required=True),
        replace(_CLUSTER, default=None, default_words="the GPU's data sheet, servers of heterps-paper"),
        BATCH,
        SHAPES,
        REQUEST["precision"],
        REQUEST["optimizer"],
        _PROFILE,
        replace(_JSON, help="Print one JSON document."),
    ),
)  # fmt: skip

TORCH, READ_ALREADY = "a PyTorch model", "a graph that is read already"

READING = Command(
    "compile()",
    (ONNX, TORCH, READ_ALREADY),
    (
        _option(
            "example_inputs",
            "example_inputs",
            Text(),
            "Positional inputs; of an ONNX model, values by input.",
            subjects=(ONNX, TORCH),
        ),
        _option("example_kwargs", "example_kwargs", Text(), "Keyword inputs.", subjects=(TORCH,)),
        _option("dynamic_shapes", "dynamic_shapes", Text(), "Passed to torch.export.", subjects=(TORCH,)),
        _option("batch", "batch", Whole(), BATCH.help, subjects=(ONNX, TORCH)),
        _option("shapes", "shapes", Sizes(), SHAPES.help, subjects=(ONNX, TORCH)),
    ),
)
"""What is read of a model in Python, by every function that takes one."""

HANDED_ON = (*REQUEST, "cluster", "batch", "shapes", "backend", "warm_start", "profile", "passes")
"""Options that a command which plans hands on to Python under the same names, where it has them."""

COMMANDS = (
    COMPILE,
    BENCH,
    CHECK,
    UPDATE,
    SHOW,
    SIMULATE,
    PREDICT,
    EXPLAIN,
    DIFF,
    PROFILE,
    OFFERS,
    ADVISE,
)
