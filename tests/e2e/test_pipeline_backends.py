"""Pipelines whose stages are of different frameworks train as the model in one process does."""

from collections.abc import Sequence
from itertools import product

import pytest
import torch
from staged_training import Case, Folders, differences, train_staged, train_whole

TOLERANCE = 1e-6
Layout = tuple[tuple[str, ...], tuple[int, ...], str]
PAIRS = (("torch", "jax"), ("jax", "torch"), ("jax", "jax"))
WIDTHS = ((1, 1), (2, 1), (1, 2))
SCHEDULES = ("gpipe", "1f1b")
THREES = ((("torch", "jax", "torch"), (1, 2, 1), "1f1b"), (("jax", "torch", "jax"), (2, 1, 2), "gpipe"))

# batch norms over a few samples carry float32's rounding to everything
DTYPES = {"ctrdnn": torch.float32, "gpt2": torch.float32, "skip": torch.float32, "convnet": torch.float64}
NAMES = tuple(DTYPES)
DTYPES_OF_ALL = {**DTYPES, "dropping": torch.float64}

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:onnxscript"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
]


def layouts_of(name: str) -> tuple[Layout, ...]:
    """Return every pair with another width, and one of the threes: over the models, every pair has every width."""
    turn = NAMES.index(name)
    pairs = [(mix, WIDTHS[(place + turn) % 3], SCHEDULES[(place + turn // 2) % 2]) for place, mix in enumerate(PAIRS)]
    return (*pairs, THREES[turn % 2])


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    return Folders(tmp_path_factory.mktemp("folders"))


def cases_of(name: str, chosen: Sequence[Layout], folders: Folders) -> list[Case]:
    dtype = DTYPES_OF_ALL[name]
    return [
        Case(name, folders(name, len(mix), dtype, mix), widths, schedule, dtype=dtype)
        for mix, widths, schedule in chosen
    ]


def above(name: str, chosen: Sequence[Layout], folders: Folders) -> dict[str, float]:
    """Return the largest relative difference of losses, weights and buffers where it is above what is allowed."""
    cases = cases_of(name, chosen, folders)
    whole = train_whole(name, dtype=DTYPES[name])
    found = [max(differences(run, whole)) for run in train_staged(cases, timeout_s=400)]
    return {
        f"{'|'.join(mix)} {widths} {schedule}": difference
        for (mix, widths, schedule), difference in zip(chosen, found, strict=True)
        if not difference <= TOLERANCE
    }


@pytest.mark.slow  # processes of a run start cold
def test_a_mixed_pipeline_trains_as_one_process_does(folders: Folders) -> None:
    assert above("skip", [(("torch", "jax"), (2, 1), "1f1b")], folders) == {}


def test_the_layouts_of_all_models_pair_everything() -> None:
    pairs = {(mix, widths) for name in NAMES for mix, widths, _ in layouts_of(name) if len(mix) == 2}
    assert pairs == set(product(PAIRS, WIDTHS))
    assert {(mix, schedule) for name in NAMES for mix, _, schedule in layouts_of(name)} >= set(
        product(PAIRS, SCHEDULES)
    )
    assert (("jax", "torch"), (2, 1), "gpipe") in layouts_of("convnet")  # with running statistics
    assert {widths for name in NAMES for _, widths, _ in layouts_of(name)} == {*WIDTHS, *(three[1] for three in THREES)}


@pytest.mark.slow  # every model, backend, width and schedule
@pytest.mark.parametrize("name", NAMES)
def test_every_mix_and_width_trains_as_one_process_does(name: str, folders: Folders) -> None:
    assert above(name, layouts_of(name), folders) == {}


@pytest.mark.slow  # a full product of backends, widths and schedules
def test_masks_of_dropout_do_not_depend_on_replicas_and_schedules(folders: Folders) -> None:
    chosen = [
        (("torch", "jax"), widths, schedule) for widths, schedule in zip(WIDTHS, ("1f1b", "gpipe", "1f1b"), strict=True)
    ]
    first, *others = train_staged(cases_of("dropping", chosen, folders), timeout_s=400)
    assert [max(differences(run, first)) <= 1e-10 for run in others] == [True, True]
