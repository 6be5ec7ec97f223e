"""What ``--model`` names: the file that builds the model of a configuration.

::

    def build(config):                         # the space's model. values, by their names without it
        model = Net(width=config["width"])
        return model, (torch.zeros(256, 8),)   # and inputs to compile it for: a tuple, or a dict by keyword

It is the user's own program and is run as one. An ``.onnx`` file stands for one model, of which nothing is tuned.

Left out: compiling (``trial_plans.py``).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heterps_compile.errors import InputError
from heterps_compile.escape import one_line, printable, short
from heterps_compile.runtime.launch.training_file import where_it_failed
from heterps_compile.source_module import make_known, module_of, run_module

from .parameters import Value

_MODULE = "heterps_model"


@dataclass(frozen=True, slots=True)
class BuiltModel:
    """A model, and the inputs that it is compiled for."""

    model: Any
    inputs: tuple[Any, ...]
    keywords: Mapping[str, Any]


class ModelFile:
    """A file that models come from."""

    def __init__(self, path: Path) -> None:
        """Run the file.

        Raises:
            InputError: where it is not there, fails, or has no function ``build``.
        """
        self.path = path
        self._shown = repr(printable(str(path)))
        if not path.is_file():
            raise InputError(f"the model file {self._shown} does not exist; name a .py file with build(config)")
        if path.suffix not in (".py", ".onnx"):
            raise InputError(f"the model file {self._shown} is no Python file and no ONNX model")
        self._build = None if path.suffix == ".onnx" else self._run()

    def built(self, values: Mapping[str, Value], seed: int) -> BuiltModel:
        """Return the model of a configuration's values; its weights begin as the seed has it.

        Raises:
            InputError: where the file's function fails, or gives something else.
        """
        if self._build is None:
            if values:
                raise InputError(
                    f"the space tunes {short(next(iter(values)))} of the model, and {self._shown} is one model; name a "
                    ".py file with build(config)"
                )
            return BuiltModel(str(self.path), (), {})
        import torch  # noqa: PLC0415 - only where models are built

        torch.manual_seed(seed)
        with self._failing("build() of "):
            made = self._build(dict(values))
        if not isinstance(made, tuple) or len(made) != 2 or not isinstance(made[1], tuple | dict):
            raise InputError(
                f"build() of the model file {self._shown} gives {type(made).__name__}; it must return the model and a "
                "tuple of inputs to compile it for, or a dict of them by keyword"
            )
        model, inputs = made
        return BuiltModel(model, inputs, {}) if isinstance(inputs, tuple) else BuiltModel(model, (), inputs)

    def _run(self) -> Any:
        module = module_of(self.path, _MODULE)
        make_known(module)
        with self._failing(""):
            run_module(module)
        build = getattr(module, "build", None)
        if not callable(build):
            raise InputError(f"the model file {self._shown} has no function build(config), which gives the model")
        return build

    @contextmanager
    def _failing(self, of: str) -> Iterator[None]:
        try:
            yield
        except (Exception, SystemExit) as error:
            told = one_line(where_it_failed(error, self.path))
            raise InputError(f"{of}the model file {self._shown} fails: {told}") from error
