"""``heterps-compile WORKLOAD``: spread a cost-only graph over its pool.

A workload has costs and no operations: a plan comes out, and no code.

Left out: the search itself (``passes/max_load``) and the looks of it (``passes/max_load/split_words.py``).
"""

import json
import sys
import time
from contextlib import closing

from heterps_compile.errors import OptionError
from heterps_compile.fit_lines import terminal_width
from heterps_compile.options import Asked
from heterps_compile.plan.command_options import SPLIT_GRAPH, WORKLOAD
from heterps_compile.progress import Progress

from .output import ProgressLine, printing, result_stream

MAX_LOAD = "max-load"


def solve_workload_file(path: str, asked: Asked) -> None:
    """Solve a workload file, print the split, and write it where a folder is named.

    Raises:
        InputError: where the file is no workload, or the folder cannot be written.
        InfeasibleError: where no split exists.
    """
    from heterps_compile.console import make_console  # noqa: PLC0415 - rich
    from heterps_compile.passes.max_load.solve import solve_max_load  # noqa: PLC0415 - numpy
    from heterps_compile.passes.max_load.split_words import print_split, split_document, split_files  # noqa: PLC0415 - rich
    from heterps_compile.plan.folder import check_target, write_files  # noqa: PLC0415 - pydantic
    from heterps_compile.problem_file.workload_file import read_workload  # noqa: PLC0415 - only here

    began = time.perf_counter()
    output, quiet, as_json = asked["output"], asked["quiet"], asked["as_json"]
    if asked["objective"] != MAX_LOAD and "objective" in asked.given:
        raise OptionError(
            f"--objective {asked['objective']} means nothing for {asked.subject}, which is solved for max-load; leave "
            f"--objective out"
        )
    if asked["force"] and output is None:
        raise OptionError(f"--force means nothing without -o DIR: of {asked.subject} nothing else is written")
    cpus = asked["cpus"] if asked.subject == WORKLOAD else None
    mode = asked["mode"] if asked.subject == SPLIT_GRAPH else None
    with result_stream() as stream, closing(ProgressLine(sys.stderr, wanted=not quiet)) as progress:
        if output is not None:
            check_target(output, force=asked["force"])
        workload = read_workload(path, accelerators=asked["accelerators"], cpus=cpus, mode=mode)
        progress.show(Progress("solving", 0, 1))
        result = solve_max_load(
            workload,
            seed=asked["seed"],
            time_limit_s=asked["time_limit"],
        )
        if output is not None:
            write_files(output, split_files(workload, result), force=asked["force"])
        progress.close()
        with printing("the split"):
            if as_json:
                document = split_document(workload, result, output)
                document["total_s"] = time.perf_counter() - began
                stream.write(json.dumps(document, indent=2) + "\n")
            elif quiet:
                stream.write(f"{output or result.value_ms}\n")
            else:
                console = make_console(stream, terminal_width(stream))
                print_split(console, workload, result, output, in_full=asked["verbose"])
            stream.flush()
