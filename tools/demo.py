"""The whole way on one model: build, export, compile, run the stages, compare: `python tools/demo.py [FOLDER]`."""

import logging
import subprocess
import sys
import warnings
from pathlib import Path

import torch

import heterps_compile
from heterps_compile.examples.ctrdnn import ctrdnn

HIDDEN = (2048, 1024, 512, 256)
FRESH_BATCH = 1000  # stages take any batch, not only the one they were planned for

# Two stages are enough to look at; without --max-stages the search finds a plan of six that is a little cheaper.
OPTIONS = ("--batch", "4096", "--min-throughput", "1000000", "--max-stages", "2")


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "demo-out")
    folder.mkdir(parents=True, exist_ok=True)
    model_file, stages_folder = folder / "ctrdnn.onnx", folder / "ctrdnn.heterps"

    model, example_inputs = ctrdnn(hidden=HIDDEN)
    model.eval()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"1. Built CTRDNN in PyTorch: 26 sparse fields, 5 dense layers, {parameters:,} parameters.", flush=True)

    export(model, example_inputs, model_file)
    print(f"2. Exported it to {model_file}, its batch dynamic.")

    options = [str(model_file), *OPTIONS, "-o", str(stages_folder)]
    print(f"3. heterps-compile {' '.join(options)}", flush=True)
    if code := subprocess.run([sys.executable, "-m", "heterps_compile", *options], check=False).returncode:
        sys.exit(code)

    compiled = heterps_compile.load(stages_folder)
    fresh = ctrdnn(hidden=HIDDEN, batch=FRESH_BATCH, seed=1)[1]
    (staged,) = compiled.run(*(array.numpy() for array in fresh))
    with torch.no_grad():
        whole = model(*fresh)
    scale = float(whole.abs().max())
    difference = float((torch.from_numpy(staged) - whole).abs().max())
    print(f"4. Loaded {stages_folder} and ran its {len(compiled.stages)} stages on {FRESH_BATCH:,} fresh samples:")
    print(f"   the largest difference from the model in PyTorch is {difference:.1e}, at outputs of up to {scale:.2g}.")
    if not difference <= 1e-4 * scale:
        sys.exit("the stages do not match the model")


def export(model: torch.nn.Module, example_inputs: tuple[torch.Tensor, ...], path: Path) -> None:
    """Write the model as ONNX, the first dimension of every input dynamic."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns that torchvision is missing
    batch = torch.export.Dim("batch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter warns of what its own next version deprecates
        torch.onnx.export(
            model,
            example_inputs,
            path,
            input_names=["sparse", "dense"],
            output_names=["logit"],
            dynamo=True,
            dynamic_shapes=({0: batch},) * len(example_inputs),
            external_data=False,
            verbose=False,
        )


if __name__ == "__main__":
    main()
