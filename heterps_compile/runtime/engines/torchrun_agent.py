"""An agent of torchrun with its own options, whose end is told as a run's is: an exit code, and one line for a fault.

::

    python3 -m heterps_compile.runtime.engines.torchrun_agent --nproc-per-node=3 -m -- heterps_compile run DIR

``torchrun`` prints a trace of Python's where it is interrupted, and a table where a rank has failed, which the rank has
told by then. Left out: everything else, which is torchrun's.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from heterps_compile.errors import SIGNALLED
from heterps_compile.escape import one_line


def run_agent(words: Sequence[str]) -> int:
    """Be an agent; return what it is to exit with: 128 and the number of the signal that stopped it."""
    from torch.distributed.elastic.multiprocessing.api import SignalException  # noqa: PLC0415 - torch where it runs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: PLC0415 - as above

    torchrun: Any = import_module("torch.distributed.run")
    try:
        torchrun.run(torchrun.parse_args(list(words)))
    except SignalException as error:
        return SIGNALLED + int(error.sigval)
    except ChildFailedError:
        return 1  # the ranks have told why
    except Exception as error:  # noqa: BLE001 - the outermost frame of the agent: told, in one line
        reason = one_line(str(error)) or "no reason given"
        print(f"Error: torchrun's agent failed ({type(error).__name__}): {reason}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(run_agent(sys.argv[1:]))
