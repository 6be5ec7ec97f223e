"""Whether a run validates, and what is told of its options before anything has started.

Left out: the data (``data.py``); which metrics there are, which the first micro-batch tells.
"""

from heterps_compile.errors import InputError, OptionError, UnknownNameError
from heterps_compile.escape import printable
from heterps_compile.runtime.launch.run_options import RunOptions
from heterps_compile.runtime.launch.training_file import defines, may_define

from .best import LOSS


def check_validation_options(options: RunOptions, train: str) -> None:
    """Check, without running it, that a training file and the options of validations go together.

    Args:
        options: Of the run.
        train: The training file, which was checked.

    Raises:
        InputError: where there are validation data twice.
        OptionError, UnknownNameError: as :func:`refuse_idle_options`.
    """
    if options.validate is not None and defines(train, "validation_data"):
        raise InputError(two_validations(f"the training file {train!r}", options.validate))
    has_data = options.validate is not None or may_define(train, "validation_data")
    refuse_idle_options(options, has_data=has_data, has_metrics=may_define(train, "metrics"))


def refuse_idle_options(options: RunOptions, *, has_data: bool, has_metrics: bool) -> None:
    """Refuse options of validations where there are none, and a best metric that nobody computes.

    Args:
        options: Of the run.
        has_data: Whether there are data to validate on.
        has_metrics: Whether the training file may have ``metrics``.

    Raises:
        OptionError, UnknownNameError: naming the option.
    """
    given = {"--validate-every": options.validate_every, "--keep-best": options.keep_best}
    idle = next((word for word, value in given.items() if value is not None and not has_data), None)
    if idle is not None:
        raise OptionError(
            f"{idle} means nothing without validation; name data to validate on (--validate DATA), or define "
            f"validation_data() in the training file"
        )
    best = options.best
    if best is not None and best.name != LOSS and not has_metrics:
        raise UnknownNameError("metric of --keep-best (the training file has no metrics())", best.name, [LOSS])


def two_validations(of: str, name: str) -> str:
    """Say that there are validation data twice."""
    return (
        f"validation_data() of {of} and --validate {printable(name)} both give the validation data, and a run reads "
        f"one of them; leave --validate out, or take validation_data() out of the file"
    )
