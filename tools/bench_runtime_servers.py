"""How fast parameter servers are: rows pulled per second, and a table larger than its memory beside one that fits.

    .venv/bin/python tools/bench_runtime_servers.py [--rows 2097152] [--steps 20] [--rounds 3]

1. Pulls: one worker, two servers, all in memory; distinct random rows of 16 floats, float32 and float16 on the wire.
2. Hot and cold: one worker trains an embedding of 26 fields and an MLP through one server, on ids drawn from Zipf's
   law and scattered over the table. The server has memory for all, then for a quarter of what the table takes with its
   optimiser state (Adagrad), the index counted; their steps alternate. "From disk" is a quarter as well, and the file's
   pages are thrown out of the operating system's memory after every request: as if the machine had none to spare.
   A step ends when the server has applied its push: overlap hides nothing. As many steps before fill the hot rows.
3. Pulls ahead: a worker trains an embedding of 26 fields and an MLP in micro-batches through one server; steps that ask
   for the rows of the next micro-batch while this one is computed alternate with steps that pull when they get there.

All processes have one thread. What is printed is the median round, or step.
"""

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

from heterps_compile.runtime.launch.run_store import folder_store
from heterps_compile.runtime.pipeline.recorder import Recorders
from heterps_compile.runtime.pipeline.world import join_world, leave_world, make_group
from heterps_compile.runtime.servers.client import Client
from heterps_compile.runtime.servers.optimizers import Adagrad
from heterps_compile.runtime.servers.row_prefetch import RowPrefetch
from heterps_compile.runtime.servers.served_table import serve_tables
from heterps_compile.runtime.servers.server import Server
from heterps_compile.runtime.servers.spec import ServerSpec, TableSpec, record_bytes
from heterps_compile.schedule.order import Action, Phase

WIDTH, FIELDS, BATCH = 16, 26, 4096
EXPONENTS = (1.05, 1.2)
MICRO_BATCHES, HIDDEN = 4, (64, 256, 1024)
_PAGEOUT = 21  # MADV_PAGEOUT (linux/mman.h), which Python's mmap does not name


def ranks(function: Callable[..., Any], world: int, *arguments: Any) -> Any:
    """Run a function on every rank of a world; give what rank 0 returned."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        results = context.SimpleQueue()
        processes = [
            context.Process(target=_rank, args=(function, rank, world, folder, results, arguments), daemon=True)
            for rank in range(world)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        if any(process.exitcode for process in processes):
            raise SystemExit("a process failed")
        return results.get()


def _rank(function: Callable[..., Any], rank: int, world: int, folder: str, results: Any, arguments: Any) -> None:
    torch.set_num_threads(1)
    join_world(folder_store(Path(folder)), rank, world)
    result = function(rank, *arguments)
    if rank == 0:
        results.put(result)
    make_group(range(world)).sum(torch.zeros(1)).wait()  # a rank that leaves is missed by those that still run
    leave_world()


def serve(spec: ServerSpec, rank: int, *, from_disk: bool = False) -> Server:
    from heterps_compile.runtime.servers import server as module  # noqa: PLC0415 - in the servers alone

    maps: list[Any] = []

    def throw_out(_step: int) -> None:
        for one in maps:
            one.madvise(_PAGEOUT)

    if from_disk:
        from heterps_compile.runtime.servers import shard  # noqa: PLC0415
        from heterps_compile.runtime.servers.tiered_cache import ColdFile  # noqa: PLC0415

        class Noted(ColdFile):
            def __init__(self, *args: Any) -> None:
                super().__init__(*args)
                maps.append(self._map)

        shard.ColdFile = Noted
    return module.serve_forever(spec, rank, heard=throw_out if from_disk else None)


# 1. pulls


def pull_rows(rank: int, spec: ServerSpec, rounds: int, rows_per_pull: int) -> float:
    """Return rows per second, of distinct random rows."""
    if rank in spec.ranks:
        serve(spec, rank)
        return 0.0
    client = Client(spec, rank)
    rng = np.random.default_rng(0)
    rows = spec.tables[0].rows
    pulls = [torch.from_numpy(rng.choice(rows, rows_per_pull, replace=False)) for _ in range(8)]
    rates = []
    for _ in range(rounds + 1):  # the first is warm-up
        began_s = time.perf_counter()
        for ids in pulls:
            with torch.no_grad():
                client.look_up(0, ids, lambda weights, positions, _ids: weights[positions])
                client.pull()
        rates.append(len(pulls) * rows_per_pull / (time.perf_counter() - began_s))
    client.close()
    return statistics.median(rates[1:])


# 2. hot and cold


def zipf_batches(rows: int, exponent: float, steps: int) -> Iterator[torch.Tensor]:
    """Yield batches of ids [BATCH, FIELDS]: rank r with a probability of r^-exponent, ranks scattered over the rows."""
    rng = np.random.default_rng(0)
    cumulated = np.cumsum(np.arange(1, rows + 1, dtype=np.float64) ** -exponent)
    for _ in range(steps):
        ranked = np.searchsorted(cumulated, rng.random(BATCH * FIELDS) * cumulated[-1])
        yield torch.from_numpy(ranked * 2_654_435_761 % rows).reshape(BATCH, FIELDS)  # odd: a permutation of 2^n rows


KINDS = ("memory", "quarter", "disk")


def train(rank: int, specs: tuple[ServerSpec, ...], steps: int, exponent: float, has_mlp: bool) -> dict[str, Any]:
    """Return seconds per step of every kind of server, and figures of the one with a quarter of the memory."""
    for kind, spec in zip(KINDS, specs, strict=True):
        if rank in spec.ranks:
            server = serve(spec, rank, from_disk=kind == "disk")
            figures = torch.tensor([server.figures()["memory_bytes"], server.figures()["cold_reads"]])
            make_group((0, rank)).start_send(figures, 0)
            return {}
    clients = [Client(spec, rank) for spec in specs]
    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(FIELDS * WIDTH, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adagrad(mlp.parameters(), 0.01)
    batches = list(zipf_batches(specs[0].tables[0].rows, exponent, 2 * steps))
    times: list[list[float]] = [[] for _ in KINDS]
    for step, ids in enumerate(batches):
        for client, mine in zip(clients, times, strict=True):
            began_s = time.perf_counter()
            train_step(client, step, ids, mlp if has_mlp else None, optimizer)
            mine.append(time.perf_counter() - began_s)
    for client in clients:
        client.close()
    figures = [torch.zeros(2, dtype=torch.int64) for _ in KINDS]
    for spec, one in zip(specs, figures, strict=True):
        make_group((0, *spec.ranks)).start_receive(one, spec.ranks[0]).wait()
    distinct = [len(np.unique(ids.numpy())) for ids in batches]
    return {
        "step_s": {kind: statistics.median(mine[steps:]) for kind, mine in zip(KINDS, times, strict=True)},
        "memory_bytes": int(figures[1][0]),
        "cold": int(figures[1][1]) / sum(distinct),
        "distinct": statistics.mean(distinct),
    }


def train_step(client: Client, step: int, ids: torch.Tensor, mlp: nn.Module | None, optimizer: Any) -> None:
    """Pull, run forward and backward, push, and wait until the server has applied it: nothing is hidden by overlap."""
    client.before_step(step)
    lookup = client.look_up(0, ids, lambda weights, positions, _ids: nn.functional.embedding(positions, weights))
    client.pull()
    rows = lookup.result.reshape(BATCH, -1)
    (rows if mlp is None else mlp(rows)).square().mean().backward()
    client.after_backward(step)
    if mlp is not None:
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        client.look_up(0, ids[:1, :1], lambda weights, _positions, _ids: weights)
        client.pull()


# 3. pulls ahead


class Clicks(nn.Module):
    """An embedding of all fields and an MLP, as a written stage looks."""

    inputs = ("ids",)

    def __init__(self, rows: int, hidden: int) -> None:
        super().__init__()
        self.emb = nn.Parameter(torch.zeros(1, 1).expand(rows, WIDTH))
        self.mlp = nn.Sequential(nn.Linear(FIELDS * WIDTH, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = nn.functional.embedding(ids, self.emb)
        made: torch.Tensor = self.mlp(rows.flatten(1))
        return made


class Ids:
    """The micro-batches of all steps."""

    def __init__(self, batches: list[torch.Tensor]) -> None:
        self._batches = batches

    def of_step(self, step: int) -> Callable[[int, Any], dict[str, torch.Tensor]]:
        parts = self._batches[step].chunk(MICRO_BATCHES)
        return lambda micro_batch, _names: {"ids": parts[micro_batch]}


def pull_ahead(rank: int, specs: tuple[ServerSpec, ...], steps: int, hidden: int) -> dict[str, Any]:
    """Return seconds per step without pulls ahead and with them, of a pull, and of a micro-batch computed."""
    for spec in specs:
        if rank in spec.ranks:
            serve(spec, rank)
            return {}
    rows = specs[0].tables[0].rows
    forwards = [Action(0, micro_batch, Phase.FORWARD) for micro_batch in range(MICRO_BATCHES)]
    reader = Ids(list(zipf_batches(rows, EXPONENTS[0], steps)))
    runs = []
    for place, spec in enumerate(specs):
        torch.manual_seed(0)
        waits = Waits()
        client = Client(spec, rank, recorder=waits)
        model = Clicks(rows, hidden)
        serve_tables(model, client)
        ahead = RowPrefetch(client, forwards, range(steps)).around(reader) if place else None
        runs.append((client, model, torch.optim.Adagrad(model.parameters(), 0.01), ahead, waits))
    times: list[list[float]] = [[] for _ in specs]
    for step in range(steps):
        for (client, model, optimizer, ahead, _), mine in zip(runs, times, strict=True):
            read = (reader if ahead is None else ahead).of_step(step)
            began_s = time.perf_counter()
            client.before_step(step)
            for micro_batch in range(MICRO_BATCHES):
                model(read(micro_batch, ("ids",))["ids"]).square().mean().backward()
            client.after_backward(step)
            if ahead is not None:
                ahead.after_backward(step)
            optimizer.step()
            optimizer.zero_grad()
            mine.append(time.perf_counter() - began_s)
    for client, *_ in runs:
        client.close()
    same = all(torch.equal(a, b) for a, b in zip(runs[0][1].parameters(), runs[1][1].parameters(), strict=True))
    ratios = [plain / early for plain, early in zip(*(mine[steps // 4 :] for mine in times), strict=True)]
    return {
        "step_s": [statistics.median(mine[steps // 4 :]) for mine in times],
        "waited_s": [statistics.median(waits.of_step[steps // 4 :]) for *_, waits in runs],
        "ratio": statistics.median(ratios),
        "same": same,
    }


class Waits(Recorders):
    """Adds up the time that steps waited for rows."""

    def __init__(self) -> None:
        super().__init__()
        self.of_step: list[float] = []

    def waited(self, step: int, kind: str, began_s: float, ended_s: float) -> None:
        self.of_step += [0.0] * (step + 1 - len(self.of_step))
        self.of_step[step] += ended_s - began_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1 << 21, help="of the table; a power of two")
    parser.add_argument("--steps", type=int, default=20, help="measured")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        weights = folder / "stage_0.safetensors"
        save_file({"emb": torch.randn(asked.rows, WIDTH)}, weights)
        table = TableSpec("emb", asked.rows, WIDTH, weights)
        optimizer = Adagrad(0.01)
        print(f"{os.cpu_count()} cores; {asked.rows:,} rows of {WIDTH} floats; median of {asked.rounds} rounds")
        for wire in ("float32", "float16"):
            spec = ServerSpec((0,), (1, 2), (table,), optimizer, wire=wire)
            rate = ranks(pull_rows, 3, spec, asked.rounds, 1 << 17)
            print(f"pulls from two servers, {wire} on the wire: {rate / 1e6:.2f} M rows/s")
        size = asked.rows * record_bytes(table, optimizer.states)
        print(
            f"\ntable with its state {size / 2**20:.0f} MiB; samples/s, batches of {BATCH} x {FIELDS} ids by Zipf's law"
        )
        print("                      in memory   a quarter          from disk")
        for exponent in EXPONENTS:
            for has_mlp in (True, False):
                quarter = {"memory_bytes": size // 4, "directory": folder}
                specs = tuple(
                    ServerSpec((0,), (1 + i,), (table,), optimizer, **(quarter if i else {})) for i in range(len(KINDS))
                )
                print_row(exponent, has_mlp, ranks(train, 1 + len(KINDS), specs, asked.steps, exponent, has_mlp))
        print(f"\npulls ahead; {MICRO_BATCHES} micro-batches of {BATCH // MICRO_BATCHES} x {FIELDS} ids, ms a step")
        for hidden in HIDDEN:
            specs = tuple(ServerSpec((0,), (1 + i,), (table,), optimizer) for i in range(2))
            found = ranks(pull_ahead, 3, specs, 2 * asked.steps, hidden)
            (plain_s, early_s), (waited_s, still_s) = found["step_s"], found["waited_s"]
            print(
                f"MLP of {hidden:4}: {plain_s * 1e3:6.1f}, of which {waited_s * 1e3:5.1f} waiting for rows; ahead "
                f"{early_s * 1e3:6.1f}, {still_s * 1e3:5.1f} waiting: {found['ratio']:.2f} x as fast, weights "
                f"{'equal' if found['same'] else 'NOT equal'}",
                flush=True,
            )


def print_row(exponent: float, has_mlp: bool, found: dict[str, Any]) -> None:
    rate = {kind: BATCH / step_s for kind, step_s in found["step_s"].items()}
    quarter, disk = rate["quarter"] / rate["memory"], rate["disk"] / rate["memory"]
    print(
        f"s={exponent:<4} {'with MLP' if has_mlp else 'rows alone':<12} {rate['memory']:>10,.0f}"
        f" {rate['quarter']:>10,.0f} ({quarter:.2f}) {rate['disk']:>10,.0f} ({disk:.2f})"
        f"   {found['distinct']:,.0f} rows a batch, {found['cold']:.0%} cold (the filling included),"
        f" {found['memory_bytes'] / 2**20:.0f} MiB in memory",
        flush=True,
    )


if __name__ == "__main__":
    main()
