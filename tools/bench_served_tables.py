"""Tables on parameter servers: what is planned for tables of 10 GB to 10 TB, and small ones run and measured.

    .venv/bin/python tools/bench_served_tables.py [--only plans|gradients|runs] [--models ctrdnn ...] [--steps 60]
        [--realtime]

1. Plans: the models of the HeterPS paper with tables of so many bytes in all, on torch's device ``meta``, for training
   on the pool ``heterps-paper``: tables and servers of the plan, its price, what is proven, how long it took.
2. Gradients: what the tables of those runs alone take, forward and backward, with gradients as large as they are, with
   sparse ones, and of rows that were pulled.
3. Runs: the same models, small, whose layers are measured on this machine just before, planned with their tables
   served and held, trained by one process and one or two servers. What a server takes is the pool's, as for every
   plan; nothing is fitted. Runs take turns, the middle of three is shown; throughput, predicted over measured. All
   processes have one thread. An ablation stands below: the same runs against what a plan says that lets all traffic
   with servers overlap with computation. `--realtime` (root only) lets profiles and runs go before all else.
"""

import argparse
import dataclasses
import io
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from clock_ranks import first
from truth.scores import HEAD, Row, table_row

import heterps_compile
from heterps_compile.api import read_model
from heterps_compile.cluster.devices import Cluster, ParameterServer
from heterps_compile.cluster.load import load_cluster
from heterps_compile.cost.profile_file import to_json
from heterps_compile.errors import InfeasibleError
from heterps_compile.examples import EXAMPLES
from heterps_compile.plan.plan import Plan
from heterps_compile.profiling.profile_model import Settings, profile_model
from heterps_compile.runtime.allocator import keep_freed_memory
from heterps_compile.runtime.launch.run_api import launch, make_options
from heterps_compile.units import format_bytes, format_money, format_percent

SIZES = (1e10, 1e11, 1e12, 1e13)
BATCH = 4096
TABLES: dict[str, Callable[[float], dict[str, int]]] = {
    "ctrdnn": lambda size: {"rows": round(size / (26 * 16 * 4))},
    "matchnet": lambda size: {"users": round(size / (32 * 4)), "items": 20_000},
    "2emb": lambda size: {"rows": round(size / (64 * 4))},
    "nce": lambda size: {"rows": round(size / (2 * 64 * 4))},
}
"""Sizes of each model whose tables take so many bytes."""

ROWS = 20_000
CLOSED = 1e-9  # a gap that rounding makes


@dataclass(frozen=True, slots=True)
class Case:
    """A model to be run: its name, what it is called, its sizes, and where its ids come from."""

    model: str
    shown: str
    sizes: dict[str, int]
    data: str

    @property
    def batch(self) -> int:
        """Return the samples of a step."""
        return self.sizes["batch"]


def clicks(fields: int, width: int, batch: int) -> Case:
    """Return a CTRDNN of so many tables."""
    sizes = {"fields": fields, "width": width, "batch": batch, "rows": ROWS}
    return Case("ctrdnn", f"CTRDNN {fields} x {width}, {batch}", sizes, f"random:sparse<{ROWS}")


CASES = (
    *(clicks(4, 16, 1024), clicks(8, 32, 2048), clicks(26, 16, 512)),
    *(clicks(16, 64, 512), clicks(26, 32, 2048), clicks(26, 64, 1024)),
    Case(
        "matchnet",
        "MATCHNET, 1024",
        {"users": ROWS, "items": ROWS, "batch": 1024},
        "random:user_ids<20000,item_ids<20000",
    ),
    Case("2emb", "2EMB, 512", {"rows": ROWS, "batch": 512}, "random:query_ids<20000,title_ids<20000"),
    Case("nce", "NCE, 512", {"rows": ROWS, "batch": 512}, "random:context_ids<20000,candidates<20000"),
)
RUNS = {"held": 0, "served by 1": 1, "served by 2": 2}
"""Servers of a run."""
REPEATS = 3
_TRAINING_FILE = """
import torch

def loss(outputs, batch):
    return torch.nn.functional.binary_cross_entropy_with_logits(outputs, torch.zeros_like(outputs))

def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.01)
"""


def print_plans() -> None:
    """Print a plan of every model at every size."""
    print(f"{'model':<9} {'tables':>9}  served  servers  {'USD/h':>8}  {'USD/million':>11}  gap      took")
    for name, sizes in TABLES.items():
        for size in SIZES:
            with torch.device("meta"):
                model, inputs = EXAMPLES[name](batch=BATCH, **sizes(size))
            began = time.perf_counter()
            try:
                asked: dict[str, Any] = {"mode": "training", "tables": "cheapest", "reading": "steady-state"}
                plan = heterps_compile.compile(model, inputs, **asked, verify=False).plan
            except InfeasibleError as error:
                print(f"{name:<9} {format_bytes(size):>9}  no plan: {error}", flush=True)
                continue
            took_s = time.perf_counter() - began
            served, servers = (0, 0) if plan.tables is None else (len(plan.tables.names), plan.tables.servers)
            price, each = format_money(plan.price_per_hour), format_money(plan.price_per_million_samples)
            gap = format_percent(100 * plan.gap if plan.gap > CLOSED else 0.0)
            row = f"{name:<9} {format_bytes(size):>9}  {served:>6}  {servers:>7,}  {price:>8}  {each:>11}  {gap:<7}"
            print(f"{row}  {took_s:.1f} s", flush=True)


def print_gradients() -> None:
    """Print what look-ups take by the gradients that they make; the median of passes, by the thread's clock."""
    print("| tables x width, batch | gradients | forward | backward | backward that adds to it |")
    print("|---|---|---|---|---|")
    for case in (case for case in CASES if case.model == "ctrdnn"):
        fields, width = case.sizes["fields"], case.sizes["width"]
        ids = [torch.randint(0, ROWS, (case.batch, fields)) for _ in range(8)]
        for of in ("whole tables", "sparse", "pulled rows"):
            tables = [torch.nn.Embedding(ROWS, width, sparse=of == "sparse") for _ in range(fields)]
            passes = [_table_pass(tables, given, is_pulled=of == "pulled rows") for given in ids * 5][len(ids) :]
            shown = " | ".join(f"{1e3 * median(times):.2f} ms" for times in zip(*passes, strict=True))
            print(f"| {case.shown} | {of} | {shown} |", flush=True)


def _table_pass(tables: list[torch.nn.Embedding], ids: torch.Tensor, *, is_pulled: bool) -> tuple[float, float, float]:
    """Return the seconds of a forward, of its backward, and of one more backward that adds to the gradients."""
    weights: list[torch.Tensor] = [table.weight for table in tables]
    columns = list(ids.T)
    if is_pulled:
        found = [torch.unique(column, return_inverse=True) for column in columns]
        weights = [weight.detach()[rows].requires_grad_() for weight, (rows, _) in zip(weights, found, strict=True)]
        columns = [places for _, places in found]
    for table in tables:
        table.weight.grad = None
    took_s = []
    for _ in range(2):
        began_s = time.thread_time()
        made = [
            torch.nn.functional.embedding(column, weight, sparse=table.sparse)
            for column, weight, table in zip(columns, weights, tables, strict=True)
        ]
        took_s.append(time.thread_time() - began_s)
        gradients = [torch.ones_like(each) for each in made]
        began_s = time.thread_time()
        torch.autograd.backward(made, gradients)
        took_s.append(time.thread_time() - began_s)
    return took_s[0], took_s[1], took_s[3]


def planned(case: Case, folder: Path, *, realtime: bool) -> dict[str, Plan]:
    """Return plans of a small model on one core of this machine, by layers measured here; write their folders."""
    model, inputs = EXAMPLES[case.model](**case.sizes)
    measured = folder / "profile.json"
    settings = Settings(
        batches=(case.batch,), mode="training", with_replicas=False, with_link=False, with_crowding=False
    )
    with first(realtime):
        profile = profile_model(lambda _: read_model(model, inputs), settings)
    measured.write_text(to_json(profile), "utf-8")
    core = dataclasses.replace(load_cluster("local").device_types[0], max_units=1)
    server = ParameterServer(0.04, "not told", "", core.network_bytes_per_s)
    pool = Cluster("this machine", "", "USD", (core,), parameter_server=server)
    asked: dict[str, Any] = {
        "mode": "training", "optimizer": "sgd", "cluster": pool, "profile": str(measured), "max_stages": 1
    }  # fmt: skip
    found = {}
    for tables in ("served", "held"):
        compiled = heterps_compile.compile(model, inputs, tables=tables, verify=False, **asked)
        compiled.save(folder / tables, force=True)  # of one size at a time
        found[tables] = compiled.plan
    return found


def step_s(case: Case, folder: Path, servers: int, steps: int, *, realtime: bool) -> float:
    """Run a training and return its median step, with what lies between steps left out."""
    options: dict[str, Any] = {"steps": steps, "threads": 1}
    if servers:
        options |= {"parameter_servers": servers, "server_optimizer": "sgd"}
    made = make_options(
        str(folder / ("served" if servers else "held")),
        train=str(folder / "train.py"),
        data=case.data,
        given=[*options, "train", "data"],
        **options,
    )
    with first(realtime):
        _, report = launch(made, io.StringIO())
    summary = report.summary()
    if summary is None:
        raise SystemExit("the run measured no step")
    return summary.step_s


def print_runs(models: Collection[str], steps: int, *, realtime: bool) -> None:
    """Hold what plans say of trainings with tables served and held against runs of them."""
    print("| model, batch | held: predicted | measured | served: predicted | measured, 1 server | 2 servers |")
    print("|---|---|---|---|---|---|")
    rows: dict[str, list[Row]] = {name: [] for name in RUNS}
    overlapped: dict[str, list[Row]] = {name: [] for name in list(RUNS)[1:]}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(_TRAINING_FILE, "utf-8")
        for case in (case for case in CASES if case.model in models):
            plans = planned(case, folder, realtime=realtime)
            took: dict[str, list[float]] = {name: [] for name in RUNS}
            for _ in range(REPEATS):
                for run, servers in RUNS.items():
                    took[run].append(step_s(case, folder, servers, steps, realtime=realtime))
            what = case.shown
            promised = {place: case.batch / plan.schedule.step_s for place, plan in plans.items()}
            for run, servers in RUNS.items():
                predicted = promised["served" if servers else "held"]
                rows[run].append(Row(what, case.batch / median(took[run]), predicted))
            # a batch in the steady state, of one stage and one micro-batch, is the step without exposed pull and push
            in_steady_state = plans["served"].readings.steady_state.throughput_samples_per_s
            for run, found in overlapped.items():
                found.append(Row(what, rows[run][-1].measured, in_steady_state))
            held, one, two = (f"{rows[run][-1].measured:,.0f} ({rows[run][-1].error:+.1%})" for run in RUNS)
            print(
                f"| {what} | {promised['held']:,.0f} samples/s | {held} | {promised['served']:,.0f} | {one} | {two} |",
                flush=True,
            )
    print(f"\n{HEAD}")
    for run, found in rows.items():
        print(table_row(run, found))
    for run, found in overlapped.items():
        print(table_row(f"{run}, were all traffic overlapped", found))


def main() -> None:
    """Print what is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=("plans", "gradients", "runs"))
    parser.add_argument("--models", nargs="+", choices=tuple(TABLES), default=tuple(TABLES), help="to run")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--realtime", action="store_true", help="go before all else on the machine (root only)")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if asked.only in (None, "plans"):
        print_plans()
    if asked.only in (None, "gradients"):
        keep_freed_memory()
        print_gradients()
    if asked.only in (None, "runs"):
        print_runs(asked.models, asked.steps, realtime=asked.realtime)


if __name__ == "__main__":
    sys.exit(main())
