"""A run of two stages to start on other machines, without a compiled folder."""

from dataclasses import replace
from pathlib import Path

from plans import PLAN

from heterps_compile.runtime.engines.job import Job
from heterps_compile.runtime.launch.prepare import Prepared, places_of
from heterps_compile.runtime.launch.run_options import RunOptions
from heterps_compile.runtime.pipeline.layout import make_layout

HOSTILE = "my\n$(touch /tmp/owned) '\"`;#{}.heterps"


def make_job(*, replicas: tuple[int, ...] = (2, 1), servers: int = 0, **options) -> Job:
    """Return a job of ranks 0 and 1 for stage 0 and rank 2 for stage 1."""
    layout = make_layout(PLAN, training=False, replicas=list(replicas))
    directory = options.pop("directory", "/data/m.heterps")
    prepared = Prepared(Path(directory), PLAN, "ab" * 32, layout, places_of(layout, servers))
    return Job(replace(RunOptions(directory=directory, data="random"), **options), prepared)
