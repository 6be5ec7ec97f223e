"""Ranks of a world meet and get stages by device type; ranks are threads over a store in memory."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from heterps_compile.errors import InputError, RunError
from heterps_compile.runtime.launch import env_rank
from heterps_compile.runtime.launch.env_rank import assigned, join, named_after
from heterps_compile.runtime.launch.membership import Membership


@pytest.mark.parametrize(
    ("wanted", "reported", "ranks"),
    [
        (["a", "b", "b"], ["", "", ""], [0, 1, 2]),
        (["a", "b", "b"], ["b", "b", "a"], [1, 2, 0]),
        (["a", "b", "b"], ["b", "", "b"], [1, 0, 2]),
        (["a", "a", "b"], ["", "b", ""], [0, 2, 1]),
    ],
)
def test_stages_go_to_processes_of_their_type(wanted, reported, ranks):
    assert assigned(wanted, reported) == ranks


@pytest.mark.parametrize(
    ("reported", "told"), [(["b", "b", "b"], r"3 of 3.*'b'.*2"), (["a", "a", ""], r"2 of 3.*'a'.*1")]
)
def test_more_processes_of_a_type_than_the_run_has_are_refused(reported, told):
    with pytest.raises(RunError, match=told):
        assigned(["a", "b", "b"], reported)


@pytest.mark.parametrize(
    ("gpu", "known", "found"),
    [
        ("Tesla V100-SXM2-16GB", ["cpu-core", "v100"], "v100"),
        ("NVIDIA A100-SXM4-40GB", ["a100-40gb", "a100-80gb"], "a100-40gb"),
        ("NVIDIA H100 80GB HBM3", ["nvidia-a100", "cpu-core"], None),
        ("NVIDIA A100", ["a100", "spot-a100"], None),
    ],
)
def test_a_gpu_has_the_type_that_it_is_named_after(gpu, known, found):
    assert named_after(gpu, known) == found


@pytest.fixture
def world(monkeypatch):
    """Three ranks that meet in one store; return what each gets, or its error."""
    store = dist.HashStore()
    monkeypatch.setattr(env_rank, "_meeting", lambda *_: store)
    monkeypatch.setattr(env_rank, "check_world_size", lambda *_: None)
    monkeypatch.setattr(env_rank, "planned_devices", lambda _: [("a", "cpu"), ("b", "gpu"), ("b", "gpu")])

    def meet(types, prepared=None):
        def one(rank):
            member = Membership(rank, 3, rank, "127.0.0.1", 29500)
            own = SimpleNamespace() if prepared is None or rank != prepared[0] else prepared[1]
            try:
                return join(member, own, types[rank], "0")
            except (RunError, InputError) as error:
                return error

        with ThreadPoolExecutor(3) as pool:
            return list(pool.map(one, range(3)))

    meet.store = store
    return meet


def test_ranks_learn_their_place_and_that_of_the_store(world, capsys):
    found = world(["b", "a", None])
    assert "1 of 3" in capsys.readouterr().err
    assert [joined.member.rank for joined in found] == [1, 0, 2]
    assert len({joined.connect.args for joined in found}) == 1
    assert [joined.host for joined in found] == [1, 1, 1]


def test_ranks_that_start_again_do_not_take_the_words_of_their_earlier_start(world):
    """The store of torchrun's agent outlives its ranks, with all that they wrote into it."""
    first = world(["b", "a", "b"])
    again = world(["a", "b", "b"])
    assert [joined.member.rank for joined in first] == [1, 0, 2]
    assert [joined.member.rank for joined in again] == [0, 1, 2]
    assert {joined.connect.args for joined in first}.isdisjoint({joined.connect.args for joined in again})


def test_a_store_of_an_agent_is_hosted_by_no_rank(world, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    assert [joined.host for joined in world([None, None, None])] == [None] * 3


def test_what_one_rank_refuses_all_refuse(world):
    found = world([None, None, None], (2, InputError("a batch of 7")))
    assert [str(error) for error in found] == ["rank 2: a batch of 7", "rank 2: a batch of 7", "a batch of 7"]
    assert [type(error) for error in found] == [RunError, RunError, InputError]


def test_what_stands_in_the_store_is_checked(world):
    store = dist.PrefixStore("heterps/0", world.store)
    store.set("ask/0", '{"token": "x"}')
    with pytest.raises(RunError, match="ask/0"):
        env_rank._read(env_rank._Meeting(store, Membership(0, 1, 0, "127.0.0.1", 1), 1.0), "ask/0", env_rank.Asked)
