"""What inference gives, kept as files: one for every micro-batch, named after its first sample.

Each holds a tensor for every graph output, in the plan's order as ``output_0``, ``output_1``: names from a model
stay out of files.

Left out: putting them together; sorted by name they are in the order of the samples.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heterps_compile.errors import RunError
from heterps_compile.runtime.pipeline.layout import Layout


def write_outputs(folder: Path, file_format: str, first: int, names: Sequence[str], values: Mapping[str, Any]) -> Path:
    """Write the outputs of the samples from ``first`` on.

    Args:
        folder: It exists.
        file_format: ``"safetensors"`` or ``"npz"``.
        first: Number of the first sample.
        names: Of the graph outputs, in order.
        values: Tensors by name; numbers and None are left out.

    Raises:
        RunError: where the file cannot be written.
    """
    import torch  # noqa: PLC0415 - torch only in the processes of a run

    tensors = {
        f"output_{index}": values[name].detach().cpu().contiguous().clone()
        for index, name in enumerate(names)
        if isinstance(values.get(name), torch.Tensor)
    }
    path = folder / f"sample-{first:012d}.{file_format}"
    try:
        if file_format == "npz":
            import numpy as np  # noqa: PLC0415 - only for this format

            # numpy has no bfloat16: widened, nothing is lost
            arrays = {n: (t.float() if t.dtype is torch.bfloat16 else t).numpy() for n, t in tensors.items()}
            np.savez(path, **arrays)
        else:
            from safetensors.torch import save_file  # noqa: PLC0415 - only for this format

            save_file(tensors, path)
    except Exception as error:
        raise RunError(f"cannot write {str(path)!r}: {getattr(error, 'strerror', None) or error}") from error
    return path


@dataclass(frozen=True, slots=True)
class OutputFiles:
    """The files of a run.

    Attributes:
        folder: It exists.
        file_format: ``"safetensors"`` or ``"npz"``.
        names: Of the graph outputs, in order.
        layout: Says which samples a micro-batch has.
        samples: In all; what is given for others, which fill the last step up, is dropped.
    """

    folder: Path
    file_format: str
    names: Sequence[str]
    layout: Layout
    samples: int

    def write(self, step: int, found: Mapping[int, Mapping[str, Any]]) -> None:
        """Write the outputs of a step's micro-batches.

        Raises:
            RunError: where a file cannot be written.
        """
        size = self.layout.micro_batch_size
        for micro_batch, values in found.items():
            first = step * self.layout.batch + micro_batch * size
            count = min(size, self.samples - first)
            if count > 0:
                write_outputs(self.folder, self.file_format, first, self.names, _first_of(values, count, size))


def make_output_folder(path: str) -> Path:
    """Make the folder for outputs.

    Raises:
        RunError: where it holds something, or cannot be made.
    """
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise RunError(f"the folder {path!r} is not empty; name a new one for the outputs (--output DIR)")
    except OSError as error:
        raise RunError(f"cannot make the folder {path!r} for the outputs: {error.strerror}") from error
    return folder


def _first_of(values: Mapping[str, Any], count: int, size: int) -> Mapping[str, Any]:
    """Return the outputs of the first samples of a micro-batch; what is no row for every sample stays whole."""
    if count == size:
        return values
    return {name: v[:count] if getattr(v, "shape", ())[:1] == (size,) else v for name, v in values.items()}
