"""Sums over two ranks through shared memory and over gloo: `python tools/bench_runtime_sums.py [--rounds N]`.

Both run in turns in the same processes, one thread each. Printed are the time of a sum and its processor time, the
median over the rounds and the best, and how many times as long it takes over gloo.
"""

import argparse
import statistics
from functools import partial

import torch
from bench_runtime_peer import POSITIONS, WARM_UP, Took, timed_round
from ranks import run_ranks
from torch import Tensor

from heterps_compile.runtime.pipeline.rank_group import GlooGroup, RankGroup
from heterps_compile.runtime.pipeline.world import make_group, world

SUMMED_BYTES = (1 << 12, 1 << 16, 1 << 22)


def sum_once(group: RankGroup, tensor: Tensor, _number: int) -> None:
    group.sum(tensor).wait()


def measure_sums(rank: int, rounds: int) -> dict[int, dict[str, list[Took]]]:
    """Return the seconds and processor seconds of a sum through memory and over gloo, for every size in bytes."""
    ranks = range(POSITIONS)
    groups: dict[str, RankGroup] = {
        "memory": make_group(ranks),
        "gloo": GlooGroup(world().next_store(ranks), ranks, rank),
    }
    made: dict[int, dict[str, list[Took]]] = {}
    for size_bytes in SUMMED_BYTES:
        tensor = torch.ones(size_bytes // 4)
        took: dict[str, list[Took]] = {name: [] for name in groups}
        for number in range(WARM_UP + rounds):
            for name in (*groups,) if number % 2 else (*groups,)[::-1]:
                took[name].append(timed_round(partial(sum_once, groups[name], tensor), number))
        made[size_bytes] = {name: of_group[WARM_UP:] for name, of_group in took.items()}
    return made


def show_sums(rounds: int) -> None:
    """Print how many times as long a sum over gloo takes as one through memory."""
    for size_bytes, groups in run_ranks(measure_sums, POSITIONS, rounds, timeout_s=1200)[0].items():
        shown = []
        for name, figure in (("median", statistics.median), ("best", min)):
            for what, place in (("", 0), (" of processor", 1)):
                memory_s, gloo_s = (figure(took[place] for took in groups[way]) for way in ("memory", "gloo"))
                shown.append(f"{name}{what} {1e6 * memory_s:.0f} us, gloo {1e6 * gloo_s:.0f} {gloo_s / memory_s:.2f}x")
        print(f"sum of {size_bytes // 1024} KiB: {'; '.join(shown)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    show_sums(parser.parse_args().rounds)
