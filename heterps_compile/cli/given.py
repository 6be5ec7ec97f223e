"""``heterps-compile PROBLEM.json`` and ``heterps-compile graph.txt --objective NAME``: plan given costs.

A problem with given costs has no operations: a plan comes out, and no code.

Left out: the search (``passes/place_given.py``), what the step of the plan takes and the looks of it (``prediction/``).
"""

import json
import re
import sys
from contextlib import closing
from typing import TYPE_CHECKING

from heterps_compile.errors import OptionError
from heterps_compile.fit_lines import terminal_width
from heterps_compile.options import Asked
from heterps_compile.plain_file import open_plain
from heterps_compile.plan.command_options import PLANNED_GRAPH, PROBLEM
from heterps_compile.plan.request import ALONE, DEFAULT_CLUSTER, OPTIONS
from heterps_compile.progress import Progress

from .output import ProgressLine, printing, result_stream

if TYPE_CHECKING:
    from heterps_compile.problem_file.given_problem import GivenProblem

_HEAD = 4096
_FORMAT = re.compile(rb'"format"\s*:\s*"heterps-compile problem"')
_PIPER = re.compile(rb'"(?:TMPCs|maxMemoryPerDevice|mbsInBatch|communicationCost)"\s*:')


def is_problem_file(path: str) -> bool:
    """Check if a JSON file is a problem file or one of Piper's."""
    head = _head(path)
    return _FORMAT.search(head) is not None or _is_piper(head)


def _head(path: str) -> bytes:
    try:
        with open_plain(path) as file:
            return file.read(_HEAD)
    except OSError:
        return b""


def _is_piper(head: bytes) -> bool:
    return _PIPER.search(head) is not None and _FORMAT.search(head) is None


def read_given(
    path: str,
    subject: str,
    cluster: str | None,
    mode: str | None,
    *,
    objective: str = "throughput",
    reading: str | None = None,
) -> "GivenProblem":
    """Read a problem, one of Piper's, or a PipeDream graph.

    A graph's batches are of one replica each where throughput is asked for in the steady state, as PipeDream counts
    them; with one batch alone they are those of a step.

    Raises:
        InputError: where the file cannot be read or says something wrong.
        UnknownNameError: for a pool or a word that nobody knows.
    """
    from heterps_compile.cluster.load import load_cluster  # noqa: PLC0415 - pydantic
    from heterps_compile.problem_file.given_problem import REPLICA, STEP  # noqa: PLC0415 - as above
    from heterps_compile.problem_file.pipedream_problem import read_pipedream  # noqa: PLC0415 - as above
    from heterps_compile.problem_file.piper import read_piper  # noqa: PLC0415 - as above
    from heterps_compile.problem_file.read_problem import read_problem  # noqa: PLC0415 - as above

    if subject == PROBLEM:
        return (read_piper if _is_piper(_head(path)) else read_problem)(path, cluster=cluster)
    pool = load_cluster(DEFAULT_CLUSTER if cluster is None else cluster)
    batch_of = REPLICA if objective == "throughput" and reading != ALONE else STEP
    return read_pipedream(path, pool, mode=mode or "training", batch_of=batch_of)


def plan_given_file(path: str, asked: Asked) -> None:
    """Plan a problem file or a graph, print the plan, and write it where a folder is named.

    Raises:
        InputError: where the file is wrong, or the request asks for what it does not have.
        InfeasibleError: where no plan meets the request.
    """
    from heterps_compile.passes.place_given import place_given  # noqa: PLC0415 - numpy
    from heterps_compile.plan.folder import check_target, write_files  # noqa: PLC0415 - pydantic
    from heterps_compile.plan.request import make_request  # noqa: PLC0415
    from heterps_compile.prediction.choose_micro_batch import choose_of_rivals, choose_of_steps  # noqa: PLC0415
    from heterps_compile.problem_file.given_plan import plan_document  # noqa: PLC0415 - pydantic

    output, quiet, as_json = asked["output"], asked["quiet"], asked["as_json"]
    if asked["force"] and output is None:
        raise OptionError(f"--force means nothing without -o DIR: of {asked.subject} nothing else is written")
    given_options = {name: asked[name] for name in OPTIONS if name in asked.given}
    cluster = asked["cluster"] if "cluster" in asked.given else None
    objective = asked["objective"]
    with result_stream() as stream, closing(ProgressLine(sys.stderr, wanted=not quiet)) as progress:
        if output is not None:
            check_target(output, force=asked["force"])
        mode = asked["mode"] if asked.subject == PLANNED_GRAPH and "mode" in asked.given else None
        problem = read_given(path, asked.subject, cluster, mode, objective=objective, reading=asked["reading"])
        request = make_request(problem.known_pool.currency, **{**problem.asked, **given_options})
        progress.show(Progress("searching", 0, 1))
        placed = place_given(problem, request)
        if request.reading == ALONE:
            placed, plan, prediction = choose_of_steps(problem, placed, request)
        else:
            placed, plan, prediction = choose_of_rivals(problem, placed, request.objective)
        document = plan_document(problem, plan)
        if output is not None:
            write_files(output, {"plan.json": json.dumps(document, indent=1) + "\n"}, force=asked["force"])
        progress.close()
        with printing("the plan"):
            from heterps_compile.prediction.placed_words import PlannedGiven, placed_document, print_placed  # noqa: PLC0415

            planned = PlannedGiven(problem, request, placed, plan, prediction, output)
            if as_json:
                stream.write(placed_document(planned) + "\n")
            elif quiet:
                stream.write(f"{output or placed.value}\n")
            else:
                from heterps_compile.console import make_console  # noqa: PLC0415

                print_placed(make_console(stream, terminal_width(stream)), planned, in_full=asked["verbose"])
            stream.flush()
