"""An ONNX model as a program of ``torch.export``: all its nodes as one stage of torch, traced with open dimensions.

Nothing is unpickled for it: the graph comes from ONNX, the weights from safetensors.

Left out: ops that the torch backend lacks, and branches on values, which ``torch.export`` does not trace.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from heterps_compile.errors import InputError
from heterps_compile.escape import one_line, printable, shorten

if TYPE_CHECKING:
    from torch import Tensor
    from torch.export import ExportedProgram

_SIZES = (2, 64)  # to trace with; torch.export takes a dimension of 1 for a constant, and an image of 2 x 2 vanishes
_REASON_SHOWN = 200


def program_of_onnx(model: Any, weights: "Mapping[str, Tensor]") -> "tuple[ExportedProgram, list[str]]":
    """Return a model as a program, and which of its open dimensions are fixed in it: ``x, dimension 0: 4``.

    Args:
        model: Of ``onnx_ir``, as :func:`~.model_files.read_onnx` returns it.
        weights: What its initialisers become, by name.

    Raises:
        InputError: where it cannot be traced.
    """
    import torch  # noqa: PLC0415 - torch only where something is exported
    from torch.export import Dim  # noqa: PLC0415 - as above

    from heterps_compile.backends.torch.onnx_backend import build_onnx_stages  # noqa: PLC0415 - as above
    from heterps_compile.backends.torch.onnx_ops.dtypes import torch_type  # noqa: PLC0415 - as above
    from heterps_compile.frontends.onnx import import_onnx  # noqa: PLC0415 - an extra
    from heterps_compile.frontends.onnx_dims import symbols_of  # noqa: PLC0415 - as above
    from heterps_compile.frontends.torch_program import quiet_tracing  # noqa: PLC0415 - as above
    from heterps_compile.ir.partition import cut_graph  # noqa: PLC0415 - as above

    first: Exception | None = None
    symbols = symbols_of(model.graph.inputs)
    for rest in _SIZES if any(symbols.values()) else _SIZES[:1]:
        sizes = {name: (rest if axis else _SIZES[0]) + place for place, (name, axis) in enumerate(symbols.items())}
        try:
            graph = import_onnx(model, shapes=sizes)
            (stage,) = build_onnx_stages(graph, cut_graph(graph, [range(len(graph.nodes))]))
            held = stage.state_dict()
            stage.load_state_dict({name: weights.get(name, tensor) for name, tensor in held.items()}, strict=True)
            examples = tuple(torch.zeros(graph.shape(x), dtype=torch_type(graph.values[x].dtype)) for x in graph.inputs)
            dims = tuple(_open(graph.values[name].shape, Dim.AUTO) for name in graph.inputs)
            with quiet_tracing():
                program = torch.export.export(stage.eval(), examples, dynamic_shapes=(dims,), strict=False)
            break
        except Exception as error:  # noqa: BLE001 - whatever an op or torch.export raises of a size, or of any
            first = first or error
    else:
        reason = shorten(one_line(str(first)), _REASON_SHOWN)
        raise InputError(f"torch.export cannot trace the model ({reason}); write .onnx or .safetensors") from first
    given = [node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"][-len(graph.inputs) :]
    fixed = [
        f"{printable(name)}, dimension {axis}: {value.shape[axis]}"
        for name, value in zip(graph.inputs, given, strict=True)
        for axis, dim in enumerate(graph.values[name].shape)
        if isinstance(dim, str) and isinstance(value.shape[axis], int)
    ]
    return program, fixed


def _open(shape: tuple[int | str, ...], auto: Any) -> dict[int, Any] | None:
    return {axis: auto for axis, dim in enumerate(shape) if isinstance(dim, str)} or None
