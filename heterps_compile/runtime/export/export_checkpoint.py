"""``export_checkpoint()``: a checkpoint as a file that the model, ONNX Runtime or ``torch.export`` loads.

Left out: the command (``cli/export.py``).
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heterps_compile.errors import InputError
from heterps_compile.escape import printable
from heterps_compile.packages import PYTORCH, need
from heterps_compile.runtime.checkpoint.best import find_checkpoint

from .model_card import metadata_of, write_card
from .model_files import (
    SUFFIXES,
    read_onnx,
    weights_of_onnx,
    write_onnx,
    write_program,
    write_safetensors,
)
from .onnx_program import program_of_onnx
from .trained_tensors import Trained, fit_to, read_trained

if TYPE_CHECKING:
    from torch import nn
    from torch.export import ExportedProgram

_PROGRAM = "torch.export.export(model, inputs)"


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written.

    Attributes:
        path: The file.
        card: Its card.
        checkpoint: Whose weights it has.
        step: Of that.
        tensors: How many it has.
        kept: Names of tensors that are the model's own, since no stage
            reads them.
        weights: Which these are, where the checkpoint has an average of them too; else "".
        fixed: Dimensions of inputs that are open in the model and not in the
            program: "x, dimension 0: 4".
    """

    path: Path
    card: Path
    checkpoint: Path
    step: int
    tensors: int
    kept: tuple[str, ...]
    weights: str
    fixed: tuple[str, ...] = ()


def export_checkpoint(
    checkpoint: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    model: "str | os.PathLike[str] | nn.Module | ExportedProgram | None" = None,
    best: bool = False,
    averaged: bool = False,
    block: int | None = None,
    force: bool = False,
) -> Exported:
    """Write the weights of a checkpoint as a model, with a card beside.

    Args:
        checkpoint: A ``step-N`` folder, or the folder of ``--checkpoint``:
            the last one there, or the best.
        path: ``.safetensors``: the state dict of the model, which its
            ``load_state_dict`` takes as it is. ``.onnx``: the ONNX model
            with these weights, or the program translated. ``.pt2``: the
            program with these weights, or the ONNX model as one, for
            ``torch.export.load``.
        model: That was compiled: the path of an ONNX file, a module (for
            ``.safetensors``), or ``torch.export.export(module, inputs)``.
            Without it the tensors of the checkpoint alone are written.
        best: The best checkpoint by its metric, not the last.
        averaged: The average of the weights (``--ema``), not the weights.
        block: The predictor of this block of the data, from 1, where the run
            kept them (``local(rule=mm)`` or ``rule=mc``).
        force: Replace files that are there.

    Raises:
        InputError: where the file cannot be written, its kind is unknown
            or needs another model, or the checkpoint is of another model.
        RunError: where there is no such checkpoint, or it is damaged.
    """
    need("exporting a checkpoint", PYTORCH)
    target = Path(path)
    card = target.with_name(f"{target.name}.md")
    _check_target(target, card, force=force)
    if averaged and block is not None:
        raise InputError("an average of the weights and the predictor of a block are two models; ask for one of them")
    trained = read_trained(find_checkpoint(Path(checkpoint), best=best), averaged=averaged, block=block)
    kept, fixed = _write(target, trained, model)
    write_card(card, target, trained, kept)
    count, state = len(trained.tensors) + len(kept), trained.state
    return Exported(target, card, trained.checkpoint, state.step, count, tuple(kept), trained.weights, tuple(fixed))


def _check_target(target: Path, card: Path, *, force: bool) -> None:
    if target.suffix not in SUFFIXES:
        raise InputError(f"{printable(str(target))!r} is no kind of model that is written: {', '.join(SUFFIXES)}")
    there = next((path for path in (target, card) if path.exists()), None)
    if there is not None and (not force or there.is_dir()):
        raise InputError(f"{printable(str(there))!r} is there already; replace it with --force, or name another file")
    if not target.resolve().parent.is_dir():
        raise InputError(f"cannot write {printable(str(target))!r}: there is no such folder")


def _write(target: Path, trained: Trained, model: Any) -> tuple[list[str], list[str]]:
    """Write the file; return the names that keep the model's own values, and the dimensions that a program fixes."""
    from torch import nn  # noqa: PLC0415 - torch only where something is exported
    from torch.export import ExportedProgram  # noqa: PLC0415 - as above

    suffix = target.suffix
    if isinstance(model, (nn.Module, ExportedProgram)):
        own = model.state_dict() if isinstance(model, nn.Module) else model.state_dict
        values, kept = fit_to(trained, own, "the model")
        if suffix == ".safetensors":
            write_safetensors(target, values, metadata_of(trained))
        elif isinstance(model, nn.Module):
            raise InputError(f"{suffix} needs the graph of the module; give model={_PROGRAM}")
        else:
            write_program(target, model, values)
        return kept, []
    if model is not None and Path(model).suffix == ".pt2":
        raise InputError(
            f"{printable(os.fspath(model))!r} is not read: torch.export.load unpickles what is in such a file and "
            f"evaluates the sizes it names; in Python give what you loaded to export_checkpoint(checkpoint, path, "
            f"model={_PROGRAM})"
        )
    if model is None and suffix != ".safetensors":
        raise InputError(
            f"{suffix} is a graph with its weights: name the model that was compiled (--model MODEL.onnx), or write "
            f".safetensors; of a PyTorch model give its program in Python, export_checkpoint(checkpoint, path, "
            f"model={_PROGRAM})"
        )
    if model is None:
        write_safetensors(target, trained.tensors, metadata_of(trained))
        return [], []
    graph, shown = read_onnx(os.fspath(model), trained.tensors), printable(os.fspath(model))
    values, kept = fit_to(trained, weights_of_onnx(graph), shown)
    if suffix == ".onnx":
        write_onnx(target, graph, {name: values[name] for name in trained.tensors})
    elif suffix == ".pt2":
        program, fixed = program_of_onnx(graph, values)
        write_program(target, program, program.state_dict)
        return kept, fixed
    else:
        write_safetensors(target, values, metadata_of(trained))
    return kept, []
