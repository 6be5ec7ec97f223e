"""What a user's training file says: loss and optimiser, and if need be how raw columns become inputs.

Such a file is the user's own program and is run as one::

    def loss(outputs, batch):            # what the model returns; a dict of columns -> a scalar tensor, or some by name
        return F.binary_cross_entropy_with_logits(outputs, batch["label"])

    def optimizer(parameters):           # (name, Parameter) pairs of one rank's stages
        return torch.optim.Adam([p for _, p in parameters], lr=1e-3)

    def scheduler(optimizer):            # optional: stepped after every step
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=1000)

    def sample_weight(batch): ...        # optional: a weight for each sample; then loss() gives a value for each
    def prepare(batch): ...              # optional: raw columns -> graph inputs and targets
    def data(): ...                      # optional: an iterable of dicts, instead of --data
    def validation_data(): ...           # optional: the same, instead of --validate
    def metrics(outputs, batch): ...     # optional: a dict of metrics of a batch of validation
    def on_step(report): ...             # optional: called after every step
    def on_validation(report): ...       # optional: called after every validation
    def on_checkpoint(folder, report): ...   # optional: called after every checkpoint

A file that lacks what a run needs, has functions that cannot be called as a run calls them, or a function that nobody
calls under nearly the name of one that a run looks for, is refused by its syntax tree before any process starts; what
the tree leaves open is checked when the file runs.

Left out: names from a model, which never reach code (``backends/``).
"""

import ast
import difflib
import inspect
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from heterps_compile.conflict_markers import unmerged
from heterps_compile.errors import InputError, RunError
from heterps_compile.escape import printable, shorten
from heterps_compile.plain_file import read_plain
from heterps_compile.runtime.validation.best import LOSS
from heterps_compile.source_module import make_known, module_of, run_module

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Parameter
    from torch.optim import Optimizer

    from .run_options import RunOptions
    from .run_view import RunView

Columns = Mapping[str, "Tensor"]

_MODULE = "heterps_training"  # what the file is called while it runs
_OF_SCHEDULERS = ("step", "state_dict", "load_state_dict")

NEEDED = ("loss", "optimizer")
ARGUMENTS = MappingProxyType({
    "loss": ("outputs", "batch"), "optimizer": ("parameters",), "prepare": ("batch",), "data": (),
    "scheduler": ("optimizer",), "validation_data": (), "metrics": ("outputs", "batch"),
    "sample_weight": ("batch",),
    "on_step": ("report",), "on_validation": ("report",), "on_checkpoint": ("folder", "report"),
})  # fmt: skip
"""The functions of a training file, and what each is called with."""

_MAY_DEFINE_ANY = frozenset({"globals", "exec", "setattr", "vars"})
_ALIKE = 0.75  # of difflib: "lose" and "loss", "schedular" and "scheduler"
_SHOWN = 60

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class Scheduler(Protocol):
    """What sets learning rates: a scheduler of ``torch.optim``, or what has the same three methods."""

    def step(self, *loss: Any) -> None:
        """Set the learning rates of the next step; ``ReduceLROnPlateau`` is given the loss."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return its state: numbers, text, lists and dicts."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Take a state back."""
        ...


@dataclass(frozen=True, slots=True)
class Training:
    """How a model is trained.

    Attributes:
        loss: Called with what the model returns and a micro-batch's columns;
            gives a scalar tensor, the mean over the samples, or a dict of such
            by name, whose sum is trained.
        optimizer: Called once on every rank, with the (name, parameter) pairs
            of its stages.
        prepare: Makes inputs and targets of columns; None if they are these.
        data: Gives samples or batches in order; None if read from elsewhere.
        scheduler: Called once on every rank that trains something, with its
            optimiser; None where learning rates stay.
        validation_data: Gives the samples or batches to validate on, from the
            first to the last every time it is called; None where they are read
            from elsewhere, or nobody validates.
        metrics: Called with what the model returns and a batch's columns; gives
            a dict of means over the samples, or of objects with ``update``,
            ``compute`` and ``reset`` that it has updated.
        on_step: Called after every step, on one rank, with a
            :class:`RunView`.
        on_validation: Called after every validation, on the same rank, with
            one.
        on_checkpoint: Called after every checkpoint, on the same rank, with its
            folder and one.
        sample_weight: Called with a micro-batch's columns; gives a number of 0
            or more for each sample. Where it is there, ``loss`` gives a value
            for each sample too, and the mean weighted over the whole batch is
            trained. None for samples that count alike.

    Examples:
        >>> import torch
        >>> from heterps_compile import Training
        >>> training = Training(
        ...     loss=lambda out, columns: (out - columns["y"]).square().mean(),
        ...     optimizer=lambda named: torch.optim.SGD([p for _, p in named]),
        ... )
        >>> training.scheduler is None
        True
    """

    loss: "Callable[[Any, Columns], Tensor | Mapping[str, Tensor]]"
    optimizer: "Callable[[list[tuple[str, Parameter]]], Optimizer]"
    prepare: "Callable[[Columns], Columns] | None" = None
    data: "Callable[[], Iterable[Columns]] | None" = None
    scheduler: "Callable[[Optimizer], Scheduler] | None" = None
    validation_data: "Callable[[], Iterable[Columns]] | None" = None
    metrics: "Callable[[Any, Columns], Mapping[str, Any]] | None" = None
    on_step: "Callable[[RunView], None] | None" = None
    on_validation: "Callable[[RunView], None] | None" = None
    on_checkpoint: "Callable[[Path, RunView], None] | None" = None
    sample_weight: "Callable[[Columns], Tensor] | None" = None

    def __post_init__(self) -> None:
        for name in ARGUMENTS:
            function = getattr(self, name)
            if function is not None:
                refuse_uncallable(name, function)

    @property
    def has_hooks(self) -> bool:
        """Check if it has functions that follow the run."""
        return any((self.on_step, self.on_validation, self.on_checkpoint))


def read_training_file(path: str | Path, *, has_data: bool = False) -> Training:
    """Run a training file and give what it defines.

    Args:
        path: Of the file.
        has_data: Whether data are named elsewhere, so that nobody looks for ``data``.

    Raises:
        InputError: where there is no such file, it fails, lacks ``loss`` or ``optimizer``, or has functions that
            cannot be called as a run calls them.
    """
    file = Path(path)
    parsed = parse_training_file(file)
    module = module_of(file, _MODULE)
    make_known(module)
    try:
        run_module(module)
    except (Exception, SystemExit) as error:
        raise InputError(f"the training file {str(path)!r} fails: {where_it_failed(error, file)}") from error
    found: dict[str, Any] = {name: getattr(module, name) for name in ARGUMENTS if hasattr(module, name)}
    refuse_misnamed(path, parsed, found, has_data=has_data)
    _refuse_missing(path, found)
    return Training(**found)


@contextmanager
def in_function(name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Add to what a function of the training file raises that it was there, and in which line.

    Args:
        name: Of the function, as the training file has it.
        function: Itself.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        code = getattr(function, "__code__", None)
        trace = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in trace if code is not None and frame.filename == code.co_filename]
        error.add_note(f"in {name}() of the training file" + (f", line {lines[-1]}" if lines else ""))
        raise


def called_in(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of the training file as one whose exceptions say that they come from there."""

    def call(*arguments: Any) -> Any:
        with in_function(name, function):
            return function(*arguments)

    return call


def from_training_file(error: BaseException) -> BaseException:
    """Leave out of an exception's trace what called the training file, which is not the user's."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__") != _MODULE:
        trace = trace.tb_next
    return error if trace is None else error.with_traceback(trace)


def loss_of(training: Training) -> "Callable[[Any, Mapping[str, Tensor]], Any]":
    """Return ``loss`` with columns that name those there are if one is missing."""
    from heterps_compile.runtime.data.sample_source import Columns as NamedColumns  # noqa: PLC0415 - torch, as above

    loss = called_in("loss", training.loss)
    return lambda outputs, batch: loss(outputs, NamedColumns(batch))


def weight_of(training: Training) -> "Callable[[Mapping[str, Tensor]], Tensor] | None":
    """Return what gives the weights of samples, as it is to be called; None where they count alike."""
    if training.sample_weight is None:
        return None
    from heterps_compile.runtime.data.sample_source import Columns as NamedColumns  # noqa: PLC0415 - torch, as above

    weigh = called_in("sample_weight", training.sample_weight)
    return lambda batch: weigh(NamedColumns(batch))


def make_optimizer(training: Training, parameters: "list[tuple[str, Parameter]]") -> "Optimizer | None":
    """Call the user's ``optimizer``; None where the rank has nothing to train.

    Raises:
        RunError: where it gives something else, one that needs a closure, or one that holds other parameters.
    """
    from torch.optim import Optimizer  # noqa: PLC0415 - torch only in the processes of a run

    trained = [(name, parameter) for name, parameter in parameters if parameter.requires_grad]
    if not trained:
        return None
    with in_function("optimizer", training.optimizer):
        made = training.optimizer(trained)
    if not isinstance(made, Optimizer):
        raise RunError(f"optimizer() of the training file gave {type(made).__name__}; expected a torch.optim.Optimizer")
    closure = inspect.signature(made.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise RunError(
            f"optimizer() of the training file gave {type(made).__name__}, which computes the loss again within a step "
            f"(a closure), and a pipeline computes it once; take one that steps by its gradients, such as Adam"
        )
    known = {id(parameter) for _, parameter in trained}
    if any(id(parameter) not in known for group in made.param_groups for parameter in group["params"]):
        raise RunError(
            "optimizer() of the training file holds a parameter it was not given; use those it is called with"
        )
    return made


def make_scheduler(training: Training, optimizer: "Optimizer | None") -> "Scheduler | None":
    """Call the user's ``scheduler``; None where there is none, or the rank has nothing to train.

    Args:
        training: What the training file says.
        optimizer: Of this rank.

    Raises:
        RunError: where it gives something else, or sets the rates of another optimiser.
    """
    if training.scheduler is None or optimizer is None:
        return None
    with in_function("scheduler", training.scheduler):
        made: Any = training.scheduler(optimizer)
    if isinstance(made, type) or not all(callable(getattr(made, name, None)) for name in _OF_SCHEDULERS):
        raise RunError(
            f"scheduler() of the training file gave {getattr(type(made), '__name__', made)}; expected a scheduler of "
            f"torch.optim.lr_scheduler, or an object with step(), state_dict() and load_state_dict()"
        )
    if getattr(made, "optimizer", optimizer) is not optimizer:
        raise RunError("scheduler() of the training file sets the rates of another optimizer than the one it is given")
    return made  # type: ignore[no-any-return]  # it has what a Scheduler has


def where_it_failed(error: BaseException, file: Path) -> str:
    """Tell an exception of the user's file in one line, with the last line of that file in it."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    place = f" (line {lines[-1]})" if lines else ""
    return f"{type(error).__name__}: {error}{place}"


def parse_training_file(file: Path) -> ast.Module:
    """Read a training file without running it.

    Raises:
        InputError: where it is not there, or is no Python.
    """
    path = str(file)
    if file.is_dir() or not file.exists():
        fault = "is a folder" if file.is_dir() else "does not exist"
        raise InputError(f"the training file {path!r} {fault}; expected a Python file with loss and optimizer")
    if file.suffix != ".py":
        raise InputError(f"the training file {path!r} is no Python file; its name must end in .py")
    written = b""
    try:
        written = read_plain(file)
        return ast.parse(written, path)
    except OSError as error:
        raise InputError(f"the training file {path!r} cannot be read: {error.strerror}") from error
    except (SyntaxError, ValueError, RecursionError) as error:
        if conflict := unmerged(written.decode("utf-8", "replace")):
            raise InputError(f"the training file {path!r} {conflict}") from error
        line = f" (line {error.lineno})" if isinstance(error, SyntaxError) and error.lineno else ""
        what = error.msg if isinstance(error, SyntaxError) else error
        raise InputError(f"the training file {path!r} fails: {type(error).__name__}: {what}{line}") from error


@dataclass(frozen=True, slots=True)
class FileFacts:
    """The options of a run, and the functions of its training file.

    Attributes:
        options: Of the run.
        defined: Functions that the file has.
        possible: These, and those that it may have, such as by ``import *``.
    """

    options: "RunOptions"
    defined: Collection[str] = ()
    possible: Collection[str] = ()

    @property
    def may_validate(self) -> bool:
        """Check if there may be validation data."""
        return self.options.validate is not None or "validation_data" in self.possible

    @property
    def metric(self) -> str:
        """Return the metric of ``--keep-best``, the loss without that option."""
        return LOSS if self.options.best is None else self.options.best.name


def functions_of(options: "RunOptions", training: Training) -> FileFacts:
    """Return the functions of a training file that was run."""
    names = [name for name in ARGUMENTS if getattr(training, name) is not None]
    return FileFacts(options, names, names)


def check_training_file(options: "RunOptions") -> FileFacts:
    """Check, without running it, that a training file is there, is Python, and has what a run needs of it.

    Raises:
        InputError: if it does not.
    """
    path, has_data = options.train, bool(options.data)
    if path is None:
        return FileFacts(options)
    parsed = parse_training_file(Path(path))
    known = {name for name in ARGUMENTS if _may_define(parsed, name)}
    refuse_misnamed(path, parsed, known, has_data=has_data)
    _refuse_missing(path, known)
    functions = dict(_functions(parsed))
    for name, function in functions.items():
        if name in ARGUMENTS:
            _refuse_arguments(path, name, function)
    imported = {alias.asname or alias.name for n in parsed.body if isinstance(n, ast.ImportFrom) for alias in n.names}
    return FileFacts(options, imported | functions.keys(), known)


def may_define(path: str | Path, name: str) -> bool:
    """Tell, without running it, whether a training file that was checked may define a name."""
    return _may_define(ast.parse(Path(path).read_bytes(), str(path)), name)


def _refuse_missing(path: str | Path, known: Collection[str]) -> None:
    missing = next((name for name in NEEDED if name not in known), None)
    if missing is not None:
        raise InputError(f"the training file {str(path)!r} has no function {missing!r}; it needs loss and optimizer")


def refuse_misnamed(path: str | Path, parsed: ast.Module, known: Collection[str], *, has_data: bool) -> None:
    """Refuse a public function that nobody calls and whose name is nearly that of one that a run looks for.

    Args:
        path: Of the training file.
        parsed: Its syntax tree.
        known: Names that the file has, or may have: what is nearly one of these is a function of the user's own.
        has_data: Whether data are named, so that nobody looks for ``data``.

    Raises:
        InputError: naming both.
    """
    missing = [name for name in ARGUMENTS if name not in known and not (name == "data" and has_data)]
    used = {n.id for n in ast.walk(parsed) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    used |= {n.value for n in ast.walk(parsed) if isinstance(n, ast.Constant) and isinstance(n.value, str)}  # __all__
    for name, function in _functions(parsed):
        if name in ARGUMENTS or name.startswith("_") or name in used or _is_decorated(function):
            continue
        for near in difflib.get_close_matches(name.casefold(), missing, n=1, cutoff=_ALIKE):
            raise InputError(
                f"the training file {str(path)!r} has a function {printable(shorten(name, _SHOWN))!r} (line "
                f"{function.lineno}) that nothing calls, and no {near!r}; call it {_called(near)}, or "
                f"begin its name with '_' where it is something else"
            )


def refuse_uncallable(name: str, function: Callable[..., Any]) -> None:
    """Refuse a function of a training file that cannot be called as a run calls it.

    Raises:
        InputError: with what it takes, and what it is called with.
    """
    if not callable(function):
        has = printable(shorten(repr(function), _SHOWN))
        raise InputError(f"{name} of the training file is {has}; expected a function. Fix: write def {_called(name)}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # written in C: nobody can tell
    if inspect.iscoroutinefunction(function):
        raise InputError(_uncallable(name, f"async {name}{signature}", ""))
    try:
        signature.bind(*ARGUMENTS[name])
    except TypeError as error:
        raise InputError(_uncallable(name, f"{name}{signature}", "")) from error


def _refuse_arguments(path: str | Path, name: str, function: "_Function | ast.ClassDef") -> None:
    if isinstance(function, ast.ClassDef) or _is_decorated(function):
        return
    taken, count = function.args, len(ARGUMENTS[name])
    positional = len(taken.posonlyargs) + len(taken.args)
    has_keyword = any(default is None for default in taken.kw_defaults)
    fits = positional - len(taken.defaults) <= count and (count <= positional or taken.vararg is not None)
    is_async = isinstance(function, ast.AsyncFunctionDef)
    if is_async or has_keyword or not fits:
        has = f"{'async ' if is_async else ''}{name}({ast.unparse(taken)})"
        raise InputError(_uncallable(name, has, f" {str(path)!r} (line {function.lineno})"))


def _uncallable(name: str, has: str, where: str) -> str:
    called = _called(name)
    return (
        f"{printable(shorten(has, _SHOWN))} of the training file{where} cannot be called as {called}, which is how a "
        f"run calls it; write def {called}"
    )


def _called(name: str) -> str:
    return f"{name}({', '.join(ARGUMENTS[name])})"


def _functions(parsed: ast.Module) -> Iterator[tuple[str, "_Function | ast.ClassDef"]]:
    """Yield the functions and classes at the top of a file."""
    for node in parsed.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    yield target.id, node.value


def _is_decorated(function: "_Function | ast.ClassDef") -> bool:
    return not isinstance(function, ast.Lambda) and bool(function.decorator_list)


def _may_define(parsed: ast.Module, name: str) -> bool:
    found: set[str] = set()
    for node in ast.walk(parsed):
        if isinstance(node, ast.Global):
            found.update(node.names)
        elif isinstance(node, ast.Name) and node.id in _MAY_DEFINE_ANY:
            return True
    for node in _of_module(parsed):
        found.update(_names_of(node))
    return name in found or "*" in found


def _of_module(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what is of the module's scope: what stands in functions and classes is theirs."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, _Function | ast.ClassDef):
            yield from _of_module(child)


def _names_of(node: ast.AST) -> tuple[str, ...]:
    """Return the names that a piece of a file binds."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return (node.name,)
    if isinstance(node, ast.Import | ast.ImportFrom):
        return tuple((alias.asname or alias.name).partition(".")[0] for alias in node.names)
    return (node.id,) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else ()
