"""What is said when a run is over: what was done, and what was measured beside what the plan promised.

Left out: what was measured (``telemetry/run_summary.py``).
"""

import os
import signal

from rich.console import Console
from rich.text import Text

from heterps_compile.escape import printable
from heterps_compile.runtime.telemetry.run_summary import comparison_table, summary_lines

from .show import Show
from .task import Result


def end_lines(result: Result, last_loss: float | None) -> list[str]:
    """Return in words what was done."""
    done = result.steps - result.first_step
    lines = [f"{done:,} steps, {done * result.batch - result.filled:,} samples"]
    if result.first_step:
        lines[0] += f", after the {result.first_step:,} steps of the checkpoint"
        if not done and not result.stopped_by:
            lines[0] += ": all that were asked for are done"
    if last_loss is not None:
        lines.append(f"last loss {last_loss:.6g}")
    if result.stopped_by:
        when = f"after {result.steps:,} steps" if done else "before a step was done"
        lines.append(f"stopped by {signal.Signals(result.stopped_by).name} {when}")
    if result.checkpoint:
        go_on = "; go on with --resume" if result.stopped_by else ""
        lines.append(f"checkpoint {printable(result.checkpoint)}{go_on}")
    return lines


def print_end(console: Console, result: Result, show: Show) -> None:
    """Print the end of a run; where nobody reads it any more, the run is over all the same."""
    with console.capture() as captured:
        _print(console, result, show)
    try:
        console.file.write(captured.get())
        console.file.flush()
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, console.file.fileno())  # what is left in the buffer goes there
        os.close(nowhere)


def _print(console: Console, result: Result, show: Show) -> None:
    for line in end_lines(result, show.last_loss):
        console.print(Text(line), soft_wrap=True)
    summary = show.summary()
    if summary is None:
        return
    planned = comparison_table(show.plan, summary, as_planned=show.is_as_planned, shared_step_s=show.shared_step_s)
    console.print(planned)
    for line in summary_lines(summary):
        console.print(Text(line), soft_wrap=True)
