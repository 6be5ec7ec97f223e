"""Five training steps of real models as pipelines with unequal replicas are five steps of the model in one piece."""

from collections.abc import Sequence
from itertools import product

import pytest
import torch
from staged_training import Case, Folders, differences, stage_count, train_staged, train_whole

TOLERANCE = 1e-6
WIDTHS = ((2, 1), (1, 2), (3, 1), (1, 2, 1), (2, 2))
SCHEDULES = ("gpipe", "1f1b", "interleaved-1f1b", "zero-bubble")
ALL = tuple(product(WIDTHS, SCHEDULES))

# ResNet-50 in float64: batch norms over a few samples carry a disturbance of 1e-16 to 1e-9 in five steps, and one of
# float32's rounding to everything; tools/bench_runtime_equality.py shows it.
DTYPES = {"ctrdnn": torch.float32, "gpt2": torch.float32, "skip": torch.float32, "resnet50-thin": torch.float64}


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    return Folders(tmp_path_factory.mktemp("folders"))


def worst_of(name: str, chosen: Sequence[tuple[tuple[int, ...], str]], folders: Folders) -> dict[str, float]:
    """Return the largest relative difference of losses, weights and buffers for every choice of widths and schedule."""
    dtype = DTYPES[name]
    cases = [Case(name, folders(name, stage_count(w, s), dtype), w, s, dtype=dtype) for w, s in chosen]
    whole = train_whole(name, dtype=dtype)
    runs = train_staged(cases, timeout_s=400)
    return {
        f"{case.widths} {case.schedule}": max(differences(run, whole)) for case, run in zip(cases, runs, strict=True)
    }


def above(differences_: dict[str, float]) -> dict[str, float]:
    return {case: difference for case, difference in differences_.items() if not difference <= TOLERANCE}


@pytest.mark.parametrize("name", [*(pytest.param(name, marks=pytest.mark.slow) for name in ("ctrdnn", "gpt2")), "skip"])
def test_every_width_trains_as_one_process_does(name, folders):
    turns = [(widths, SCHEDULES[place % len(SCHEDULES)]) for place, widths in enumerate(WIDTHS)]
    assert above(worst_of(name, turns, folders)) == {}


@pytest.mark.slow  # a ResNet, three times
def test_running_statistics_are_those_of_one_process(folders):
    chosen = [((2, 1), "interleaved-1f1b"), ((1, 2, 1), "1f1b")]
    assert above(worst_of("resnet50-thin", chosen, folders)) == {}


@pytest.mark.slow  # processes of a run start cold
def test_stages_that_recompute_end_with_the_very_bits_of_those_that_keep_their_activations(folders):
    """Convolutions with batch norms and dropout, whose statistics replicas share; a tied embedding in two stages."""
    turns = [("dropping", (1, 1), "1f1b"), ("dropping", (2, 1), "gpipe"), ("gpt2", (1, 2), "1f1b")]
    cases = [
        Case(name, folders(name, 2), widths, schedule, recompute=recompute)
        for name, widths, schedule in turns
        for recompute in (False, True)
    ]
    runs = train_staged(cases)
    for (losses, state), (again, state_again) in zip(runs[::2], runs[1::2], strict=True):
        assert again == losses
        assert state.keys() == state_again.keys()
        assert all(torch.equal(tensor, state_again[name]) for name, tensor in state.items())


@pytest.mark.slow  # a full product of models, widths and schedules
@pytest.mark.parametrize("name", list(DTYPES))
def test_every_width_under_every_schedule_trains_as_one_process_does(name, folders):
    assert above(worst_of(name, ALL, folders)) == {}


@pytest.mark.slow  # several processes train
def test_speeds_and_stages_of_one_process_change_nothing(folders):
    cases = [
        Case("skip", folders("skip", 2), (3, 1), "1f1b", speeds=((3.0, 1.0, 1.0), (1.0,))),
        Case("skip", folders("skip", 2), (1,), "interleaved-1f1b"),
        Case("gpt2", folders("gpt2", 2), (2,), "interleaved-1f1b"),
    ]
    wholes = {name: train_whole(name) for name in ("skip", "gpt2")}
    found = [max(differences(run, wholes[case.name])) for case, run in zip(cases, train_staged(cases), strict=True)]
    assert [difference <= TOLERANCE for difference in found] == [True, True, True]
