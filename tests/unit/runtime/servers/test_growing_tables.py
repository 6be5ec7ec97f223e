"""Tables that grow: which rows there are after which steps, the same on any number of servers."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from direct_servers import DirectServers, make_spec
from safetensors.torch import load_file

from heterps_compile.errors import RunError, UnknownNameError
from heterps_compile.runtime.launch.server_options import ServerOptions
from heterps_compile.runtime.launch.server_rank import growing
from heterps_compile.runtime.servers.client import Client
from heterps_compile.runtime.servers.growing_shard import Initial
from heterps_compile.runtime.servers.optimizers import Adagrad
from heterps_compile.runtime.servers.saved_counts import SavedCounts
from heterps_compile.runtime.servers.saved_tables import export_tables
from heterps_compile.runtime.servers.server import Server
from heterps_compile.runtime.servers.spec import Growth, ServerSpec, TableSpec

TABLE = torch.randn(6, 4, generator=torch.Generator().manual_seed(3))
FAR = [-(2**63), -7, 6, 5_000_000_000, 2**63 - 1]
"""Ids that are no rows of it."""


def spec_in(folder: Path, growth: Growth | None, servers: int = 2, **more) -> ServerSpec:
    spec = make_spec(folder, {"emb": TABLE}, servers=servers, optimizer=Adagrad(0.5), **more)
    return replace(spec, tables=tuple(replace(table, growth=growth) for table in spec.tables))


class Worker:
    """A worker of servers in this process, which pushes a gradient of ones for the ids of a step."""

    def __init__(self, spec: ServerSpec) -> None:
        self.direct = DirectServers(spec)
        self.client = Client(spec, 0, link=self.direct)
        self.step = spec.first_step

    def look_up(self, ids: list[int]) -> torch.Tensor:
        self.client.before_step(self.step)
        lookup = self.client.look_up(0, torch.tensor(ids), lambda pulled, places, _: pulled[places])
        self.client.pull()
        return lookup.result

    def train(self, *steps: list[int]) -> "Worker":
        for ids in steps:
            self.look_up(ids).sum().backward()
            self.client.after_backward(self.step)
            self.step += 1
        return self

    def ids(self) -> list[int]:
        shards = [server.shards[0] for server in self.direct.servers]
        found = [records for shard in shards for _, records in shard.records()]
        return sorted(int(np.ascontiguousarray(r[:, -8:]).view(np.int64)[i, 0]) for r in found for i in range(len(r)))


STEPS = ([0, 3, 3, 5], [1, 3], [0, 5], [2, 4])


def test_rows_of_the_compiled_table_are_what_they_are_without_growth(tmp_path):
    grown = Worker(spec_in(tmp_path, Growth())).train(*STEPS)
    fixed = Worker(spec_in(tmp_path, None)).train(*STEPS)
    every = list(range(len(TABLE)))
    assert torch.equal(grown.look_up(every), fixed.look_up(every))
    assert grown.ids() == every


@pytest.mark.parametrize("servers", [1, 3])
def test_any_id_has_the_same_row_on_any_number_of_servers(tmp_path, servers):
    steps = (FAR, [FAR[2], 1], FAR[1:4])
    expected = Worker(spec_in(tmp_path, Growth()))
    first = expected.look_up(FAR).detach()
    assert expected.ids() == []  # a look-up makes no row
    found = Worker(spec_in(tmp_path, Growth(), servers))
    assert torch.equal(found.look_up(FAR), first)
    assert torch.equal(found.train(*steps).look_up(FAR), expected.train(*steps).look_up(FAR))
    assert found.ids() == sorted([*FAR, 1])
    assert not torch.equal(Worker(spec_in(tmp_path, Growth(seed=1))).look_up(FAR), first)


def test_new_rows_are_drawn_like_the_compiled_ones():
    drawn = Initial(np.empty((0, 8), np.float32), 0, 1, 0.25, 2.0, seed=0).rows(np.arange(4000))
    assert abs(float(drawn.mean()) - 0.25) < 0.05
    assert abs(float(drawn.std()) - 2.0) < 0.05
    assert len(np.unique(drawn)) > 31_000


def test_a_row_is_trained_once_its_id_was_pushed_often_enough(tmp_path):
    worker = Worker(spec_in(tmp_path, Growth(admit_after=3)))
    first = worker.look_up([70]).detach()
    for _ in range(2):
        worker.train([70])
        assert torch.equal(worker.look_up([70]), first)
    torch.testing.assert_close(worker.train([70]).look_up([70]), first - 0.5)  # Adagrad's first step


def test_rows_are_evicted_by_age_and_by_frequency_at_their_times(tmp_path):
    by_age = Worker(spec_in(tmp_path, Growth(unseen_steps=2, every=2)))
    seen = [by_age.train(ids).ids() for ids in ([9], [8], [8], [7], [7], [7])]
    assert seen == [[9], [8, 9], [8, 9], [7, 8], [7, 8], [7]]
    by_score = Worker(spec_in(tmp_path, Growth(least_shows=0.6, decay=0.5, every=2)))
    seen = [by_score.train(ids).ids() for ids in ([9, 8], [9], [7], [9])]
    assert seen == [[8, 9], [9], [7, 9], [9]]  # 8: 0.5; 9: (2 / 2 + 1) / 2; 7: 0.5
    assert torch.equal(by_score.look_up([8]), Worker(spec_in(tmp_path, Growth())).look_up([8]))  # it begins anew


def test_a_checkpoint_goes_on_with_other_servers_and_tells_the_rows(tmp_path):
    growth = Growth(admit_after=2, unseen_steps=3, least_shows=0.2, decay=0.5, every=2)
    steps = (FAR, [FAR[1], 1], [FAR[1], FAR[4]], [2, 1], FAR[:3], [1], FAR)
    whole = Worker(spec_in(tmp_path, growth)).train(*steps)
    first = Worker(spec_in(tmp_path, growth)).train(*steps[:3])
    first.client.save(tmp_path / "saved")
    (told,) = json.loads((tmp_path / "saved" / "servers.json").read_text())["tables"]
    rows = len(first.ids())
    assert told["grown"] == {"rows": rows, "new": 6, "evicted": 6 - rows, "waiting": 4}
    counted = []
    first.client.on_counts = lambda step, counts: counted.append((step, counts))
    for _ in range(2):
        first.client.close()  # counts once where nothing was pushed since
    assert counted == [(3, [SavedCounts(3, rows, 6, 6 - rows, 4)])]
    resumed = Worker(spec_in(tmp_path, growth, 3, resume=tmp_path / "saved", first_step=3)).train(*steps[3:])
    assert resumed.ids() == whole.ids()
    assert torch.equal(resumed.look_up([*FAR, 1, 2]), whole.look_up([*FAR, 1, 2]))


def test_export_has_ids_beside_rows(tmp_path):
    worker = Worker(spec_in(tmp_path, Growth())).train([*FAR, 2])
    worker.client.save(tmp_path / "saved")
    export_tables(tmp_path / "saved", tmp_path / "tables.safetensors")
    found = load_file(tmp_path / "tables.safetensors")
    assert found["emb.ids"].tolist() == sorted([*FAR, 2])
    assert torch.equal(found["emb"], worker.look_up(found["emb.ids"].tolist()))


def test_what_grew_and_what_did_not_are_refused_in_each_others_place(tmp_path):
    Worker(spec_in(tmp_path, Growth())).train([9]).client.save(tmp_path / "grown")
    with pytest.raises(RunError, match=r"\b1\b"):
        Server(spec_in(tmp_path, None, resume=tmp_path / "grown", first_step=1), 0)
    Worker(spec_in(tmp_path, None)).train([1]).client.save(tmp_path / "fixed")
    with pytest.raises(RunError, match=r"'emb'.*checkpoint"):
        Server(spec_in(tmp_path, Growth(), resume=tmp_path / "fixed", first_step=1), 0)
    spec = spec_in(tmp_path, Growth())
    with pytest.raises(RunError, match=r"'emb'.*memory"):
        replace(spec, memory_bytes=1 << 20)


def test_tables_that_grow_are_named_by_patterns():
    of_run = ServerOptions(count=1, grow_tables=("user.*",), admit_after=3)
    tables = tuple(TableSpec(name, 2, 1, Path("w")) for name in ("user.0", "user.1", "ad"))
    assert [table.growth and table.growth.admit_after for table in growing(tables, of_run, seed=0)] == [3, 3, None]
    with pytest.raises(UnknownNameError, match="'users'"):
        growing(tables, replace(of_run, grow_tables=("users",)), seed=0)
