"""Which parameters of different stages are one tensor of the model: in training their gradients are added up.

A stage knows its tensors by the names in the model, and ``tied_as`` says which of them go by another name in the plan.
What has one name there in several stages is one tensor.

Left out: adding gradients up (whoever trains), and backends that keep no gradients.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from .read_source import import_source

Places = tuple[tuple[int, str], ...]
"""Where one tensor is: index of a stage, and the name it has there."""


def tied_across(stages: Sequence[Any]) -> Mapping[str, Places]:
    """Return the trained parameters that several stages hold.

    Args:
        stages: Of the torch or the jax backend, built or read; those of other backends train nothing.

    Returns:
        For every such parameter, by the name the plan has for it: the stages that hold it, each with its name there.
    """
    return _in_several(
        (index, name, stage.tied_as)
        for index, stage in enumerate(stages)
        if hasattr(stage, "tied_as")
        for name in _trained(stage)
    )


def tied_in_folder(directory: Path, files: Sequence[Sequence[str]]) -> Mapping[str, Places]:
    """Return the same for the stages of a folder, without reading a weight.

    Args:
        directory: The folder; the caller has checked the hashes of its files.
        files: Names of the files of every stage, its source first, as in the plan's artefacts.

    Raises:
        BackendError: naming a stage whose source cannot be imported.
    """
    found: list[tuple[int, str, Mapping[str, str]]] = []
    for index, (source, *_) in enumerate(files):
        if source.endswith(".py"):
            module: Any = import_source(directory / source, index)
            found += [(index, name, module.TIED_AS) for name in _declared(module)]
    return _in_several(found)


def _trained(stage: Any) -> list[str]:
    if hasattr(stage, "weights"):
        return [name for name in stage.params if name in stage.weights]
    # straight from state_dict: named_parameters() gives one name of a tensor alone
    return [name for name, tensor in stage.state_dict(keep_vars=True).items() if tensor.requires_grad]


def _declared(module: Any) -> list[str]:
    if hasattr(module, "WEIGHTS"):
        return list(module.WEIGHTS)
    return [name for name, (kind, *_) in module.TENSORS.items() if kind == "weight"]


def _in_several(held: Iterable[tuple[int, str, Mapping[str, str]]]) -> Mapping[str, Places]:
    places: dict[str, list[tuple[int, str]]] = {}
    for index, name, tied_as in held:
        places.setdefault(tied_as.get(name, name), []).append((index, name))
    return MappingProxyType({name: tuple(at) for name, at in places.items() if len({index for index, _ in at}) > 1})
