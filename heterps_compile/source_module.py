"""Modules that are the source of a file: byte code lying beside it is neither read nor written.

Python takes byte code for that of a source with the same length and, to the second, the same time. A file that a script
has just changed would run as it was before.

Left out: modules that such a file imports itself, which Python finds and keeps as it does all others; whether the
source may be run (``plan``'s hashes), what is done with it (``backends/read_source.py``,
``runtime/launch/training_file.py``, ``tuning/model_file.py``).
"""

import sys
import types
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path


class _SourceOnly(SourceFileLoader):
    """Compiles the source it is given."""

    def get_code(self, fullname: str) -> types.CodeType:
        """Return the code of the source itself."""
        path = self.get_filename(fullname)
        code: types.CodeType = self.source_to_code(self.get_data(path), path)
        return code


def module_of(source: Path, name: str) -> types.ModuleType:
    """Make the module of a file, which :func:`run_module` runs.

    Args:
        source: A Python file.
        name: Of the module.
    """
    spec = spec_from_loader(name, _SourceOnly(name, str(source)))
    assert spec is not None, "a file's loader has one"  # noqa: S101 - for its type
    return module_from_spec(spec)


def run_module(module: types.ModuleType) -> None:
    """Run what :func:`module_of` made; what its source raises goes on to the caller."""
    spec = module.__spec__
    assert spec is not None, "as module_of made it"  # noqa: S101 - for its type
    assert spec.loader is not None, "as above"  # noqa: S101
    spec.loader.exec_module(module)


def make_known(module: types.ModuleType) -> None:
    """Let a module be found by its name, and what lies beside its file be imported, as of a script.

    Dataclasses look their module up where annotations are not evaluated (``from __future__ import annotations``).
    """
    folder = str(Path(str(module.__file__)).resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    sys.modules[module.__name__] = module
