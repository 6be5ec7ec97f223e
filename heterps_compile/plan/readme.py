"""The README of a compiled folder: what it is, how to run it, what is in it.

Left out: what ``plan.json`` says better (every layer, every value).
"""

from heterps_compile.columns.markdown import markdown_pairs, markdown_table
from heterps_compile.escape import for_markdown

from .plan import Plan
from .stage_columns import STAGES, stage_rows
from .table_words import server_options_of
from .total_columns import HEAD, TOTALS, Summary

_CODE = (
    " The stages are code, and loading runs it: load this folder only where you trust who made it, or with the hash of "
    "`plan.json` that its maker told you: `load(..., expect_sha256=...)`, `run --expect-sha256 ...`."
)


def readme(plan: Plan) -> str:
    """Write the README of a plan whose artefacts are known; every name is escaped."""
    inputs = ", ".join(map(for_markdown, plan.graph_inputs)) or "nothing"
    outputs = ", ".join(map(for_markdown, plan.graph_outputs))
    lines = [
        f"# {for_markdown(plan.model)}, compiled",
        "",
        f"Written by heterps-compile for the pool {for_markdown(plan.cluster)}; the stages run with "
        f"{for_markdown(plan.backend)}.",
        "",
        "## Run it",
        "",
        "```python",
        "import heterps_compile",
        "",
        'compiled = heterps_compile.load("path/to/this/folder")',
        "outputs = compiled.run(...)  # what the model itself takes, and what it returns",
        "```",
        "",
        f"It takes {inputs} and gives {outputs}, at a batch of {plan.batch}.",
        *_scoring(plan),
        *_processes(plan),
        "Loading checks every file against its SHA-256 in `plan.json`, which finds damage and no malice: who can "
        "change a file can change its hash." + (_CODE if _has_code(plan) else ""),
        "",
        "## Stages",
        "",
        *markdown_table(STAGES, stage_rows(plan), plan.currency),
        "",
        "## Estimates",
        "",
        *markdown_pairs((*HEAD, *TOTALS), Summary(plan), plan.currency),
    ]
    return "\n".join(lines) + "\n"


def _scoring(plan: Plan) -> list[str]:
    """Say how what was compiled for training scores."""
    if plan.scoring is None:
        return []
    if plan.scoring.refused:
        return ["It was compiled for training and does not score."]
    return ["It was compiled for training, and runs as it trains; `compiled.eval().run(...)` scores."]


def _has_code(plan: Plan) -> bool:
    return any(files and not files[0].file.endswith(".onnx") for files in plan.artifacts)


def _processes(plan: Plan) -> list[str]:
    """Say how the stages run as processes that pass micro-batches on."""
    training = "--train train.py " if plan.request.mode == "training" else ""
    if plan.tables is not None and not training:
        return ["", ""]  # the paragraph about tables on servers says why no run takes it
    servers = f" {server_options_of(plan)}" if plan.tables is not None else ""
    what = "`train.py` has `loss(outputs, batch)` and `optimizer(parameters)`." if training else ""
    return [
        "",
        "As a pipeline of processes:",
        "",
        "```sh",
        f"heterps-compile run path/to/this/folder {training}--data data.parquet{servers}",
        "```",
        *(["", what] if what else []),
        "",
    ]
