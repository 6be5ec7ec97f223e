"""``heterps-compile advise MODEL.onnx``: how many GPUs, servers and samples a batch, by published lemmas.

Left out: the advice and the looks of it (``advice/``).
"""

from typing import Any

import click

from heterps_compile.fit_lines import terminal_width
from heterps_compile.plan.command_options import ADVISE, ONNX

from . import options
from .output import printing, quiet_libraries, result_stream


@click.command("advise")
@click.argument("model", metavar="MODEL.onnx")
@options.takes(ADVISE)
@click.pass_context
def advise(ctx: click.Context, /, model: str, **_: Any) -> None:
    """Advise on training MODEL.onnx with several GPUs: how many, how many parameter servers, which batch, the ceiling.

    By the lemmas of Zou et al. (arXiv 1708.02983), each with its formula and the numbers put in: speed-up
    G (1 + R) / (1 + G R), its inverse and its ceiling; parameter servers 2 S N_w / (B T_C); the batch by a sweep under
    memory. Beside each stands what the simulated step of a plan with as many replicas says. Times are estimated, or
    measured where a profile is given.

    \b
    Examples:
      heterps-compile advise model.onnx --gpu v100 --speed-up 8 --batch 256
      heterps-compile advise model.onnx --gpu a100 --speed-up 4 --optimizer sgd
      heterps-compile advise model.onnx --gpu t4 --cluster cloud-mix --speed-up 2
      heterps-compile advise model.onnx --gpu v100 --speed-up 8 --json | jq .gpus
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a backspace
    with (
        options.asked_of(ctx, ADVISE, ONNX) as asked,
        result_stream() as stream,
        quiet_libraries(verbose=False),
    ):
        from heterps_compile.advice.advice_words import advice_document, print_advice  # noqa: PLC0415 - rich
        from heterps_compile.advice.advise import advise as advised  # noqa: PLC0415 - onnx and numpy

        as_json = asked["as_json"]
        names = [option.name for option in ADVISE.options if option.name != "as_json"]
        found = advised(model, **asked.some(*names))
        with printing("the advice"):
            if as_json:
                stream.write(advice_document(found) + "\n")
            else:
                from heterps_compile.console import make_console  # noqa: PLC0415 - rich

                print_advice(make_console(stream, terminal_width(stream)), found)
            stream.flush()
