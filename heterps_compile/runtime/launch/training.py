"""What a user's training file says: loss and optimiser, and if need be how raw columns become inputs.

Such a file is the user's own program and is run as one::

    def loss(outputs, batch):            # what the model returns; a dict of columns -> a scalar tensor
        return F.binary_cross_entropy_with_logits(outputs, batch["label"])

    def optimizer(parameters):           # (name, Parameter) pairs of one rank's stages
        return torch.optim.Adam([p for _, p in parameters], lr=1e-3)

    def scheduler(optimizer):            # optional: stepped after every step
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=1000)

    def prepare(batch): ...              # optional: raw columns -> graph inputs and targets
    def data(): ...                      # optional: an iterable of dicts, instead of --data

Left out: what can be told of the file without running it (``training_syntax.py``), and names from a model, which never
reach code (``backends/``).
"""

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from heterps_compile.errors import InputError, RunError

from .training_syntax import ARGUMENTS, NEEDED, parse_training_file, refuse_misnamed, refuse_uncallable

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Parameter
    from torch.optim import Optimizer

Columns = Mapping[str, "Tensor"]

_MODULE = "heterps_training"  # what the file is called while it runs
_OF_SCHEDULERS = ("step", "state_dict", "load_state_dict")


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
        loss: Called with what the model returns and a micro-batch's columns; gives a scalar tensor, the mean over
            the samples.
        optimizer: Called once on every rank, with the (name, parameter) pairs of its stages.
        prepare: Makes graph inputs and targets out of raw columns; None where the columns are these already.
        data: Gives the samples or batches in order; None where they are read from elsewhere.
        scheduler: Called once on every rank that trains something, with its optimiser; None where learning rates stay.
    """

    loss: "Callable[[Any, Columns], Tensor]"
    optimizer: "Callable[[list[tuple[str, Parameter]]], Optimizer]"
    prepare: "Callable[[Columns], Columns] | None" = None
    data: "Callable[[], Iterable[Columns]] | None" = None
    scheduler: "Callable[[Optimizer], Scheduler] | None" = None

    def __post_init__(self) -> None:
        for name in ARGUMENTS:
            function = getattr(self, name)
            if function is not None:
                refuse_uncallable(name, function)


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
    spec = importlib.util.spec_from_file_location(_MODULE, file)
    assert spec is not None, "a name that ends in .py"  # noqa: S101 - checked above
    assert spec.loader is not None, "as above"  # noqa: S101
    module = importlib.util.module_from_spec(spec)
    folder = str(file.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # as for a script: what lies beside it can be imported
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise InputError(f"the training file {str(path)!r} fails: {where_it_failed(error, file)}") from error
    found: dict[str, Any] = {}
    refuse_misnamed(path, parsed, {name for name in ARGUMENTS if hasattr(module, name)}, has_data=has_data)
    for name in ARGUMENTS:
        value = getattr(module, name, None)
        if value is None and name not in NEEDED:
            continue
        if not callable(value):
            fault = "has no function" if value is None else "has something that is no function under the name"
            raise InputError(f"the training file {str(path)!r} {fault} {name!r}; it needs loss and optimizer")
        found[name] = value
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


def from_training_file(error: BaseException) -> BaseException:
    """Leave out of an exception's trace what called the training file, which is not the user's."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__") != _MODULE:
        trace = trace.tb_next
    return error if trace is None else error.with_traceback(trace)


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


def make_scheduler(training: Training, optimizer: "Optimizer | None", *, knows_loss: bool) -> "Scheduler | None":
    """Call the user's ``scheduler``; None where there is none, or the rank has nothing to train.

    Args:
        training: What the training file says.
        optimizer: Of this rank.
        knows_loss: Whether every rank computes the loss, so that a schedule may depend on it.

    Raises:
        RunError: where it gives something else, sets the rates of another optimiser, or needs a loss that is not known.
    """
    from torch.optim.lr_scheduler import ReduceLROnPlateau  # noqa: PLC0415 - torch only in the processes of a run

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
    if isinstance(made, ReduceLROnPlateau) and not knows_loss:
        raise RunError(
            "scheduler() of the training file gave ReduceLROnPlateau, which needs the loss on every rank, and ranks of "
            "earlier stages do not know it; take one that counts steps, or compile to one stage (--max-stages 1)"
        )
    return made  # type: ignore[no-any-return]  # it has what a Scheduler has


def step_scheduler(training: Training, scheduler: "Scheduler", loss: float | None) -> None:
    """Step a scheduler after the optimiser; ``ReduceLROnPlateau`` with the loss of the step."""
    from torch.optim.lr_scheduler import ReduceLROnPlateau  # noqa: PLC0415 - torch only in the processes of a run

    assert training.scheduler is not None  # noqa: S101 - it has made the scheduler
    with in_function("scheduler", training.scheduler):
        if isinstance(scheduler, ReduceLROnPlateau):
            assert loss is not None  # noqa: S101 - make_scheduler has checked it
            scheduler.step(loss)
        else:
            scheduler.step()


def where_it_failed(error: BaseException, file: Path) -> str:
    """Tell an exception of the user's file in one line, with the last line of that file in it."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    place = f" (line {lines[-1]})" if lines else ""
    return f"{type(error).__name__}: {error}{place}"
