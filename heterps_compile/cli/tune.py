"""``heterps-compile tune SPACE.toml``: search for the best configuration of a training, model and plan.

Left out: the search (``tuning/run_search.py``), and its words (``tuning/board.py``).
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from heterps_compile.errors import HeterpsError, OptionError
from heterps_compile.escape import printable
from heterps_compile.fit_lines import terminal_width
from heterps_compile.options import Asked
from heterps_compile.packages import PYTORCH, need
from heterps_compile.tuning.tune_options import BEGUN, RESUMED, SHOWN, TUNE

from . import options
from .output import printing, quiet_libraries, result_stream, tell
from .pictures import check_file, write_file

if TYPE_CHECKING:
    from heterps_compile.tuning.search_request import Search
    from heterps_compile.tuning.search_state import SearchState

_NEEDED = ("model", "train", "metric", "output")


@click.command("tune")
@click.argument("space", metavar="[SPACE.toml]", required=False)
@options.takes(TUNE)
@click.pass_context
def tune(ctx: click.Context, /, space: str | None, **_: Any) -> None:
    """Search SPACE.toml for the best configuration: of the training, of the model, and of the plan it runs by.

    A trial compiles the model of a configuration and trains it, in a process of its own. How long it takes on each
    class of workers is known from its plan before it starts, and corrected by what trials took. A search that ended
    early, be it by SIGKILL, goes on with --resume: no trial that ended runs again.

    \b
    Files:
      DIR/search.json     what the search is
      DIR/journal.jsonl   what happened, an event a line
      DIR/trials/N/       what trial N printed, and its checkpoint
      DIR/plans/          compiled models
      DIR/best.safetensors  weights of the best trial, with a card beside
      FILE.html           what --report names

    \b
    Examples:
      heterps-compile tune s.toml --model m.py --train t.py --metric loss -o R
      heterps-compile tune -o R --resume
      heterps-compile tune --show R --report search.html
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a backspace
    subject = SHOWN if ctx.params["show"] is not None else RESUMED if ctx.params["resume"] else BEGUN
    with options.asked_of(ctx, TUNE, subject) as asked:
        if (space is None) == (subject == BEGUN):
            raise OptionError(
                "tune needs a space: name its file, SPACE.toml"
                if space is None
                else f"{subject} has its space; leave {printable(space)} out"
            )
        report, resume = asked["report"], asked["resume"]
        with result_stream() as stream, quiet_libraries(verbose=False):
            if report is not None:
                check_file("--report", report)
            state = _shown(asked) if subject == SHOWN else _run(_opened(asked, space, resume=resume), asked)
            if report is not None:
                from heterps_compile.report.tuning_page import tuning_page  # noqa: PLC0415 - only where asked for

                write_file(report, tuning_page(state))
            with printing("the board"):
                from heterps_compile.console import make_console  # noqa: PLC0415 - rich
                from heterps_compile.tuning.board import print_board  # noqa: PLC0415 - as above

                print_board(make_console(stream, terminal_width(stream)), state)
                stream.flush()
        if subject != SHOWN:
            from heterps_compile.tuning.export_best import export_best  # noqa: PLC0415 - torch

            tell(export_best(state))


def _shown(asked: Asked) -> "SearchState":
    from heterps_compile.tuning.search_state import read_search  # noqa: PLC0415 - pydantic

    return read_search(Path(asked["show"]))


def _opened(asked: Asked, space: str | None, *, resume: bool) -> "Search":
    """Return the search, written down."""
    need("running trials", PYTORCH)
    from heterps_compile.tuning.search_record import read_record  # noqa: PLC0415 - pydantic
    from heterps_compile.tuning.search_request import SearchRequest, begin_search, reopen_search  # noqa: PLC0415 - numpy

    output = asked["output"]
    if resume:
        folder = Path(output).absolute()
        search = reopen_search(folder, read_record(folder))
        engine = asked["engine"] if "engine" in asked.given else search.record.engine
        address = asked["address"] if {"address", "engine"} & asked.given else search.path("address") or None
        return search.started_by(engine, address)
    assert space is not None, "a search begins with one"  # noqa: S101 - checked above
    for name in _NEEDED:
        option = TUNE.option(name)
        if asked[name] is None:
            raise OptionError(f"tune needs {option.word} {option.metavar}: {option.help}".rstrip("."))
    request = SearchRequest(
        space=space,
        is_maximised=True if asked["maximise"] else False if asked["minimise"] else None,
        budget=asked["money"],
        time_limit_s=asked["time_limit"],
        verifies=not asked["no_verify"],
        **asked.some(
            "model", "train", "data", "validate", "validate_every", "metric", "trials", "method", "rule", "fidelity",
            "eta", "seed", "retries", "pool", "workers", "engine", "address",
        ),
    )  # fmt: skip
    return begin_search(request, output)


def _run(search: "Search", asked: Asked) -> "SearchState":
    from heterps_compile.tuning.journal import JOURNAL_FILE  # noqa: PLC0415 - pydantic
    from heterps_compile.tuning.run_search import run_search  # noqa: PLC0415 - torch
    from heterps_compile.tuning.search_request import discard  # noqa: PLC0415 - numpy

    quiet, output = asked["quiet"], asked["output"]
    trials = asked["trials"] if "trials" in asked.given else None  # else as many as before
    try:
        return run_search(search, _silent if quiet else tell, trials=trials)
    except KeyboardInterrupt:
        tell(f"the search goes on with: heterps-compile tune -o {printable(output)} --resume")
        raise
    except HeterpsError:
        if not (search.folder / JOURNAL_FILE).exists():
            discard(search)  # nothing ran: the command can be typed again, corrected
        raise


def _silent(_words: str) -> None:
    pass
