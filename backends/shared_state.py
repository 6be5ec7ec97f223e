"""Two stages of one model, one for training and one for scoring: with the same tensors, each in its own mode.

Left out: stages of ONNX Runtime, whose weights are part of them and never change.
"""

from dataclasses import replace
from typing import Any

from heterps_compile.errors import BackendError

from .contract import Stage
from .mixed import BorderStage


def share_state(stage: Stage, trained: Stage) -> Stage:
    """Return a stage with the tensors of another one of the same cut, by their names.

    A stage of torch is changed and holds the very tensors; of a stage of jax a copy is given that has the arrays as
    they are now.
    """
    if isinstance(stage, BorderStage) and isinstance(trained, BorderStage):
        inner = share_state(stage.stage, trained.stage)
        return BorderStage(inner, stage.take, stage.inputs, stage.outputs)
    both: tuple[Any, Any] = (stage, trained)
    mine, theirs = both
    if hasattr(mine, "arrays") and hasattr(theirs, "arrays"):
        return replace(mine, arrays={name: theirs.arrays.get(name, array) for name, array in mine.arrays.items()})  # type: ignore[no-any-return]
    if hasattr(mine, "state_dict") and hasattr(theirs, "state_dict"):
        _share_tensors(mine, theirs)
    return stage


def keep_mode(stage: Stage, *, training: bool) -> Stage:
    """Let a stage of torch refuse another mode than the one that it was made for: nothing in it would change."""
    if isinstance(stage, BorderStage):
        keep_mode(stage.stage, training=training)
        return stage
    module: Any = stage
    if not hasattr(module, "named_modules"):
        return stage

    def train(mode: bool = True) -> Any:
        if mode != training:
            wanted, instead = (
                ("training", "the stages of the compiled model itself train") if mode else ("evaluation", "")
            )
            instead = instead or "eval() of the compiled model gives stages that score"
            raise BackendError(f"a stage has no {wanted} mode, it was compiled for the other one; {instead}")
        return module  # as it is: a frozen part of it stays frozen

    module.__dict__["train"] = train  # which goes before the method
    module.training = training
    return stage


def _share_tensors(module: Any, other: Any) -> None:
    """Put the parameters and buffers of a module in place of those of the same names in another one."""
    for table in ("_parameters", "_buffers"):
        found = getattr(other, table)
        for name in getattr(module, table):
            if found.get(name) is not None:
                getattr(module, table)[name] = found[name]
    for name, child in module._modules.items():
        if child is not None and other._modules.get(name) is not None:
            _share_tensors(child, other._modules[name])
