"""Runs that an engine starts anew: what they need so that they go on from their last checkpoint.

Left out: noticing that a process is lost, and starting anew (the engine's own).
"""

from heterps_compile.errors import InputError
from heterps_compile.runtime.launch.checkpoint_start import find_start

from .contract import Job


def check_restarts(job: Job, max_restarts: int) -> None:
    """Check that there is something to go on from after a restart.

    Raises:
        InputError: where every restart would begin at the first step.
        RunError: where checkpoints lie there that nobody asked to resume.
    """
    if max_restarts and job.options.training and job.options.checkpoint is None:
        raise InputError(
            f"--max-restarts {max_restarts} without --checkpoint would start every time at the first step; give "
            f"--checkpoint DIR and --every N too"
        )
    find_start(job.prepared, job.options)  # before --resume is added


def resume_words(job: Job, max_restarts: int) -> list[str]:
    """Return the option that has a restarted run go on from its last checkpoint, where it is not among the job's."""
    is_needed = max_restarts and job.options.checkpoint is not None and not job.options.resume
    return ["--resume"] if is_needed else []
