"""The whole way on one model: build, export, compile, compare with other plans, run the stages, look at the picture.

``python tools/demo.py [FOLDER]``; about a minute, 3 GB of disk and 3 GiB of memory.
"""

import logging
import os
import subprocess
import sys
import time
import warnings
import webbrowser
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from demo_model import BEHAVIOURS, RECENT, TABLES, click_model, samples

import heterps_compile
from heterps_compile.api import open_draft
from heterps_compile.errors import InfeasibleError
from heterps_compile.passes.drafts import Annotated, Placed
from heterps_compile.passes.pipeline import run_to

ASKED: dict[str, Any] = {"batch": 4096, "objective": "price", "min_throughput": 500_000, "method": "exact"}
FRESH_BATCH = 1000  # stages take any batch, not only the one they were planned for

Pins = tuple[tuple[str, str], ...]


def main() -> None:
    began = time.perf_counter()
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "demo-out")
    folder.mkdir(parents=True, exist_ok=True)
    model_file, stages_folder, report = (folder / name for name in ("clicks.onnx", "clicks.heterps", "clicks.html"))

    model = click_model()
    size_gb = sum(table.weight.numel() * table.weight.element_size() for table in model.tables()) / 1e9
    print(
        f"1. Built a model of clicks in PyTorch: {len(BEHAVIOURS)} lists of a user's last {RECENT} actions, "
        f"{len(TABLES) - len(BEHAVIOURS)} more fields;"
    )
    print(f"   {len(TABLES)} tables of {sum(TABLES):,} rows in all, {size_gb:.2f} GB; 6 dense layers.", flush=True)

    export(model, model_file)
    print(f"2. Exported it to {model_file}, its batch dynamic.")

    options = [text for name, value in ASKED.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    pictures = str(folder / "pictures")  # layers.svg there is docs/demo.svg
    arguments = [str(model_file), *options, "-o", str(stages_folder), "--report", str(report), "--plots", pictures]
    print(f"3. heterps-compile {' '.join(arguments)}", flush=True)
    if code := subprocess.run([sys.executable, "-m", "heterps_compile", *arguments], check=False).returncode:
        sys.exit(code)

    compiled = heterps_compile.load(stages_folder)
    compare(compiled.plan.value, compiled.plan.currency, model_file)

    fresh = samples(FRESH_BATCH, seed=1)
    (staged,) = compiled.run(*(array.numpy() for array in flat(fresh)))
    with torch.no_grad():
        whole = model(*fresh)
    scale = float(whole.abs().max())
    difference = float((torch.from_numpy(staged) - whole).abs().max())
    print(f"5. Loaded {stages_folder} and ran its {len(compiled.stages)} stages on {FRESH_BATCH:,} fresh samples:")
    print(f"   the largest difference from the model in PyTorch is {difference:.1e}, at outputs of up to {scale:.2g}.")
    if not difference <= 1e-4 * scale:
        sys.exit("the stages do not match the model")

    opened = can_show() and webbrowser.open(report.resolve().as_uri())
    print(
        f"6. {'Opened' if opened else 'The pictures are in'} {report}. All of it took "
        f"{time.perf_counter() - began:.0f} s."
    )


def export(model: torch.nn.Module, path: Path) -> None:
    """Write the model as ONNX, its weights in a file beside it, the first dimension of every input dynamic."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns that torchvision is missing
    batch = torch.export.Dim("batch")
    example_inputs = samples(batch=8)
    dynamic_shapes = tuple([{0: batch}] * len(x) if isinstance(x, list) else {0: batch} for x in example_inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter warns of what its own next version deprecates
        torch.onnx.export(
            model,
            example_inputs,
            path,
            output_names=["logit"],
            dynamo=True,
            dynamic_shapes=dynamic_shapes,
            external_data=True,
            verbose=False,
        )


def flat(inputs: Sequence[torch.Tensor | list[torch.Tensor]]) -> Iterator[torch.Tensor]:
    """Yield the tensors in the order of the ONNX model's inputs."""
    for value in inputs:
        yield from value if isinstance(value, list) else [value]


def compare(ours: float, currency: str, model_file: Path) -> None:
    """Print what the best plan of every other kind costs, each found by the exact search under pins.

    Exits where one of them is as good as the plan that was compiled.
    """
    draft = run_to(open_draft(model_file, **ASKED), Annotated)
    print("4. What others would do at the same floor, each the cheapest of its kind:")
    print(f"   {'plan':53} {currency + '/h':>7}  against ours")
    for words, pins in rivals([device.name for device in draft.cluster.device_types]):
        try:
            theirs = run_to(replace(draft, request=replace(draft.request, pins=pins)), Placed).search.value
        except InfeasibleError as error:
            print(f"   {words:53} no plan: {error}")
            continue
        print(f"   {words:53} {theirs:7.2f}  {theirs / ours - 1:+.0%}".replace("%", " %"))
        if not theirs > ours:
            sys.exit(f"the plan that was compiled is no better than {words}")
    print(f"   {'ours':53} {ours:7.2f}", flush=True)


def rivals(devices: Sequence[str]) -> Iterator[tuple[str, Pins]]:
    """Yield the plans of one type, and the rules of thumb of a pool of CPU cores and one kind of GPU, as pins."""
    for name in devices:
        yield f"every layer on {name}", (("*", name),)
    cpu, gpu = devices
    for pattern, words in (("embedding", "embeddings"), ("data-intensive", "data-intensive layers")):
        yield f"{words} on {cpu}, the rest on {gpu}", (("*", gpu), (pattern, cpu))


def can_show() -> bool:
    """Whether a person is there to see a window."""
    display = sys.platform in ("darwin", "win32") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
    return sys.stdout.isatty() and bool(display)


if __name__ == "__main__":
    main()
