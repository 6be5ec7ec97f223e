"""Whether a seed changes anything of an inference: it does where data are generated, or where a stage draws numbers.

Stages of PyTorch and jax draw from it; a session of ONNX Runtime has random numbers of its own.

Left out: which numbers are drawn; what may draw is taken to.
"""

import re
from pathlib import Path

from heterps_compile.errors import RunError
from heterps_compile.plan.plan import Plan
from heterps_compile.runtime.data.open_source import is_random

from .options import RunOptions

_MAY_DRAW = re.compile(
    r"rand|normal|bernoulli|multinomial|uniform|exponential|poisson|geometric|cauchy|rrelu|^DRAWS = True"
    r"|dropout\w*(?:\.\w+)?\([^\n]*True|dropout\w*(?:\.\w+)?\((?![^\n]*False)"
    r"|scaled_dot_product_attention(?:\.\w+)?\([^\n]*\d\.\d*[1-9]",
    re.MULTILINE,
)


def refuse_idle_seed(options: RunOptions, plan: Plan, folder: Path) -> None:
    """Refuse a seed that is given and changes nothing.

    Raises:
        RunError: where an inference reads data that are there, by stages that draw nothing.
    """
    if options.training or options.seed == 0 or is_random(options.data):
        return
    names = [artifact.file for files in plan.artifacts for artifact in files]
    sources = [folder / name for name in names if name.endswith(".py")]
    if not any(_MAY_DRAW.search(source.read_text("utf-8")) for source in sources):
        raise RunError(
            f"--seed {options.seed} changes nothing here: the data are not generated (--data random), and no stage "
            f"draws from it; leave it out"
        )
