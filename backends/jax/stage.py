"""A stage that runs: a pure function, its parameters, and how arrays of any kind are handed to it.

The function is pure; the stage is not. A call of the stage keeps the new values of the buffers that the model changes
when it runs (running statistics, counters, caches), and the next call begins from them, as a call of the module does.

The pure function follows jax's own setting of 64 bits, off by default: int64 is int32 then, and float64 float32. A
*call* of the stage enables 64 bits for itself alone, so that dtypes are the graph's; nothing global changes.

Left out: devices (jax's default one).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from heterps_compile.backends.drawn_keys import are_keys_drawn
from heterps_compile.errors import BackendError, HeterpsError
from heterps_compile.escape import printable, shorten
from heterps_compile.host_memory import release_mapped

from .program import Program

_REASON_SHOWN = 400
_ALIGNED = 64  # XLA reads arrays of the CPU's memory in place that begin at a multiple of this

Function = Callable[..., Any]

_NOTHING_DRAWN: ContextVar[bool] = ContextVar("_NOTHING_DRAWN", default=False)
_IS_LEAN: ContextVar[bool] = ContextVar("_IS_LEAN", default=False)
_BEFORE: "ContextVar[dict[JaxStage, Mapping[str, Any]] | None]" = ContextVar("_BEFORE", default=None)


@contextmanager
def nothing_drawn() -> Iterator[None]:
    """Let stages that drop at random, called without a key, drop nothing; outside such a call is an error."""
    before = _NOTHING_DRAWN.set(True)
    try:
        yield
    finally:
        _NOTHING_DRAWN.reset(before)


@contextmanager
def buffers_put_back() -> Iterator[None]:
    """On leaving give every stage that was called the buffers that it had before."""
    before: dict[JaxStage, Mapping[str, Any]] = {}
    token = _BEFORE.set(before)
    try:
        yield
    finally:
        _BEFORE.reset(token)
        for stage, arrays in before.items():
            stage.change(arrays)


@contextmanager
def lean_stages() -> Iterator[None]:
    """Let stages that are called inside compute with their parameters where these lie, and keep no copy of them."""
    before = _IS_LEAN.set(True)
    try:
        yield
    finally:
        _IS_LEAN.reset(before)


def is_nothing_drawn() -> bool:
    """Say whether stages drop nothing now."""
    return _NOTHING_DRAWN.get()


@dataclass(eq=False)
class JaxStage:
    """One runnable stage.

    Attributes:
        inputs: Names of the values it takes, in order.
        outputs: Names of the values it gives, in order.
        function: ``function(params, *inputs)``, pure: for ``jax.jit``, ``jax.grad`` and ``jax.vmap``. Where the stage
            draws random numbers, it has the keyword ``key`` besides.
        arrays: Its parameters by name, as numpy arrays; buffers that a call has changed, as jax arrays.
        weights: Names of the parameters that are trained.
        known_inputs: Names of inputs that must be known before it runs (static under ``jax.jit``).
        program: What it was built from, or None where it was read from a file.
        tied_as: Of the parameters that go by several names in the model: the one the plan has, by its name here.
        updated: The parameters that the model changes when it runs, by name: the momentum of a running average, None
            for others.
        draws: Whether it draws random numbers: drops at random.
        stepping: As ``function``; gives the outputs and the new values of what is updated by name. None where nothing
            is.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    function: Function
    arrays: Mapping[str, Any] = field(repr=False)
    weights: frozenset[str] = field(default=frozenset(), repr=False)
    known_inputs: frozenset[str] = frozenset()
    program: Program | None = field(default=None, repr=False)
    tied_as: Mapping[str, str] = field(default_factory=dict, repr=False)
    updated: Mapping[str, float | None] = field(default_factory=dict)
    draws: bool = False
    stepping: Function | None = field(default=None, repr=False)
    _params: dict[bool, tuple[Mapping[str, Any], dict[str, Any]]] = field(default_factory=dict, init=False, repr=False)
    _compiled: dict[tuple[Any, ...], Any] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, program: Program) -> "JaxStage":
        """Return the stage that runs a program."""
        return cls(
            program.inputs, program.outputs, program, program.parameters, program.weights, program.known_inputs,
            program, program.tied_as, program.momentum, program.draws, program.step if program.updates else None,
        )  # fmt: skip

    @property
    def params(self) -> dict[str, Any]:
        """Return the parameters as a pytree: jax arrays by their names in the model, of 64 bits where jax has them.

        They are those of the next call: a dict that was given before stays as it is.
        """
        has_64_bits = jax.dtypes.canonicalize_dtype(np.int64) == np.int64
        made_of, params = self._params.get(has_64_bits, ({}, {}))
        if made_of is not self.arrays:
            other_of, other = self._params.get(not has_64_bits, ({}, {}))
            found = {}
            for name, array in self.arrays.items():
                is_same = has_64_bits or array.dtype.itemsize < 8
                if made_of.get(name) is array:
                    found[name] = params[name]
                elif is_same and isinstance(array, jax.Array):
                    found[name] = array
                elif array.dtype.itemsize < 8 and other_of.get(name) is array:
                    found[name] = other[name]
                else:
                    found[name] = jnp.asarray(np.asarray(array))
            params = found
            self._params[has_64_bits] = (self.arrays, params)
        return dict(params)

    def change(self, arrays: Mapping[str, Any]) -> None:
        """Take other values of some parameters, by name, for the calls to come; names of one tensor get one value."""
        by_storage = {self.tied_as.get(name, name): array for name, array in arrays.items()}
        self.arrays = {name: by_storage.get(self.tied_as.get(name, name), array) for name, array in self.arrays.items()}

    @property
    def trained(self) -> dict[str, Any]:
        """Return those of the parameters that are trained; the others are buffers and constants, whole numbers too."""
        return {name: array for name, array in self.params.items() if name in self.weights}

    def step(self, params: Mapping[str, Any], *inputs: Any, key: Any = None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Run; pure, and the same for every stage. Give the outputs, and the new values of ``updated`` by name.

        Without a key nothing is dropped.
        """
        function = self.stepping or self.function
        results = function(params, *inputs, key=key) if self.draws else function(params, *inputs)
        return results if self.stepping else (results, {})

    def __call__(self, *values: Any, key: Any = None) -> tuple[Any, ...]:
        """Run, compiled, on arrays or tensors in the order of ``inputs``; give jax arrays in that of ``outputs``.

        What the model changes when it runs is kept, and the next call begins from it. Two calls at once, from two
        threads, begin from the same, as they may with a module.

        Raises:
            BackendError: naming the node that cannot run on such inputs, or, of a stage that was read, the inputs; or
                where the stage drops at random and there is no key: none is given, and none drawn
                (``backends/drawn_keys.py``).
        """
        if self.draws and key is None and not _NOTHING_DRAWN.get():
            key = _drawn_key()
        if self.draws and key is None and not _NOTHING_DRAWN.get():
            raise BackendError(
                f"the jax stage that gives {', '.join(map(printable, self.outputs[:3]))} drops at random and needs a "
                f"key: give it key=jax.random.key(seed), or put the model in evaluation mode (model.eval())"
            )
        given = [as_array(value) for value in values]
        known = {
            i: np.asarray(value)
            for i, (name, value) in enumerate(zip(self.inputs, given, strict=True))
            if name in self.known_inputs
        }
        with jax.enable_x64(True):
            compiled = self.compiled(known)
            with naming_inputs(self.inputs, given):
                rest = [v for i, v in enumerate(given) if i not in known]
                with self._parameters_of_a_call() as params:
                    results, changed = compiled(params, *rest, key=key)
                    if _IS_LEAN.get():
                        jax.block_until_ready(results)
        if changed:
            before = _BEFORE.get()
            if before is not None:
                before.setdefault(self, self.arrays)
            self.change(changed)
        outputs: tuple[Any, ...] = results
        return outputs

    @contextmanager
    def _parameters_of_a_call(self) -> Iterator[dict[str, Any]]:
        """Yield the parameters, of 64 bits; in :func:`lean_stages` without a copy that outlives the call.

        An array in the CPU's memory that begins where XLA wants it is read in place. Another is copied, and its pages
        are given back before the next one is read. What the stage changes is copied always.
        """
        if not _IS_LEAN.get():
            yield self.params
            return
        found = {}
        for name, array in self.arrays.items():
            if name in self.updated or isinstance(array, jax.Array):
                found[name] = jnp.asarray(array)
                continue
            plain = np.asarray(array)
            found[name] = jax.device_put(plain, may_alias=True)
            if plain.ctypes.data % _ALIGNED:
                found[name].block_until_ready()
                release_mapped(plain)
        yield found
        for array in self.arrays.values():
            release_mapped(array)

    def compiled(self, known: Mapping[int, Any]) -> Any:
        """Return :meth:`step` compiled for the known inputs, which are constants of it."""
        key = tuple((i, a.dtype.str, a.shape, a.tobytes()) for i, a in known.items())
        if key not in self._compiled:

            def run(params: Mapping[str, Any], *rest: Any, key: Any = None) -> tuple[tuple[Any, ...], dict[str, Any]]:
                remaining = iter(rest)
                values = (known[i] if i in known else next(remaining) for i in range(len(self.inputs)))
                return self.step(params, *values, key=key)

            self._compiled[key] = jax.jit(run)
        return self._compiled[key]


@contextmanager
def naming_inputs(names: Sequence[str], values: Sequence[Any]) -> Iterator[None]:
    """Let what goes wrong in a stage say on which inputs it did.

    Raises:
        BackendError: naming them, with their shapes.
    """
    try:
        yield
    except HeterpsError:
        raise
    except Exception as error:
        shapes = ", ".join(f"{printable(n)!r} {list(np.shape(v))}" for n, v in zip(names, values, strict=True))
        reason = printable(shorten(" ".join(str(error).split()), _REASON_SHOWN))
        raise BackendError(f"the jax stage cannot run on {shapes}: {reason}") from error


def as_array(value: Any) -> Any:
    """Return a jax or numpy array for an array, a number, or a tensor of PyTorch.

    Raises:
        BackendError: for strings.
    """
    if hasattr(value, "detach"):
        tensor = value.detach().cpu()
        # numpy has no bfloat16 of its own; jax reads the tensor's memory
        return jax.dlpack.from_dlpack(tensor.contiguous()) if str(tensor.dtype) == "torch.bfloat16" else tensor.numpy()
    if getattr(getattr(value, "dtype", None), "kind", "") in ("O", "U", "S"):
        raise BackendError("a jax stage cannot take strings")
    return value


def _drawn_key() -> Any:
    """Draw a key from PyTorch's generator; None where keys are not drawn, or PyTorch is not installed."""
    if not are_keys_drawn():
        return None
    try:
        import torch  # noqa: PLC0415 - an optional package: without it whoever calls the stage gives the key
    except ModuleNotFoundError:
        return None
    words = np.asarray(torch.randint(2**32, (2,)), np.uint32)
    return jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")
