"""Trained tensors as a file: safetensors, an ONNX model, or a program of ``torch.export``.

Each is written aside and appears in one rename. Of an ONNX model and a program the graph stays what it was; the weights
are others.

Left out: ONNX models of more than 2 GiB, which need a second file; programs read from a file, which loading unpickles.
"""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heterps_compile.errors import InputError
from heterps_compile.escape import one_line
from heterps_compile.packages import need
from heterps_compile.plan.whole_file import replace_file

if TYPE_CHECKING:
    from torch import Tensor
    from torch.export import ExportedProgram

SUFFIXES = (".safetensors", ".onnx", ".pt2")
_LARGEST_ONNX_BYTES = 2**31 - 2**20


def write_safetensors(path: Path, tensors: "Mapping[str, Tensor]", metadata: Mapping[str, str]) -> None:
    """Write tensors by name; a tied weight is written under each of its names."""
    from safetensors.torch import save_file  # noqa: PLC0415 - only where something is exported

    own = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    replace_file(path, lambda aside: save_file(own, aside, dict(metadata)))


def read_onnx(path: str, trained: Iterable[str]) -> Any:
    """Return an ONNX model in the form in which a compilation has it, whose names a checkpoint has.

    Args:
        path: Of its file.
        trained: Names of tensors; those that ``Constant`` nodes make become initialisers.

    Raises:
        InputError: where it cannot be read.
    """
    need("reading an ONNX model", "onnx")
    from heterps_compile.frontends.onnx_files import load_model  # noqa: PLC0415 - an extra
    from heterps_compile.frontends.onnx_structure import normalize, release_constants  # noqa: PLC0415 - as above

    model = load_model(path)[0]
    normalize(model)
    release_constants(model.graph, frozenset(trained))
    return model


def weights_of_onnx(model: Any) -> "dict[str, Tensor]":
    """Return the initialisers of a model that torch has a dtype for."""
    import torch  # noqa: PLC0415 - only where something is exported

    found: dict[str, Tensor] = {}
    for name, value in model.graph.initializers.items():
        with suppress(TypeError):  # dtypes that torch lacks are none of a checkpoint's
            array = value.const_value.numpy()
            if value.const_value.dtype.name == "BFLOAT16":
                found[name] = torch.from_numpy(array.view("int16").copy()).view(torch.bfloat16)
            else:
                found[name] = torch.from_numpy(array.copy())
    return found


def write_onnx(path: Path, model: Any, tensors: "Mapping[str, Tensor]") -> None:
    """Write an ONNX model with other initialisers.

    Raises:
        InputError: where it is too large for one file.
    """
    import onnx_ir as ir  # noqa: PLC0415 - an extra
    from onnx_ir.tensor_adapters import TorchTensor  # noqa: PLC0415 - an extra

    size = sum(value.const_value.nbytes for value in model.graph.initializers.values())
    if size > _LARGEST_ONNX_BYTES:
        raise InputError(
            f"the weights have {size:,} bytes, and one file of ONNX holds 2 GiB; write {path.stem}.safetensors, and "
            f"load these"
        )
    for name, tensor in tensors.items():
        model.graph.initializers[name].const_value = TorchTensor(tensor.detach().contiguous(), name=name)
    replace_file(path, lambda aside: ir.save(model, aside))


def write_program(path: Path, program: "ExportedProgram", tensors: "Mapping[str, Tensor]") -> None:
    """Write a program with other weights, for ``torch.export.load`` or translated into ONNX.

    Raises:
        InputError: where PyTorch's exporter cannot translate it.
    """
    import torch  # noqa: PLC0415 - only where something is exported

    with _holding(program, tensors):
        if path.suffix != ".onnx":
            replace_file(path, lambda aside: torch.export.save(program, aside))
            return
        need("writing ONNX from PyTorch", "export")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the exporter, about itself
                made = torch.onnx.export(program, verbose=False)
        except torch.onnx.OnnxExporterError as error:
            raise InputError(
                f"PyTorch cannot write the program as ONNX ({one_line(str(error))[:200]}); write .pt2 or .safetensors"
            ) from error
        if made is not None:
            replace_file(path, made.save)


@contextmanager
def _holding(program: "ExportedProgram", tensors: "Mapping[str, Tensor]") -> Iterator[None]:
    """Have a program hold other weights while a block runs; its own are never written to."""
    from torch import nn  # noqa: PLC0415 - only where something is exported

    own = dict(program.state_dict)
    try:
        for name, tensor in own.items():
            is_parameter = isinstance(tensor, nn.Parameter)
            program.state_dict[name] = (
                nn.Parameter(tensors[name], requires_grad=tensor.requires_grad) if is_parameter else tensors[name]
            )
        yield
    finally:
        program.state_dict.update(own)
