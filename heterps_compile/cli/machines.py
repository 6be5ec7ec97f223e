"""``heterps-compile machines MODEL.onnx``: which machines to rent, by a deadline or within a budget.

Left out: the choice (``machines/``), and its words (``machines/machines_words.py``).
"""

import sys
from contextlib import closing
from typing import Any

import click

from heterps_compile.fit_lines import terminal_width
from heterps_compile.options import Asked
from heterps_compile.plan.command_options import ONNX
from heterps_compile.plan.machine_options import MACHINES

from . import options
from .output import ProgressLine, printing, quiet_libraries, result_stream
from .pictures import check_file, write_file


@click.command("machines")
@click.argument("model", metavar="MODEL.onnx")
@options.takes(MACHINES)
@click.pass_context
def machines(ctx: click.Context, /, model: str, **_: Any) -> None:
    """Choose the machines to train MODEL.onnx on: the cheapest by a deadline, or the fastest within a budget.

    Offers of a catalogue are compared in every number, one kind alone and two kinds together; a plan is searched for on
    those that may be the best. Time and money are told in the median, and what nine of ten runs stay below, which is
    what a deadline and a budget are held to.

    \b
    Files:
      DIR/pool.toml     the machines, with the prices that were used
      DIR/              all else that compile writes: run and launch take it
      FILE.html         what --pareto names

    \b
    Examples:
      heterps-compile machines m.onnx --samples 2e9 --batch 4096 --deadline 24h
      heterps-compile machines m.onnx --samples 2e9 --budget "300 USD"
      heterps-compile machines m.onnx --samples 2e9 --deadline 24h --gpu v100,a100
      heterps-compile machines m.onnx --samples 2e9 --deadline 2d --spot -o out
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a backspace
    with options.asked_of(ctx, MACHINES, ONNX) as asked:
        _machines(model, asked)


def _machines(model: str, asked: Asked) -> None:
    output, force, backend, as_json = asked["output"], asked["force"], asked["backend"], asked["as_json"]
    with (
        result_stream() as stream,
        quiet_libraries(verbose=False),
        closing(ProgressLine(sys.stderr, wanted=True)) as progress,
    ):
        from heterps_compile.api import read_model  # noqa: PLC0415 - torch and onnx
        from heterps_compile.machines.choose import choose, compile_for  # noqa: PLC0415 - as above
        from heterps_compile.machines.goal import (  # noqa: PLC0415 - numpy
            USUAL_LIFETIME,
            USUAL_START_UP_S,
            Goal,
            Transience,
            batches_between,
            parse_duration,
            parse_lifetime,
            parse_money,
        )
        from heterps_compile.machines.machines_words import answer_document, print_answer  # noqa: PLC0415 - rich
        from heterps_compile.offers import read_catalogue  # noqa: PLC0415 - numpy
        from heterps_compile.plan.folder import check_target  # noqa: PLC0415 - pydantic

        deadline, money, batch = asked["deadline"], asked["money"], asked["batch"]
        shapes, seed, pareto = asked["shapes"], asked["seed"], asked["pareto"]
        lifetime, start_up = asked["lifetime"], asked["start_up"]
        transience = Transience(
            USUAL_LIFETIME if lifetime is None else parse_lifetime(lifetime),
            USUAL_START_UP_S if start_up is None else parse_duration(start_up),
        )
        goal = Goal(
            spot=asked["spot"],
            transience=transience,
            samples=asked["samples"],
            batches=(1,) if batch is None else batches_between(*batch),
            deadline_s=None if deadline is None else parse_duration(deadline),
            budget=None if money is None else parse_money(money),
            most_machines=asked["max_machines"],
        )
        if output is not None:
            check_target(output, force=force)
        if pareto is not None:
            check_file("--pareto", pareto)
        offers = read_catalogue(asked["catalogue"]).select(**asked.some("gpu", "region", "provider"))
        if batch is None:
            goal = goal.with_batch(read_model(model, shapes=shapes).batch)
        computes = asked.some("precision", "optimizer", "learn")
        answer = choose(model, goal, offers, shapes=shapes, seed=seed, on_progress=progress.show, **computes)
        if output is not None:
            compile_for(
                model, answer, output, force=force, backend=backend, shapes=shapes, seed=seed,
                on_progress=progress.show, **asked.some("precision", "optimizer"),
            )  # fmt: skip
        if pareto is not None:
            from heterps_compile.report.machines_page import machines_page  # noqa: PLC0415 - only where asked for

            write_file(pareto, machines_page(answer))
        progress.close()
        written = "" if output is None else f" (the folder {output!r} is written all the same)"
        with printing(f"the machines{written}"):
            if as_json:
                stream.write(answer_document(answer, output) + "\n")
            else:
                from heterps_compile.console import make_console  # noqa: PLC0415 - rich

                print_answer(make_console(stream, terminal_width(stream)), answer)
                if output is not None:
                    stream.write(f"\nwritten to {output}\n")
            stream.flush()
