"""Hold what is predicted against what other people measured: `python tools/bench_truth.py [--only sailor,...]`.

The measurements lie in `../shared/data` beside the repository, or where `--data DIR` says; each set's README says what
it is. A set that is not there is left out, with the reason. Trials go through problem files and plans, as
`heterps-compile predict` reads them (`tools/truth/` converts), and print as Markdown tables. Where a form is fitted, it
is fitted on one half of the configurations, by the hash of what they are, and judged on what it has not seen. Forms
were frozen before they were scored.

`--this-machine` measures here instead, with nothing else to do at best: layers, stages and runs of ten models
against what calibrations (`--pool FILE`; made every few cases where none is given) and profiles predict; an hour, with
`--rounds 3` half of that.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent))

from truth import cm_dare, one_server, pipedream, sailor, vtrain
from truth.scores import HEAD, by_group, kendall, mean_of_groups, regrets, table_row

ROOT = Path(__file__).parents[1]


def print_sailor(folder: Path) -> Iterator[str]:
    yield "Sailor, measured plans on Alps Clariden (GH200); nothing fitted."
    yield ""
    yield HEAD
    for what, rows in sailor.rows(folder).items():
        yield table_row(what, rows)
    line, nearer = sailor.sizes_between(folder)
    yield table_row("a profiled size between two: by the line", line)
    yield table_row("a profiled size between two: by the nearer", nearer)
    yield ""
    yield "Memory that is not predicted, GB of the fullest GPU; but for two times what the largest layer keeps:"
    yield ""
    yield "| samples of a micro-batch | plans | all, least to most | but for the largest layer |"
    yield "|---|---|---|---|"
    left = sailor.memory_left(folder)
    for samples in sorted({each.samples for each in left}):
        found = [each for each in left if each.samples == samples]
        spans = [
            f"{min(sizes) / 1e9:.2f}-{max(sizes) / 1e9:.2f}"
            for sizes in ([each.left_bytes for each in found], [each.beside_bytes for each in found])
        ]
        yield f"| {samples} | {len(found)} | {spans[0]} | {spans[1]} |"


def print_vtrain(folder: Path) -> Iterator[str]:
    found, factors = vtrain.rows(folder)
    yield (
        "vTrain, GPT on A100; factors fitted on the first row's trials alone, those of 4 GPUs from 2 apart: "
        + ", ".join(factors)
        + "."
    )
    yield ""
    yield HEAD
    for what, rows in found.items():
        yield table_row(what, rows)
    yield ""
    yield "Plans of one model, batch and count of GPUs against one another (tau of groups of three and more):"
    yield ""
    yield "| trials | groups | tau, mean | measured time of the plan predicted best over the best: mean | worst |"
    yield "|---|---|---|---|---|"
    for what, rows in found.items():
        worse = regrets(rows)
        tau = mean_of_groups(rows, kendall)
        yield f"| {what} | {len(by_group(rows))} | {tau:.2f} | {sum(worse) / len(worse):.3f} | {max(worse):.2f} |"


def print_cm_dare(folder: Path) -> Iterator[str]:
    yield "CM-DARE, conv nets; seconds of a step."
    yield ""
    yield HEAD
    for gpu in cm_dare.GPUS:
        yield table_row(f"one {gpu}, each net from the others", cm_dare.one_gpu(folder, gpu))
    yield table_row("P100 from K80 and data sheets", cm_dare.other_gpu(folder))
    for what, rows in one_server.workers(folder).items():
        yield table_row(f"{what} from 1-4", rows)


def print_pipedream(folder: Path) -> Iterator[str]:
    yield "PipeDream's graphs at 10 Gbit/s, batches of one worker each; time of a batch by its formula."
    yield ""
    yield "| graph | workers | its plan | our plan | ours / its | predicted | our replicas | its search | ours |"
    yield "|" + "---|" * 9
    for workers in (4, 16):
        for row in pipedream.compare(folder, workers, 10e9 / 8):
            yield (
                f"| {row.graph} | {workers} | {1e3 * row.their_s:.2f} ms | {1e3 * row.our_s:.2f} ms | "
                f"{row.our_s / row.their_s:.4f} | {1e3 * row.predicted_s:.2f} ms | {row.widths} | "
                f"{row.their_search_s:.3f} s | {row.our_search_s:.3f} s |"
            )


def print_coverage(data: Path) -> Iterator[str]:
    from truth import coverage  # noqa: PLC0415 - it needs torch

    found = coverage.clusters(data)
    yield "Every cluster left out, learned from the others. Nine of ten of its runs should be at most this much later."
    yield ""
    yield "| left out | runs | others of its kind | computing, sending x | nine of ten at most later by | inside |"
    yield "|---|---|---|---|---|---|"
    held = list(coverage.held_out(found))
    for of in held:
        says, known = of.correction, "yes" if of.is_known else "no"
        yield (
            f"| {of.name} | {len(of.later)} | {known} | {says.factor:.2f}, {says.of_sending:.2f} | "
            f"{says.late:.0%} | {of.inside:.0%} |"
        )
    inside = sum(of.inside * len(of.later) for of in held) / sum(len(of.later) for of in held)
    late = median(of.correction.late for of in held for _ in of.later)
    yield f"| all | {sum(len(of.later) for of in held)} | | | {late:.0%} in the median | {inside:.0%} |"
    yield ""
    wide = coverage.unknown(list(found.values()))
    yield f"Of data sheets on a cluster of which nothing was learned, over all clusters: {wide:.0%}."


SETS: dict[str, tuple[str, Callable[[Path], Iterator[str]]]] = {
    "sailor": ("sailor", print_sailor),
    "vtrain": ("vtrain", print_vtrain),
    "pipedream": ("pipedream", print_pipedream),
    "cm-dare": ("cm-dare", print_cm_dare),
    "coverage": ("", print_coverage),
}


def measure_here(parser: argparse.ArgumentParser, asked: argparse.Namespace) -> int:
    import warnings  # noqa: PLC0415 - the sets need none of these

    import torch  # noqa: PLC0415
    from truth import this_machine  # noqa: PLC0415

    known = tuple(dict.fromkeys(case.model for case in this_machine.CASES))
    models = tuple(asked.models.split(",")) if asked.models else known
    if unknown := [name for name in models if name not in known]:
        parser.error(f"no model is called {unknown[0]!r}; there are {', '.join(known)}")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    began = time.perf_counter()
    print("## this machine\n", flush=True)
    for text in this_machine.lines(this_machine.Asked(models, asked.pool, asked.steps, asked.repeats, asked.rounds)):
        print(text, flush=True)
    print(f"\n{time.perf_counter() - began:.1f} s")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data", help="folder of the measurements")
    parser.add_argument("--only", default=",".join(SETS), help="sets, of " + ", ".join(SETS))
    parser.add_argument("--this-machine", action="store_true", help="measure here, in place of the sets")
    parser.add_argument("--pool", type=Path, help="with --this-machine: what heterps-compile calibrate wrote here")
    parser.add_argument("--models", help="with --this-machine: of its ten models, commas between")
    parser.add_argument("--steps", type=int, default=10, help="with --this-machine: of every run")
    parser.add_argument("--repeats", type=int, default=8, help="with --this-machine: of every time in a profile")
    parser.add_argument("--rounds", type=int, default=9, help="with --this-machine: of a profile and a run, by turns")
    asked = parser.parse_args()
    if asked.this_machine:
        return measure_here(parser, asked)
    for name in asked.only.split(","):
        if name not in SETS:
            parser.error(f"no set is called {name!r}; there are {', '.join(SETS)}")
        folder, lines = asked.data / SETS[name][0], SETS[name][1]
        print(f"## {name}\n")
        if not folder.is_dir():
            print(f"left out: {folder} is not there (--data DIR names the folder that holds it)\n")
            continue
        began = time.perf_counter()
        for text in lines(folder):
            print(text)
        print(f"\n{time.perf_counter() - began:.1f} s\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
