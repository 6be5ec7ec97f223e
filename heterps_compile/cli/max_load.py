"""``heterps-compile WORKLOAD --objective max-load``: spread a cost-only graph over its pool.

A workload has costs and no operations: a plan comes out, and no code.

Left out: the search itself (``passes/max_load``) and the looks of it (``report/split.py``).
"""

import json
import sys
import time
from contextlib import closing

from .output import Progress, printing, result_stream, terminal_width

MAX_LOAD = "max-load"


def solve_workload_file(
    path: str,
    *,
    output: str | None,
    force: bool,
    contiguous: bool,
    accelerators: int | None,
    cpus: int | None,
    mode: str,
    method: str | None,
    seed: int,
    time_limit: float | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Solve a workload file, print the split, and write it where a folder is named.

    Raises:
        InputError: where the file is no workload, or the folder cannot be written.
        InfeasibleError: where no split exists.
    """
    from heterps_compile.frontends.workload import read_workload  # noqa: PLC0415 - only here
    from heterps_compile.passes.max_load.solve import solve_max_load  # noqa: PLC0415 - numpy
    from heterps_compile.plan.folder import check_target, write_files  # noqa: PLC0415 - pydantic
    from heterps_compile.report.split import print_split, split_document, split_files  # noqa: PLC0415 - rich
    from heterps_compile.report.tables import make_console  # noqa: PLC0415 - rich

    began = time.perf_counter()
    with result_stream() as stream, closing(Progress(sys.stderr, wanted=not quiet)) as progress:
        if output is not None:
            check_target(output, force=force)
        workload = read_workload(path, accelerators=accelerators, cpus=cpus, mode=mode)
        progress.show("solving", 0, 1)
        result = solve_max_load(
            workload, contiguous=contiguous, method=method or "exact", seed=seed, time_limit_s=time_limit
        )
        if output is not None:
            write_files(output, split_files(workload, result), force=force)
        progress.close()
        with printing("the split"):
            if as_json:
                document = split_document(workload, result, output)
                document["total_s"] = time.perf_counter() - began
                stream.write(json.dumps(document, indent=2) + "\n")
            elif quiet:
                stream.write(f"{output or result.value_ms}\n")
            else:
                print_split(make_console(stream, terminal_width(stream)), workload, result, output)
            stream.flush()
