"""Hold the rules of synchronisation against what they must come to: `python tools/bench_sync.py [--only RULE,...]`.

Prints a line for every number that a rule's definition gives, beside the one that our code gives, as Markdown, and
exits with 1 where they differ. `--runs` trains a click model and a small transformer under every rule besides, with
the replicas in this process, and prints loss, bytes and the time to a target loss; `--share 0.1` takes a tenth of the
steps, `--picture FILE.svg` draws it. `--processes` trains under the rules of `heterps-compile run`, in processes,
`--data` under those that know how data come: predictors of blocks, and batches that come again.
`--staleness` looks for the rate that stale gradients want; `--beside` holds `shadow` in processes against foreground,
`--link` predicted steps against those of hosts behind a throttled link, for which it makes network namespaces.
`--factors` times what `powersgd` takes a core beside what plans count of it.
`--realtime` lets `--beside` and `--link` go before all else on the machine.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from sync_beside import beside
from sync_data import rules_of_data
from sync_factors import factors
from sync_laws import LAWS, Line
from sync_link import link
from sync_picture import run_picture
from sync_processes import processes
from sync_runs import RULES, Ended, block_cycle, byte_lines, click_lines, run_table, train
from sync_staleness import staleness
from sync_tasks import tasks

MODES = ("--staleness", "--processes", "--data", "--beside", "--factors", "--link")
HEAD = ("| rule | what | expected | measured | holds | expected from |", "|---|---|---|---|---|---|")


def row(line: Line) -> str:
    holds = "yes" if line.holds else "**no**"
    return f"| {line.rule} | {line.what} | {line.expected} | {line.measured} | {holds} | {line.why} |"


def runs(share: float, picture: Path | None) -> Iterator[str | Line]:
    ended: dict[str, list[Ended]] = {}
    lines: list[Line] = []
    on_clicks, on_language = tasks(share)
    for task in (on_clicks, on_language):
        ended[task.name] = [train(task, rule) for rule in RULES]
        yield from ("", *run_table(task, ended[task.name]))
        lines += byte_lines(task, ended[task.name])
    yield ""
    yield from (*lines, *click_lines(on_clicks, ended["clicks"]))
    yield from block_cycle(share)
    if picture is not None:
        picture.write_text(run_picture(ended).svg, encoding="utf-8")


def of_mode(mode: str, share: float, realtime: bool) -> Iterator[str | Line]:
    match mode:
        case "--staleness":
            yield from staleness(tasks(share))
        case "--processes":
            yield from processes()
        case "--data":
            yield from rules_of_data()
        case "--beside":
            yield from beside(realtime=realtime)
        case "--factors":
            yield from factors()
        case _:
            yield from link(realtime=realtime)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(LAWS), help=f"laws of {', '.join(LAWS)}; none for none")
    parser.add_argument("--runs", action="store_true")
    for mode in MODES:
        parser.add_argument(mode, action="store_true")
    parser.add_argument("--realtime", action="store_true", help="go before all else on the machine (root only)")
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--picture", type=Path)
    given = parser.parse_args()
    names = [] if given.only == "none" else given.only.split(",")
    if unknown := [name for name in names if name not in LAWS]:
        parser.error(f"unknown law {unknown[0]!r}; known: {', '.join(LAWS)}")
    torch.set_num_threads(1)
    began_s, wrong, in_table = time.process_time(), 0, False
    laws = (line for name in names for line in LAWS[name]())
    trainings = runs(given.share, given.picture) if given.runs else ()
    asked = [mode for mode in MODES if getattr(given, mode.removeprefix("--"))]
    modes = (line for mode in asked for line in of_mode(mode, given.share, given.realtime))
    for line in chain(laws, trainings, modes):
        if isinstance(line, Line):
            if not in_table:
                print(*HEAD, sep="\n")
            print(row(line), flush=True)
            wrong += not line.holds
        else:
            print(line, flush=True)
        in_table = isinstance(line, Line)
    print(f"\n{wrong} differ; {time.process_time() - began_s:.0f} s of CPU.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
