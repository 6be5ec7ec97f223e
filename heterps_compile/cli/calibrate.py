"""``heterps-compile calibrate``: measure a unit of this machine once, as a pool that plans can be made for.

With ``--link`` it measures the network between hosts, one process on each.

Left out: measuring and fitting (``profiling/calibration/``, ``profiling/host_links.py``).
"""

import os
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from heterps_compile.errors import InputError
from heterps_compile.fit_lines import terminal_width
from heterps_compile.options import Asked
from heterps_compile.plan.calibrate_options import CALIBRATE, HERE, HOSTS

from . import options
from .output import ProgressLine, check_file_target, printing, quiet_libraries, result_stream


@click.command("calibrate")
@options.takes(CALIBRATE)
@click.pass_context
def calibrate(ctx: click.Context, /, **_: Any) -> None:
    """Measure a unit of this machine once, or the network between hosts, and write a pool that plans can be made for.

    Small networks of every kind of work are run at several sizes, some minutes in all. A start, an arithmetic and a
    memory rate are fitted for each kind; estimates of layers that nobody measured are made of these. The unit is free
    in the file until you write what it costs.

    With --link the same command runs once on each host, and rank 0 adds the measured links to a pool.

    \b
    Examples:
      heterps-compile calibrate
      heterps-compile calibrate --device cuda:0 --name a10 -o a10.toml
      heterps-compile model.onnx --cluster calibrated.toml
      srun --nodes 2 --ntasks-per-node 1 heterps-compile calibrate --link \\
          --cluster calibrated.toml -o linked.toml
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a backspace
    with options.asked_of(ctx, CALIBRATE, HOSTS if ctx.params["link"] else HERE) as asked:
        if asked["link"]:
            _calibrate_link(asked)
            return
        output, name = asked["output"], asked["name"]
        check_file_target(output)
        with (
            result_stream() as stream,
            quiet_libraries(verbose=False),
            closing(ProgressLine(sys.stderr, wanted=True)) as progress,
        ):
            from heterps_compile.console import make_console  # noqa: PLC0415 - rich
            from heterps_compile.packages import PYTORCH, need  # noqa: PLC0415 - as what follows
            from heterps_compile.plan.whole_file import check_writable, write_whole  # noqa: PLC0415 - pydantic

            need("calibrating", PYTORCH)
            check_writable(Path(output))
            from heterps_compile.profiling.calibration.calibrate import calibrate_unit  # noqa: PLC0415 - torch
            from heterps_compile.profiling.calibration.calibration_words import (  # noqa: PLC0415 - rich
                print_calibration,
            )
            from heterps_compile.profiling.calibration.pool_entry import check_name, pool_text  # noqa: PLC0415 - torch
            from heterps_compile.profiling.profile_model import Settings  # noqa: PLC0415 - as above

            check_name(name)
            settings = Settings(
                devices=(asked["device"],),
                least_s=0.2,
                with_replicas=not asked["no_replicas"],
                with_link=not asked["no_link"],
                **asked.some("backend", "threads", "repeats", "clock"),
            )
            found = calibrate_unit(settings, on_progress=progress.show)
            write_whole(Path(output), pool_text(found, name))
            progress.close()
            with printing(f"the rates (the file {output!r} is written all the same)"):
                print_calibration(make_console(stream, terminal_width(stream)), found)
                stream.write(f"\nwritten to {output}\n")
                stream.flush()


def _calibrate_link(asked: Asked) -> None:
    """Measure the network between the hosts of a job.

    Raises:
        HeterpsError: if this process is no rank, or a rank refuses or does not come.
    """
    from heterps_compile.console import make_console  # noqa: PLC0415 - rich
    from heterps_compile.packages import PYTORCH, need  # noqa: PLC0415 - as what follows
    from heterps_compile.runtime.launch.membership import is_rank, membership_of  # noqa: PLC0415 - pydantic

    cluster, output, device_type, wait_s = (asked[name] for name in ("cluster", "output", "device_type", "wait"))
    need("calibrating", PYTORCH)
    check_file_target(output)
    if not is_rank(os.environ):
        from heterps_compile.runtime.engines.launch_lines import line_of_hosts  # noqa: PLC0415 - only for the message

        own = [] if device_type is None else ["--device-type", device_type]
        line = line_of_hosts(["calibrate", "--link", "--cluster", cluster, *own, "-o", output])
        raise InputError(
            f"RANK, WORLD_SIZE, MASTER_ADDR or MASTER_PORT is missing; expected one process on each of several hosts. "
            f"Fix: on each of them, with its NODE_RANK from 0 on, and MASTER_ADDR the address of the first: {line}"
        )
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # its connections report each failure with a stack
    with result_stream() as stream, quiet_libraries(verbose=False):
        from heterps_compile.profiling.host_link_words import print_host_links  # noqa: PLC0415 - torch
        from heterps_compile.profiling.host_links import LinkRequest, measure_host_links  # noqa: PLC0415 - torch

        request = LinkRequest(cluster, device_type, float(wait_s), Path(output))
        host, found = measure_host_links(
            membership_of(os.environ),
            request,
            on_met=lambda hosts: print(f"measuring the network of {hosts} …", file=sys.stderr, flush=True),
        )
        if found is None:
            print(f"rank 0 has written {output!r} on the host {host!r}", file=sys.stderr)
            return
        with printing(f"the links (the file {output!r} is written all the same)"):
            print_host_links(make_console(stream, terminal_width(stream)), found)
            stream.write(f"\nwritten to {output}\n")
            stream.flush()
