"""Explain why PyTorch cannot trace or run a model: the whole reason, the module and line at fault, and the fix.

Left out: advice to PyTorch's own developers, which follows most of its reasons.
"""

import re
from pathlib import Path
from types import TracebackType

import torch
from torch import nn

from heterps_compile.escape import one_line, printable, shorten

_REASON_SHOWN, _NAME_SHOWN = 1000, 80
_NOT_THE_MODELS = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
_ADVICE = re.compile(
    r"(?:^|\n)\s*(?:While executing|Use tlparse|Original traceback|For more information|Caused by:|For extended logs|"
    r"The error above occurred|The following call raised|Developer debug context|from user code:|Set TORCHDYNAMO)"
)
_LOGS = re.compile(r" For more information, run with TORCH_LOGS=\S+")
_TRACEABLE = (
    "make its forward traceable (no branches on tensor values, no calls out of PyTorch), or pass a torch.fx.GraphModule"
)
_OTHER = f"check that the model runs on the example inputs; then {_TRACEABLE}"
_KEEPS = (
    "its forward replaces a tensor (an assignment to .data) or keeps one outside of its buffers; change a tensor that "
    "is registered, in place and not through .data, or outside of the forward"
)
_REGISTER = (
    "give tuples, lists and dicts there, or make the type known: "
    "torch.export.register_dataclass(TYPE, serialized_type_name=NAME)"
)
_PACKED = "__obj_flatten__"
_UNPACK = "pass the model as it was before it was quantised, or its ONNX export quantised by onnxruntime.quantization"
_FIXES: tuple[tuple[str, str], ...] = (
    (", which is not a known type", _REGISTER),
    ("fake tensor in the exported program constant", _KEEPS),
    (_PACKED, _UNPACK),
    ("0/1 specialized", "give example inputs with 2 or more there, or leave the dimension out of dynamic_shapes"),
    ("must always be equal", "give equal dimensions one torch.export.Dim in dynamic_shapes"),
    ("specialized it to be a constant", "leave the dimension out of dynamic_shapes"),
    ("user-specified ranges", "change dynamic_shapes as it says"),
    ("Constraints violated", "change dynamic_shapes as it says"),
    ("data-dependent", _TRACEABLE),
)
"""What to do, by a part of the reason; the first that fits."""


def whole_reason(error: BaseException) -> str:
    """Find an error's reason on one printable line, without advice to PyTorch's developers."""
    text = str(error)
    cut = _ADVICE.split(text)[0].strip() or text
    return shorten(one_line(_LOGS.sub("", cut)), _REASON_SHOWN) or type(error).__name__


def explain_trace(error: BaseException, model: nn.Module) -> str:
    """Explain a failed trace: module, line, whole reason and fix."""
    reason, (place, module) = whole_reason(error), _place(error, model)
    fix = next((fix for part, fix in _FIXES if part in reason), _OTHER)
    if fix is _REGISTER:
        reason = reason.partition(_FIXES[0][0])[0]
    elif fix is _KEEPS:
        reason = "a tensor of the trace got into the model"
    elif fix is _UNPACK:
        quantised = ((name, m) for name, m in model.named_modules() if ".quantized." in type(m).__module__)
        name, module = next(quantised, ("", model))
        place, reason = _named(name, type(module).__name__), "it packs its weights into an object that is no tensor"
    elif isinstance(module, nn.modules.batchnorm._BatchNorm) and module.momentum is None:
        fix = "give this layer a momentum (momentum=0.1): without one it divides by a number of batches in a tensor"
    elif recurrent := [f"{n!r}" for n, m in model.named_modules() if isinstance(m, nn.RNNBase)]:
        what = printable(shorten(", ".join(recurrent), _NAME_SHOWN))
        fix += f" (recurrent modules such as {what} are traced for one length)" if "constant" in reason else ""
    return f"{place}{reason.rstrip('.')}. Fix: {fix}"


def _place(error: BaseException, model: nn.Module) -> tuple[str, nn.Module | None]:
    """Find the innermost module of an error, and the user's last line."""
    names = {id(module): name for name, module in model.named_modules()}
    found: tuple[str, nn.Module] | None = None
    line = ""
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        own = frame.f_locals.get("self")
        if isinstance(own, nn.Module) and id(own) in names:
            found = names[id(own)], own
        if found is not None and not frame.f_code.co_filename.startswith(_NOT_THE_MODELS):
            line = f"{Path(frame.f_code.co_filename).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    if found is None:
        return "", None
    name, module = found
    what = ", ".join(filter(None, (type(module).__name__, line)))
    return _named(name, what), module


def _named(name: str, what: str) -> str:
    inside = f"module {printable(shorten(name, _NAME_SHOWN))!r} ({what})" if name else f"its forward ({what})"
    return f"in {inside}: "
