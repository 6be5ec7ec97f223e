"""The weights of the best trial as a file, for whoever goes on with them.

Left out: how they are written (``runtime/export/``).
"""

from pathlib import Path

from heterps_compile.errors import HeterpsError, RunError
from heterps_compile.escape import one_line, printable
from heterps_compile.runtime.export.export_checkpoint import export_checkpoint
from heterps_compile.units import counted

from .search_figures import lengths
from .search_state import SearchState

BEST_FILE = "best.safetensors"


def export_best(state: SearchState) -> str:
    """Write the weights of the best trial into the folder of the search; return what to tell of it.

    Raises:
        RunError: where no trial of the longest has a result.
    """
    best = state.best
    if best is None:
        whole = [trial for trial in state.trials if trial.fidelity >= state.record.most]
        why = next((f", the last since {printable(one.reason)}" for one in reversed(whole) if one.reason), "")
        fix = "mend what fails, or train for less (--fidelity)" if why else "run more (--resume --trials N)"
        of = f"{counted(len(whole), 'trial')} of {lengths(state, state.record.most)}"
        raise RunError(f"none of {of} has a result{why}. Fix: {fix}")
    if best.checkpoint is None:
        return "no checkpoint to export: the best trial has left none"
    checkpoint, target = Path(state.folder) / best.checkpoint, Path(state.folder) / BEST_FILE
    typed = f"heterps-compile export {printable(str(checkpoint))} -o {BEST_FILE}"
    try:
        export_checkpoint(str(checkpoint), str(target), force=True)
    except HeterpsError as error:
        return f"the best weights, of trial {best.number}, are not exported: {one_line(str(error))}; try {typed}"
    return f"weights of trial {best.number} written to {printable(str(target))}"
