"""``heterps-compile predict PROBLEM --plan PLAN``: what a step of a given plan takes, and its parts.

Left out: the prediction and the looks of it (``prediction/``).
"""

from typing import Any

import click

from heterps_compile.fit_lines import terminal_width
from heterps_compile.plan.command_options import GRAPH, PREDICT, PROBLEM

from . import options
from .given import read_given
from .output import printing, result_stream


@click.command("predict")
@click.argument("problem", metavar="PROBLEM.json")
@options.takes(PREDICT)
@click.pass_context
def predict(ctx: click.Context, /, problem: str, **_: Any) -> None:
    """Predict a step of a given plan from given times of layers: its time, its parts, what stages hold.

    PROBLEM.json holds layers with measured times, the values between them, a pool and a batch; the plan says which
    layers are a stage, on which replicas, and how large a micro-batch is. No model is needed: any published trial can
    be put in. docs/problem-file.md says every key of both.

    \b
    Examples:
      heterps-compile predict problem.json --plan plan.json
      heterps-compile predict problem.json --plan plan.json --cluster my-pool.toml
      heterps-compile predict problem.json --plan plan.json --json | jq .parts
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a backspace
    from heterps_compile.problem_file.workload_file import workload_form  # noqa: PLC0415 - only when it runs

    subject = GRAPH if workload_form(problem) == "pipedream" else PROBLEM
    with options.asked_of(ctx, PREDICT, subject) as asked:
        plan_path, cluster, as_json = asked["plan"], asked["cluster"], asked["as_json"]
        mode = asked["mode"] if subject == GRAPH else None
        from heterps_compile.prediction.predict_step import predict_step  # noqa: PLC0415 - pydantic
        from heterps_compile.prediction.prediction_words import prediction_document, print_prediction  # noqa: PLC0415
        from heterps_compile.problem_file.given_plan import read_given_plan  # noqa: PLC0415 - pydantic

        reading = asked["reading"] if subject == GRAPH else None
        read = read_given(problem, subject, cluster, mode, reading=reading)
        plan = read_given_plan(plan_path, read)
        prediction = predict_step(read, plan)
        with result_stream() as stream, printing("the prediction"):
            if as_json:
                stream.write(prediction_document(read, plan, prediction) + "\n")
            else:
                from heterps_compile.console import make_console  # noqa: PLC0415

                print_prediction(make_console(stream, terminal_width(stream)), read, plan, prediction)
            stream.flush()
