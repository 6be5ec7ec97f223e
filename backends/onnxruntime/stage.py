"""A stage that ONNX Runtime runs: a part of an ONNX model, and the session opened when it is first called.

Left out: I/O binding, and bfloat16 or 8-bit floats between stages (ONNX Runtime gives no arrays of them).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

import onnx_ir as ir

from heterps_compile.backends.borders import as_array
from heterps_compile.errors import BackendError
from heterps_compile.frontends.onnx_session import (
    CPU,
    ORT_ERRORS,
    Session,
    are_sessions_lean,
    available_providers,
    open_file,
    open_session,
    reason,
)

_NO_KERNEL = "Could not find an implementation"


@dataclass(eq=False)
class LazySession:
    """A session that is opened when it is first run; two threads open it once.

    Attributes:
        what: What it runs, for messages: ``stage 2``.
        model: The model, in memory or as a file.
        provider: ONNX Runtime's name of what it runs on.
        others: Gives the names of the other backends that run the whole model.
    """

    what: str
    model: ir.Model | Path = field(repr=False)
    provider: str = CPU
    others: Callable[[], Sequence[str]] = field(default=tuple, repr=False)
    _session: Session | None = field(default=None, repr=False)
    _opening: Lock = field(default_factory=Lock, repr=False)

    def open(self) -> Session:
        """Return the session.

        Raises:
            BackendError: naming what it was to run, and the op where ONNX Runtime names it.
        """
        with self._opening:
            if self._session is None:
                self._session = self._open()
            return self._session

    def _open(self) -> Session:
        if self.provider not in available_providers():
            raise BackendError(
                f"{self.what} is to run on {self.provider}, which the installed ONNX Runtime does not have (it has "
                f"{', '.join(available_providers())})"
            )
        try:
            if isinstance(self.model, Path):
                return open_file(self.model, self.provider)
            return open_session(self.model, self.provider)
        except ORT_ERRORS as e:
            why = reason(e)
            raise BackendError(f"ONNX Runtime cannot open {self.what}: {why}{self._way_out(why)}") from e

    def _way_out(self, why: str) -> str:
        """Name the backends that run what ONNX Runtime has no kernel for, which they do unverified."""
        if _NO_KERNEL not in why:
            return ""
        others = " or ".join(self.others())
        if not others:
            return "; no other backend here runs the whole model; export it with other ops or data types"
        return (
            f"; the backend {others} runs the model, with --no-verify, since ONNX models are compared with ONNX "
            f"Runtime's run of them"
        )

    def run(self, outputs: tuple[str, ...], feeds: dict[str, Any]) -> list[Any]:
        """Run on arrays by name; a session of :func:`lean_sessions` is let go of afterwards.

        Raises:
            BackendError: naming what was run, and the op where ONNX Runtime names it.
        """
        session = self.open()
        try:
            return session.run(outputs, feeds)
        except ORT_ERRORS as e:
            raise BackendError(f"ONNX Runtime cannot run {self.what}: {reason(e)}") from e
        finally:
            if are_sessions_lean():
                self._session = None


@dataclass(slots=True, eq=False)
class OnnxRuntimeStage:
    """One runnable stage.

    Attributes:
        inputs: Names of the values it takes, in order.
        outputs: Names of the values it gives, in order.
        session: What runs it.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    session: LazySession

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        """Run on arrays or tensors in the order of ``inputs``; give arrays in the order of ``outputs``."""
        if not self.outputs:  # nothing that anybody reads; ONNX Runtime opens no model without a node
            return ()
        feeds = {name: as_array(value, name) for name, value in zip(self.inputs, values, strict=True)}
        return tuple(self.session.run(self.outputs, feeds))
