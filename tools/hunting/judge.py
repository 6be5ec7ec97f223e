"""Compile a drawn module and hold it against itself: equal, refused by name, or a finding.

A difference counts where it is larger than what the module itself shows on inputs and weights that are changed in the
seventh digit: ops that round or choose make a small difference a large one, for the module as for its stages.
"""

import re
import shutil
import tempfile
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import heterps_compile
from heterps_compile.errors import HeterpsError, InfeasibleError, VerificationError

from .description import Description
from .fresh import Fault, differentiable, run_fresh, write_job
from .module import Described, arguments, as_call, build
from .observe import LEVELS, Seen, observe, taken_apart

CALLS = (1, 2)
_TOLERANCE = {"torch": 1e-5, "onnxruntime": 2e-4, "jax": 2e-4}
_NUDGE = 3e-7
_FACTOR = 20.0
_PARTS = {
    "results": "forward",
    "gradients": "gradients",
    "inputs": "inputs changed",
    "state": "state",
    "scored": "scoring",
}
_CHOOSING = frozenset({"topk", "argmax", "gather", "sort"})  # kinds of steps that choose by value
_UNTRUE = re.compile(r"\bbug\b|runs backward")  # what no user can do anything about


@dataclass(frozen=True)
class Outcome:
    """What came of one module on one backend.

    Attributes:
        kind: ``"equal"``, ``"refused"`` or what is wrong.
        reason: The refusal or the fault.
        trace: Of what was raised and is no :class:`HeterpsError`.
        told: Parts of what is seen in which the plan's notes say that stages differ.
    """

    backend: str
    kind: str
    reason: str = ""
    trace: str = ""
    stages: int = 0
    told: frozenset[str] = frozenset()

    @property
    def is_finding(self) -> bool:
        return self.kind not in ("equal", "refused", "waiting")

    @property
    def likeness(self) -> tuple[str, str, str]:
        """Return what two outcomes share that are the same fault."""
        return self.backend, self.kind, general(self.reason) if self.trace or "refus" in self.kind else ""


def general(message: str) -> str:
    """Return a message with names and numbers left out, to count it by."""
    message = re.sub(r"'[^']*'|\"[^\"]*\"", "'…'", message)
    message = re.sub(r"\b[a-z_]+_\d+\b", "…", message)
    return re.sub(r"-?\d[\d.,e+-]*", "N", message)[:220]


@dataclass
class Plain:
    """What the module itself shows.

    Attributes:
        level: How far it can be differentiated.
        seen: Of two calls in a row.
        scored: Of the same two in evaluation mode.
        paths: The ways to the leaves of its result.
    """

    level: str
    seen: list[Seen]
    scored: list[Seen] = field(default_factory=list)
    paths: Any = ()


def calls_of(description: Description) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    return [as_call(description, list(arguments(description, number))) for number in CALLS]


def observe_module(
    description: Description, module: nn.Module, level: str, noise: int = 0, draws: int = 0
) -> list[Seen]:
    """Call a module twice in a row and note what is to be seen; ``draws`` other than 0 seeds other random numbers."""
    found = []
    for number, (args, named) in enumerate(calls_of(description)):
        given = [_nudged(value, noise) if noise else value for value in (*args, *named.values())]
        keywords = dict(zip(named, given[len(args) :], strict=True))
        seen = observe(
            module,
            given[: len(args)],
            keywords,
            level=level,
            seed=number + 1 + 100 * draws,
            parameters=lambda: _gradients(module),
        )
        seen.state = {name: _array(buffer) for name, buffer in module.named_buffers(remove_duplicate=False)}
        found.append(seen)
    return found


def _array(tensor: Tensor) -> Any:
    return tensor.detach().clone().numpy()


def _nudged(value: Any, noise: int) -> Any:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    generator = torch.Generator().manual_seed(noise)
    return value * (1 + _NUDGE * torch.randn(value.shape, generator=generator, dtype=value.dtype))


def _gradients(module: nn.Module) -> Mapping[str, Tensor | None]:
    named = dict(module.named_parameters(remove_duplicate=False))
    found = {name: None if p.grad is None else p.grad.clone() for name, p in named.items() if p.requires_grad}
    for parameter in named.values():
        parameter.grad = None
    return found


def observe_plain(description: Description, noise: int = 0, draws: int = 0) -> Plain | None:
    """Return what the module shows; None where it cannot be called twice. See :func:`observe_module`."""
    for level in LEVELS if description.training else ("none",):
        try:
            module = build(description)
            if noise:
                with torch.no_grad():
                    for parameter in module.parameters():
                        parameter.copy_(_nudged(parameter, noise))
            seen = observe_module(description, module, level, noise, draws)
            scored = (
                observe_module(description, build(description).eval(), "none", noise, draws)
                if description.training
                else []
            )
            seen[0].scored = scored[0].results if scored else {}
            args, named = as_call(description, list(arguments(description)))
            result = build(description)(*args, **named)
            break
        except Exception:  # noqa: BLE001, S112 - then the next level, or another module
            continue
    else:
        return None
    return Plain(level, seen, scored, [path for path, _ in taken_apart(result)])


def plain_runs(description: Description) -> bool:
    """Say whether the module can be called twice, gives finite numbers, and depends on something."""
    plain = observe_plain(description)
    if plain is None:
        return False
    for seen in (*plain.seen, *plain.scored):
        for part in (seen.results, seen.gradients, seen.state):
            for value in part.values():
                if isinstance(value, np.ndarray) and value.dtype.kind == "f" and not bool((np.abs(value) < 1e5).all()):
                    return False
    return any(isinstance(value, np.ndarray) for value in plain.seen[0].results.values())


def _names_the_hook(description: Description, said: str) -> bool:
    """Say whether comparing found a hook that is put on only where a gradient is asked for, unseen when tracing."""
    return "look for a hook" in said and any(step.op == "tensor_hook" for step in description.steps)


def _names_the_choice(description: Description, said: str) -> bool:
    """Say whether comparing found an op that is there and may choose among equal values."""
    kinds = {str(dict(step.options).get("kind")) for step in description.steps}
    return "chooses among equal values" in said and not _CHOOSING.isdisjoint(kinds)


def judge(description: Description, backend: str, plain: Plain, folder: Path | None = None) -> Outcome:
    """Compile and compare in this process; leave in ``folder`` what a fresh process is to try."""
    module = build(description)
    module.train(_mode(description, backend))
    example = as_call(description, list(arguments(description)))
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    try:
        compiled = _compile(module, example, backend, description)
    except HeterpsError as error:
        said = str(error)
        is_named = _names_the_hook(description, said) or _names_the_choice(description, said)
        wrong = isinstance(error, VerificationError) or _UNTRUE.search(said)
        kind = "untrue words" if wrong and not is_named else "refused"
        return Outcome(backend, kind, f"{type(error).__name__}: {said}")
    except Exception as error:  # noqa: BLE001 - that is what is looked for
        return _raised(backend, "traceback in compile", error)
    changed = [name for name, tensor in module.state_dict().items() if not torch.equal(tensor, before[name])]
    if changed:
        return Outcome(backend, "compile changes the model", f"{changed[0]} is another than before")
    return _tried(description, backend, plain, folder, module, compiled)


def _mode(description: Description, backend: str) -> bool:
    """Say whether a backend is given the module in training mode: ONNX Runtime one time in four."""
    return description.training and (backend != "onnxruntime" or description.seed % 4 == 0)


def _compile(module: Described, example: Any, backend: str, description: Description) -> Any:
    for stages in range(description.stages, 0, -1):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return heterps_compile.compile(
                    module,
                    example[0],
                    example_kwargs=example[1],
                    backend=backend,
                    method="greedy",
                    min_stages=stages,
                    mode="training" if module.training and backend != "onnxruntime" else "inference",
                )
        except InfeasibleError:
            if stages == 1:
                raise
    raise AssertionError


def _tried(
    description: Description, backend: str, plain: Plain, folder: Path | None, module: Described, compiled: Any
) -> Outcome:
    training = module.training
    expected = plain.seen if training == description.training else plain.scored
    level = plain.level if training and backend != "onnxruntime" else "none"
    where = "save"
    kept = tempfile.mkdtemp() if folder is None else str(folder)
    try:
        compiled.save(Path(kept) / "out")
        if folder is not None:
            scoring = getattr(compiled.plan, "scoring", None)
            scores = training and scoring is not None and not scoring.refused
            write_job(folder, calls_of(description), level, plain.paths, scores=scores)
        where = "run"
        found = _observe_compiled(description, module, compiled, level, backend)
    except HeterpsError as error:
        return Outcome(backend, f"refused late, at {where}", f"{type(error).__name__}: {error}")
    except Exception as error:  # noqa: BLE001 - that is what is looked for
        return _raised(backend, f"traceback in {where}", error)
    finally:
        if folder is None:
            shutil.rmtree(kept)
    told = frozenset({"inputs"} if any("changes its input" in note for note in compiled.plan.notes) else ())
    wrong = compare(description, backend, found, expected, as_described=training == description.training, told=told)
    if wrong is not None:
        return wrong
    return Outcome(backend, "equal" if folder is None else "waiting", stages=len(compiled.stages), told=told)


def _observe_compiled(
    description: Description, module: Described, compiled: Any, level: str, backend: str
) -> list[Seen]:
    call, gradients = (compiled.run, dict) if level == "none" else differentiable(compiled)
    found = []
    for number, (args, named) in enumerate(calls_of(description)):
        seen = observe(call, args, named, level=level, seed=number + 1, parameters=gradients)
        if backend == "torch":
            seen.state = {name: _array(buffer) for name, buffer in module.named_buffers(remove_duplicate=False)}
        found.append(seen)
    return found


def judge_fresh(
    description: Description, backend: str, plain: Plain, saw: list[Seen] | Fault, waiting: Outcome
) -> Outcome:
    """Judge what a fresh process saw of the folder."""
    if isinstance(saw, Fault):
        kind = "refused late, in a fresh process" if saw.ours else "traceback in a fresh process"
        return Outcome(backend, kind, f"{saw.kind}: {saw.message}", saw.trace)
    training = _mode(description, backend)
    expected = plain.seen if training == description.training else plain.scored
    wrong = compare(
        description, backend, saw, expected, as_described=training == description.training, told=waiting.told
    )
    if wrong is None:
        return Outcome(backend, "equal", stages=waiting.stages)
    return replace(wrong, kind=f"{wrong.kind} in a fresh process")


def judge_whole(description: Description, backend: str, with_fresh: bool) -> Outcome:
    """Judge in this process, and in a fresh one of its own where asked: for shrinking."""
    plain = observe_plain(description)
    if plain is None:
        return Outcome(backend, "refused", "the module itself does not run")
    if not with_fresh:
        return judge(description, backend, plain)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = judge(description, backend, plain, folder)
        return (
            judge_fresh(description, backend, plain, run_fresh([folder])[0], found)
            if found.kind == "waiting"
            else found
        )


def _raised(backend: str, kind: str, error: Exception) -> Outcome:
    trace = "".join(traceback.format_exception(error))[-3000:]
    return Outcome(backend, kind, f"{type(error).__name__}: {str(error)[:300]}", trace)


def compare(
    description: Description,
    backend: str,
    found: Sequence[Seen],
    expected: Sequence[Seen],
    *,
    as_described: bool,
    told: frozenset[str] = frozenset(),
) -> Outcome | None:
    """Return the first thing that differs by more than the module's own sensitivity."""
    differing = [d for d in _differences(found, expected, _TOLERANCE[backend]) if d[5] not in told]
    if not differing:
        return None
    rest = [d for d in differing if d[3] == np.inf] or _beyond(description, backend, differing, as_described)
    if not rest:
        return None
    shown = rest[0]
    return Outcome(backend, shown[0], f"{shown[1]}: {shown[2]}")


Difference = tuple[str, str, str, float, int, str, str]


def _differences(found: Sequence[Seen], expected: Sequence[Seen], tolerance: float) -> Iterator[Difference]:
    for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        for part, what in _PARTS.items():
            mine, right = getattr(ours, part), getattr(theirs, part)
            label = f"{what}, call {number + 1}"
            if part == "results" and list(mine) != list(right):
                yield (label, "structure", f"{list(mine)} instead of {list(right)}", np.inf, number, part, "")
                continue
            for name, wanted in right.items() if mine else ():
                if name in mine:
                    one, other = mine[name], wanted
                    if part == "gradients":
                        one, other = _zeros_like(one, other), _zeros_like(other, one)
                    size = difference(one, other)
                    said = f"{_outline(one)} instead of {_outline(other)}, {size:.3g} of its scale"
                    if size > tolerance:
                        yield (label, name, said, size, number, part, name)
                elif part == "gradients" and not _zero(wanted) and not _aliased(name, mine, right):
                    yield (label, name, f"no gradient instead of {_outline(wanted)}", np.inf, number, part, name)


def _aliased(name: str, mine: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    """Say whether a gradient of the same tensor is there under another of its names."""
    return any(other in mine and difference(right[other], right[name]) == 0 for other in right if other != name)


def _zero(value: Any) -> bool:
    return value is None or not np.any(value)


def _zeros_like(value: Any, other: Any) -> Any:
    return np.zeros_like(other) if value is None and other is not None else value


def difference(got: Any, wanted: Any) -> float:
    """Return the largest difference relative to the scale; infinite where dtype, shape or a constant differs."""
    if not isinstance(wanted, np.ndarray) and not isinstance(wanted, np.generic):
        if isinstance(got, np.ndarray) and got.shape == () and isinstance(wanted, (int, float)):
            got = got.item()
        return 0.0 if type(got) is type(wanted) and got == wanted else float("inf")
    if not isinstance(got, (np.ndarray, np.generic)):
        return float("inf")
    got, wanted = np.asarray(got), np.asarray(wanted)
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return float("inf")
    if wanted.size == 0:
        return 0.0
    wide, right = got.astype(np.float64), wanted.astype(np.float64)
    if not np.isfinite(wide).all():
        return float("inf") if np.isfinite(right).all() else 0.0
    size = float(np.abs(wide - right).max())
    return size / max(float(np.abs(right).max()), 1e-2)


def _beyond(
    description: Description, backend: str, differing: Sequence[Difference], as_described: bool
) -> list[Difference]:
    """Return those that are larger than what the module itself shows on slightly changed inputs and weights.

    Backends other than torch draw random numbers of their own: what other draws change may differ in its elements.
    """
    allowed: dict[tuple[int, str, str], float] = {}
    base = observe_plain(description)
    others = [(noise, 0) for noise in (1, 2, 3, 4)]
    others += [(0, draws) for draws in (1, 2, 3, 4, 5, 6)] if backend != "torch" else []
    for noise, draws in others:
        moved = observe_plain(description, noise, draws)
        if base is None or moved is None:
            continue
        pairs = zip(
            base.seen if as_described else base.scored, moved.seen if as_described else moved.scored, strict=True
        )
        for number, (one, other) in enumerate(pairs):
            for part in _PARTS:
                for name, value in getattr(one, part).items():
                    size = difference(getattr(other, part).get(name), value)
                    key = (number, part, name)
                    if draws and size > 0:
                        allowed[key] = np.inf
                    allowed[key] = max(allowed.get(key, 0.0), size if np.isfinite(size) else 0.0)
    return [d for d in differing if d[3] > _FACTOR * allowed.get((d[4], d[5], d[6]), 0.0)]


def _outline(value: Any) -> str:
    if isinstance(value, np.ndarray):
        flat = ", ".join(f"{v:.4g}" for v in value.reshape(-1)[:3].astype(np.float64))
        return f"{value.dtype}{list(value.shape)} {flat}…"
    return repr(value)
