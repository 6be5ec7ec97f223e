"""Hunt for models that go wrong without a word: `python tools/hunt.py --modules 2000 --seed 0`.

Draws random modules out of a grammar (`tools/hunting/`), compiles each for every backend, and compares with the module
itself: two calls in a row, gradients of all parameters and floating inputs in training mode, what is loaded from the
folder in a fresh process, and scores in evaluation mode. A module ends as equal, as refused by name, or as a finding:
another result, a traceback, a refusal that comes after compiling, a message that speaks of a bug. Every finding is
printed with a module made as small as shows it; `--module JSON` runs that one. Exit code 1 where there is a finding.

Module `i` of a hunt has the seed `--seed` + i: `--modules 1 --seed 17` draws that one again.
"""

import argparse
import logging
import os
import random
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from hunting.cheap import compile_cheaply, look_for_ops_once
from hunting.description import Description, from_json
from hunting.draw import draw_module
from hunting.fresh import run_fresh
from hunting.judge import Outcome, Plain, general, judge, judge_fresh, judge_whole, observe_plain
from hunting.shrink import shrink

BACKENDS = ("torch", "onnxruntime", "jax")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modules", type=int, default=200, help="how many are drawn")
    parser.add_argument("--seed", default="0", help="of the first; `random` for a fresh one")
    parser.add_argument("--backend", action="append", choices=BACKENDS, help="one or several; all where left out")
    parser.add_argument("--shrink", action=argparse.BooleanOptionalAction, default=True, help="make findings small")
    parser.add_argument("--fresh", action=argparse.BooleanOptionalAction, default=True, help="load in fresh processes")
    parser.add_argument("--module", help="the JSON of one module, as a finding prints it")
    parser.add_argument("--batch", type=int, default=50, help="modules to a fresh process")
    options = parser.parse_args()
    quiet()
    with tempfile.TemporaryDirectory() as cache:
        compile_cheaply(os.environ, cache)
        look_for_ops_once()
        return _hunt(options)


def _hunt(options: argparse.Namespace) -> int:
    backends = tuple(options.backend or BACKENDS)
    if options.module is not None:
        return try_one(from_json(options.module), backends)
    first = random.randrange(10**6) if options.seed == "random" else int(options.seed)  # noqa: S311 - no secret
    hunt = Hunt(backends, with_fresh=options.fresh, with_shrink=options.shrink)
    for start in range(first, first + options.modules, options.batch):
        hunt.try_batch(range(start, min(start + options.batch, first + options.modules)))
        hunt.tell_progress()
    print(hunt.summary(first))
    return 1 if hunt.findings else 0


def quiet() -> None:
    """Keep libraries from warning of what is tried on purpose."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)


def try_one(description: Description, backends: Sequence[str]) -> int:
    """Judge one module on every backend, in a fresh process too."""
    print(description.listing())
    outcomes = [judge_whole(description, backend, True) for backend in backends]
    for outcome in outcomes:
        print(f"{outcome.backend}: {outcome.kind} {outcome.reason}\n{outcome.trace}".rstrip())
    return 1 if any(outcome.is_finding for outcome in outcomes) else 0


class Hunt:
    """Counts outcomes and prints findings as they come."""

    def __init__(self, backends: Sequence[str], *, with_fresh: bool, with_shrink: bool) -> None:
        self.backends, self.with_fresh, self.with_shrink = backends, with_fresh, with_shrink
        self.kinds: Counter[tuple[str, str]] = Counter()
        self.reasons: Counter[tuple[str, str]] = Counter()
        self.findings: Counter[tuple[str, str, str]] = Counter()
        self.drawn = 0
        self._began = time.perf_counter()

    def try_batch(self, seeds: Sequence[int]) -> None:
        """Draw and judge modules; what they leave in folders is tried in one fresh process at the end."""
        with tempfile.TemporaryDirectory() as name:
            waiting: list[tuple[Description, str, Plain, Path, Outcome]] = []
            for seed in seeds:
                description = draw_module(seed)
                plain = observe_plain(description)
                if plain is None:  # drawing has seen it run
                    raise RuntimeError(f"the module of seed {seed} runs one time and not the next")
                self.drawn += 1
                for backend in self.backends:
                    folder = Path(name) / f"{seed}-{backend}"
                    folder.mkdir()
                    found = judge(description, backend, plain, folder if self.with_fresh else None)
                    if found.kind == "waiting":
                        waiting.append((description, backend, plain, folder, found))
                    else:
                        self.count(description, found)
            saw = run_fresh([entry[3] for entry in waiting]) if waiting else []
            for (description, backend, plain, _, found), answer in zip(waiting, saw, strict=True):
                self.count(description, judge_fresh(description, backend, plain, answer, found))

    def count(self, description: Description, outcome: Outcome) -> None:
        """Count an outcome; print a finding."""
        self.kinds[outcome.backend, "finding" if outcome.is_finding else outcome.kind] += 1
        if outcome.kind == "refused":
            self.reasons[outcome.backend, general(outcome.reason)] += 1
        if outcome.is_finding:
            self.findings[outcome.likeness] += 1
            self._print(description, outcome)

    def _print(self, description: Description, outcome: Outcome) -> None:
        print(
            f"\nFINDING, seed {description.seed}, {outcome.backend}: {outcome.kind}\n    {outcome.reason}", flush=True
        )
        if self.findings[outcome.likeness] > 1 and outcome.trace:
            return  # the same traceback again
        small = self._shrunk(description, outcome) if self.with_shrink else description
        print(outcome.trace.rstrip())
        print("\n".join(f"    {line}" for line in small.listing().splitlines()))
        print(f"    python tools/hunt.py --backend {outcome.backend} --module '{small.to_json()}'", flush=True)

    def _shrunk(self, description: Description, outcome: Outcome) -> Description:
        in_fresh = "fresh" in outcome.kind

        def shows(smaller: Description) -> bool:
            try:
                return judge_whole(smaller, outcome.backend, in_fresh).likeness == outcome.likeness
            except Exception:  # noqa: BLE001 - a variant that cannot be built shows nothing
                return False

        return shrink(description, shows, tries=12 if in_fresh else 40 if outcome.backend == "torch" else 25)

    def tell_progress(self) -> None:
        counts = ", ".join(f"{b} {k} {n}" for (b, k), n in sorted(self.kinds.items()))
        print(f"[{time.perf_counter() - self._began:.0f} s] {self.drawn} modules: {counts}", flush=True)

    def summary(self, first: int) -> str:
        lines = [f"\n{self.drawn} modules, seeds from {first}, {time.perf_counter() - self._began:.0f} s"]
        for backend in self.backends:
            counts = [f"{self.kinds[backend, kind]} {kind}" for kind in ("equal", "refused", "finding")]
            lines.append(f"{backend}: {', '.join(counts)}")
            reasons = [(n, text) for (of, text), n in self.reasons.most_common() if of == backend]
            lines += [f"  {n:5d}  {text}" for n, text in reasons]
        lines += [f"FINDING {n} x {' | '.join(likeness)}" for likeness, n in self.findings.most_common()]
        return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
