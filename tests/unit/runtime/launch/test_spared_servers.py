"""Servers whose end a run survives: who decides, what is told, and who ends all the same."""

import importlib
import os
import time

import pytest
from engine_jobs import make_job
from torch.distributed import HashStore
from wording import names

from heterps_compile.cli.run import run
from heterps_compile.errors import InputError, RunError
from heterps_compile.runtime.engines.contract import refuse_idle_copies
from heterps_compile.runtime.engines.find import ENGINES
from heterps_compile.runtime.launch.faults import STARTING, Fault, Place, Progress
from heterps_compile.runtime.launch.heartbeats import done_key
from heterps_compile.runtime.launch.progress import SERVING, ProgressRecorder
from heterps_compile.runtime.launch.run_options import RunOptions
from heterps_compile.runtime.launch.server_options import ServerOptions
from heterps_compile.runtime.launch.server_rank import copies_of, copy_notes
from heterps_compile.runtime.launch.spared_servers import EXIT_SPARED, SparedServers, give_up
from heterps_compile.runtime.launch.watch import FAULT_KEY, Supervision, Watch
from heterps_compile.runtime.servers.copies import deal_copies

PLACES = [Place(0, (0,), 0), Place(1, (1,), 0), Place(2, (), 0), Place(3, (), 1), Place(4, (), 2)]
COPIES = deal_copies((2, 3, 4), 2, "aaa")  # 2 and 3, 3 and 4, 4 and 2


def killed(rank: int, doing: str = SERVING) -> Fault:
    return Fault(PLACES[rank], Progress(doing, 7), "was killed")


def test_a_server_may_go_while_others_have_all_it_holds():
    store = HashStore()
    decider, others = (SparedServers(store, COPIES, PLACES) for _ in range(2))
    assert decider.spare(killed(3)) == (
        "parameter server 1 (rank 3) was killed; it was in step 7 (serving tables); parameter servers 0 and 2 have its "
        "rows too: no step is lost, and the run goes on with one copy of them fewer until it is started again"
    )
    assert others.lost == {3}
    assert store.check([done_key(3)])  # nobody waits for it at the end
    assert decider.spare(killed(3)) is None
    assert decider.spare(killed(4)) is None  # it has what the first one had
    assert str(decider.blamed(killed(4))).startswith(
        "parameter server 2 (rank 4) was killed, after parameter server 1, which had a copy of its rows;"
    )


@pytest.mark.parametrize("fault", [killed(0), killed(1), killed(3, STARTING)])
def test_what_is_no_server_or_does_not_serve_yet_ends_the_run(fault):
    assert SparedServers(HashStore(), COPIES, PLACES).spare(fault) is None
    assert SparedServers(HashStore(), None, PLACES).spare(killed(3)) is None


def watcher(store: HashStore, rank: int, told: list[str], *, decides: bool = False) -> Watch:
    progress = ProgressRecorder()
    progress.enter(SERVING)
    monitored = range(1, len(PLACES)) if decides else ()
    watch = Watch(store, PLACES, rank, progress, Supervision(hang_after_s=60.0, monitored=monitored))
    watch.know_copies(COPIES, decides=decides, tell=told.append)
    return watch


class LeftError(Exception):
    """Stands for the end of the process."""


@pytest.fixture
def leaves(monkeypatch):
    def leave(code):
        raise LeftError(code)

    monkeypatch.setattr(os, "_exit", leave)


def test_where_there_is_no_launcher_one_rank_decides_and_the_server_ends_that_was_only_cut_off(leaves):
    store, told = HashStore(), list[str]()
    deciding, cut_off, other = (watcher(store, rank, told, decides=not rank) for rank in (0, 2, 3))
    for watch in (deciding, cut_off, other):
        watch.look(time.monotonic())
    assert told == []
    give_up(store, 2, by=1)
    for watch in (other, cut_off, deciding, other, deciding):
        watch.look(time.monotonic())
    assert [line.partition(" (")[0] for line in told] == ["parameter server 0"]
    with pytest.raises(LeftError, match=str(EXIT_SPARED)):
        cut_off.look(time.monotonic())
    assert not store.check([FAULT_KEY])


def test_a_server_that_fails_by_itself_ends_alone_or_with_the_run_where_nobody_has_its_rows(leaves, capsys):
    store = HashStore()
    with pytest.raises(LeftError, match=str(EXIT_SPARED)):
        watcher(store, 2, []).fail(RunError("disk full"))
    assert names(capsys.readouterr().err, "parameter server 0", "rank 2", "disk full")
    assert not store.check([FAULT_KEY])
    SparedServers(store, COPIES, PLACES).spare(killed(2))
    with pytest.raises(LeftError, match="1"):
        watcher(store, 3, []).fail(RunError("disk full"))
    assert store.check([FAULT_KEY])


def test_more_copies_than_servers_are_refused():
    with pytest.raises(InputError, match=r"\b3\b.*\b2\b.*--parameter-servers 3\b"):
        ServerOptions(count=2, replicas=3)


@pytest.mark.parametrize("name", sorted(ENGINES))
def test_engines_that_end_all_with_one_refuse_copies(name):
    module, _, attribute = ENGINES[name].partition(":")
    engine = getattr(importlib.import_module(module), attribute)()
    alone, options = (
        RunOptions(directory="m", train="t.py", data="x", servers=ServerOptions(count=2, replicas=count))
        for count in (1, 2)
    )
    refuse_idle_copies(engine, alone)
    if engine.capabilities.keeps_others:
        refuse_idle_copies(engine, options)
    else:
        with pytest.raises(RunError, match=name):
            refuse_idle_copies(engine, options)


def test_under_torchrun_copies_are_refused(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    words = ["m.heterps", "--train", "t.py", "--data", "x", "--parameter-servers", "2", "--server-replicas", "2"]
    with pytest.raises(InputError, match="--server-replicas"):
        run.main(words, standalone_mode=False)


def test_the_head_of_a_run_says_what_copies_cost():
    job = make_job(train="t.py", servers=3)
    options = ServerOptions(count=3, replicas=2)
    assert copies_of(job.prepared, ServerOptions(count=3)) is None
    machines = ["a", "a", "a", "b", "b", "c"]  # of ranks 0 to 5
    assert copies_of(job.prepared, options, machines) == deal_copies(range(3, 6), 2, "bbc")
    assert copy_notes(options, machines) == [
        "  every row of the tables is on 2 of 3 parameter servers, on 2 machines: one of them may die without a lost "
        "step, for 2 times the memory and 2 times the pushes"
    ]
    assert "all on one machine" in copy_notes(options)[0]
