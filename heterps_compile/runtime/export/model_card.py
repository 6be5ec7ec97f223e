"""The card of an exported model: where its weights come from, as Markdown beside it and as metadata in it.

Names out of checkpoints and data are escaped.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from heterps_compile.escape import for_markdown
from heterps_compile.packages import RUN_LAYERS, installed_versions
from heterps_compile.plan.whole_file import replace_file
from heterps_compile.runtime.data.identity import Identity

from .trained_tensors import Trained

_NAMES_SHOWN = 16


def metadata_of(trained: Trained) -> dict[str, str]:
    """Return what a file of safetensors says of itself: facts of the card that no path is among."""
    state = trained.state
    facts = {
        "step": state.step,
        "samples": state.samples,
        "seed": state.seed,
        "precision": state.precision,
        "weights": trained.weights,
        "model_sha256": state.model,
        "plan_sha256": state.plan,
        "metrics": None if state.metrics is None else dict(state.metrics),
        "data": None if state.data is None else state.data.name,
    }
    return {"format": "pt", "heterps_compile": json.dumps(facts, sort_keys=True)}


def write_card(path: Path, exported: Path, trained: Trained, kept: Sequence[str]) -> None:
    """Write the card of a file that was exported.

    Args:
        path: Of the card.
        exported: The file.
        trained: What it has.
        kept: Names of tensors that are the model's own, since no stage reads them.

    Raises:
        InputError: where it cannot be written.
    """
    text = _card(exported, trained, kept)
    replace_file(path, lambda aside: Path(aside).write_text(text, "utf-8"))


def _card(exported: Path, trained: Trained, kept: Sequence[str]) -> str:
    state = trained.state
    with exported.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    numbers = sum(tensor.numel() for tensor in trained.tensors.values())
    rows = [
        ("SHA-256", digest),
        ("weights", f"{len(trained.tensors):,} tensors, {numbers:,} numbers"),
        *([("weights are", trained.weights)] if trained.weights else []),
        ("checkpoint", trained.checkpoint.name),
        ("trained for", f"{state.step:,} steps of {state.batch:,} samples, {state.samples:,} samples"),
        ("seed", str(state.seed)),
        ("precision", state.precision),
        ("SHA-256 of the model's structure", state.model),
        ("SHA-256 of the plan", state.plan),
        ("tables on parameter servers", str(state.servers)),
        *((f"version of {name}", version) for name, version in installed_versions(RUN_LAYERS).items()),
    ]
    parts = [f"# {for_markdown(exported.name)}", _table(("", ""), rows)]
    if state.metrics:
        parts += [
            "## Metrics",
            _table(("metric", "value"), [(n, f"{v:.8g}") for n, v in sorted(state.metrics.items())]),
        ]
    for title, data in (("Training data", state.data), ("Validation data", state.validation_data)):
        if data is not None:
            parts += [f"## {title}", _of_data(data)]
    if state.tied:
        parts += ["## Tied", *(f"- {', '.join(map(for_markdown, group))}" for group in state.tied)]
    if kept:
        more = f" and {len(kept) - _NAMES_SHOWN} more" if len(kept) > _NAMES_SHOWN else ""
        listed = ", ".join(map(for_markdown, kept[:_NAMES_SHOWN]))
        parts += ["## Not trained", f"No stage has these, they are the model's own: {listed}{more}"]
    return "\n\n".join(parts) + "\n"


def _of_data(data: Identity) -> str:
    samples = "no known end" if data.samples is None else f"{data.samples:,}"
    rows = [("name", data.name), ("columns", ", ".join(data.columns)), ("samples", samples)]
    rows += [(file.name, f"{file.kind} {file.fingerprint.removeprefix(f'{file.kind}:')}") for file in data.files]
    if not data.files:
        rows += [(f"part {number}", part.digest or "not known") for number, part in enumerate(data.parts)]
    found = _table(("", ""), rows)
    if "rows=" in data.name:
        found += (
            "\n\nText is hashed to ids: `heterps_compile.hash_ids(texts, column=..., rows=...)` gives the same, with "
            "the rows of the name."
        )
    return found


def _table(head: tuple[str, str], rows: Sequence[tuple[str, str]]) -> str:
    lines = [head, ("---", "---"), *((for_markdown(name), for_markdown(value)) for name, value in rows)]
    return "\n".join(f"| {name} | {value} |" for name, value in lines)
