"""``heterps-compile machines MODEL.onnx``: which machines to rent, by a deadline or within a budget.

Left out: the choice (``machines/``), and its words (``machines/machines_words.py``).
"""

import datetime as dt
import sys
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from heterps_compile.fit_lines import terminal_width
from heterps_compile.options import Asked
from heterps_compile.plan.command_options import ONNX
from heterps_compile.plan.machine_options import MACHINES

from . import options
from .output import ProgressLine, printing, quiet_libraries, result_stream
from .pictures import check_file, write_file

if TYPE_CHECKING:
    from heterps_compile.machines import Goal
    from heterps_compile.offers import Catalogue


@dataclass(frozen=True, slots=True)
class _Call:
    """What the command was called for."""

    model: str
    asked: Asked
    goal: "Goal"
    offers: "Catalogue"
    prices: "Catalogue"


@click.command("machines")
@click.argument("model", metavar="MODEL.onnx")
@options.takes(MACHINES)
@click.pass_context
def machines(ctx: click.Context, /, model: str, **_: Any) -> None:
    """Choose the machines to train MODEL.onnx on: the cheapest by a deadline, or the fastest within a budget.

    Offers of a catalogue are compared in every number, one kind alone and two kinds together; a plan is searched for on
    those that may be the best. Time and money are told in the median, and what nine of ten runs stay below, which is
    what a deadline and a budget are held to.

    With --resume it says for a run that goes on whether it stays, moves to other machines or waits for those it lost,
    and what a move costs; --samples are those of the whole training, the deadline counts from now.

    \b
    Files:
      DIR/pool.toml     the machines, with the prices that were used
      DIR/machines.json the whole answer
      DIR/              all else that compile writes: run and launch take it
      FILE.html         what --pareto names

    \b
    Examples:
      heterps-compile machines m.onnx --samples 2e9 --batch 4096 --deadline 24h
      heterps-compile machines m.onnx --samples 2e9 --budget "300 USD"
      heterps-compile machines m.onnx --samples 2e9 --deadline 24h --gpu v100,a100
      heterps-compile machines m.onnx --samples 2e9 --deadline 2d --spot -o out
      heterps-compile machines m.onnx --samples 2e9 --deadline 8h --spot \\
          --lifetimes seen.csv --trace seen-there.csv
      heterps-compile machines m.onnx --samples 2e9 --deadline 9h --resume ckpt \\
          --plan out --lost 1
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a backspace
    with options.asked_of(ctx, MACHINES, ONNX) as asked:
        _machines(model, asked)


def _machines(model: str, asked: Asked) -> None:
    output, force, pareto, batch = asked["output"], asked["force"], asked["pareto"], asked["batch"]
    with (
        result_stream() as stream,
        quiet_libraries(verbose=False),
        closing(ProgressLine(sys.stderr, wanted=True)) as progress,
    ):
        from heterps_compile.api import read_model  # noqa: PLC0415 - torch and onnx
        from heterps_compile.offers import read_catalogue  # noqa: PLC0415 - numpy
        from heterps_compile.plan.folder import check_target  # noqa: PLC0415 - pydantic

        goal = _goal(asked)
        if output is not None:
            check_target(output, force=force)
        if pareto is not None:
            check_file("--pareto", pareto)
        prices = read_catalogue(asked["catalogue"])
        offers = prices.select(**asked.some("gpu", "region", "provider"))
        if asked["resume"] is not None:
            _resume(_Call(model, asked, goal, offers, prices), progress, stream)
            return
        if batch is None:
            goal = goal.with_batch(read_model(model, shapes=asked["shapes"]).batch)
        _choose(_Call(model, asked, goal, offers, prices), progress, stream)


def _goal(asked: Asked) -> "Goal":
    """Return what is asked of the machines; one sample a step where no batch is."""
    from heterps_compile.machines.chosen_file import read_goal  # noqa: PLC0415 - numpy
    from heterps_compile.machines.goal import (  # noqa: PLC0415 - numpy
        Goal,
        Transience,
        batches_between,
        parse_duration,
        parse_lifetime,
        parse_money,
    )
    from heterps_compile.machines.seen_lifetimes import read_lifetimes  # noqa: PLC0415 - numpy

    deadline, money, batch = asked["deadline"], asked["money"], asked["batch"]
    lifetime, lifetimes, start_up = asked["lifetime"], asked["lifetimes"], asked["start_up"]
    before = Transience() if asked["resume"] is None else read_goal(asked["plan"]).transience
    transience = Transience(
        before.lifetime if lifetime is None else parse_lifetime(lifetime),
        before.start_up_s if start_up is None else parse_duration(start_up, zero=True),
        (before.seen if lifetime is None else ()) if lifetimes is None else read_lifetimes(lifetimes),
    )
    return Goal(
        spot=asked["spot"],
        transience=transience,
        counts_start=start_up is not None,
        samples=asked["samples"],
        batches=(1,) if batch is None else batches_between(*batch),
        deadline_s=None if deadline is None else parse_duration(deadline),
        budget=None if money is None else parse_money(money),
        most_machines=asked["max_machines"],
    )


def _choose(call: _Call, progress: ProgressLine, stream: TextIO) -> None:
    from heterps_compile.machines.choose import choose, compile_for  # noqa: PLC0415 - torch and onnx
    from heterps_compile.machines.machines_words import (  # noqa: PLC0415 - rich
        answer_document,
        print_answer,
        stale_prices,
    )
    from heterps_compile.machines.traced import compare_policies, read_trace_for  # noqa: PLC0415 - numpy

    asked, output, pareto = call.asked, call.asked["output"], call.asked["pareto"]
    trace = None if asked["trace"] is None else read_trace_for(asked["trace"], call.goal)
    answer = choose(call.model, call.goal, call.offers, on_progress=progress.show, **_about(asked))
    stale = stale_prices(answer, dt.datetime.now(dt.UTC).date())
    answer = replace(answer, notes=(*answer.notes, *stale))
    if output is not None:
        compile_for(call.model, answer, output, on_progress=progress.show, **_compiling(asked))
    if pareto is not None:
        from heterps_compile.report.machines_page import machines_page  # noqa: PLC0415 - only where asked for

        write_file(pareto, machines_page(answer))
    compared = None
    if trace is not None:
        compared = compare_policies(trace, Path(asked["trace"]).name, answer.best, call.goal)
    progress.close()
    written = "" if output is None else f" (the folder {output!r} is written all the same)"
    with printing(f"the machines{written}"):
        if asked["as_json"]:
            stream.write(answer_document(answer, output, compared) + "\n")
        else:
            from heterps_compile.console import make_console  # noqa: PLC0415 - rich

            print_answer(make_console(stream, terminal_width(stream)), answer, compared)
            if output is not None:
                stream.write(f"\nwritten to {output}\n")
        stream.flush()


def _resume(call: _Call, progress: ProgressLine, stream: TextIO) -> None:
    from heterps_compile.machines.choose import compile_for, decide_for, standing_of  # noqa: PLC0415 - torch and onnx
    from heterps_compile.machines.goal import parse_duration, parse_money  # noqa: PLC0415 - numpy
    from heterps_compile.machines.resume_words import (  # noqa: PLC0415 - rich
        nothing_to_write,
        print_resumption,
        resumption_document,
    )

    asked, goal = call.asked, call.goal
    output, spent, wait = asked["output"], asked["spent"], asked["wait"]
    standing = standing_of(
        asked["plan"],
        asked["resume"],
        spent=0.0 if spent is None else parse_money(spent),
        lost=asked["lost"],
        wait_s=0.0 if wait is None else parse_duration(wait, zero=True),
    )
    if asked["batch"] is None:
        goal = goal.with_batch(standing.chosen.batch)
    found = decide_for(
        call.model, goal, standing, call.offers, prices=call.prices, on_progress=progress.show, **_about(asked)
    )
    moved = found.answer_of_move
    if output is not None and moved is not None:
        compile_for(call.model, moved, output, on_progress=progress.show, **_compiling(asked))
    progress.close()
    folder = output if moved is not None else None
    with printing(
        f"what the run is to do{'' if folder is None else f' (the folder {folder!r} is written all the same)'}"
    ):
        if asked["as_json"]:
            stream.write(resumption_document(found, folder) + "\n")
        else:
            from heterps_compile.console import make_console  # noqa: PLC0415 - rich

            print_resumption(make_console(stream, terminal_width(stream)), found)
            if output is not None:
                stream.write(f"\n{nothing_to_write(found) if folder is None else f'written to {folder}'}\n")
        stream.flush()


def _about(asked: Asked) -> dict[str, Any]:
    """Return what steps of the model depend on."""
    return asked.some("shapes", "seed", "precision", "optimizer", "learn")


def _compiling(asked: Asked) -> dict[str, Any]:
    """Collect the inputs that the written folder depends on."""
    return asked.some("force", "backend", "shapes", "seed", "precision", "optimizer")
