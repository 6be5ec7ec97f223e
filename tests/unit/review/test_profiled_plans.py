"""Plans that were made from measured times: checked and explained with the same times, with others, without any."""

import pytest
import torch
from torch import nn

import heterps_compile
from heterps_compile.api import read_model
from heterps_compile.bench.compare_methods import compare_methods
from heterps_compile.cost.profile_file import to_json
from heterps_compile.errors import StalePlanError
from heterps_compile.profiling.profile_model import Settings, profile_model
from heterps_compile.review.check import check_plan
from heterps_compile.review.explain import explain_layer
from heterps_compile.review.pose import pose_again
from heterps_compile.units import format_seconds

MODEL = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
EXAMPLE = (torch.zeros(4, 8),)
LOCAL = "local"


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    path = tmp_path_factory.mktemp("profile") / "profile.json"
    settings = Settings(repeats=2, least_s=0.0, with_replicas=False, with_link=False, with_crowding=False)
    measured = profile_model(
        lambda batch: read_model(MODEL, EXAMPLE, None, batch=batch, shapes={}, dynamic_shapes=None), settings
    )
    path.write_text(to_json(measured))
    return path


@pytest.fixture(scope="module")
def plan(profile):
    compiled = heterps_compile.compile(
        MODEL, EXAMPLE, cluster=LOCAL, method="exact", profile=profile, backend="torch", verify=False
    )
    return compiled.plan


def test_with_the_same_times_a_plan_is_not_stale(plan, profile):
    checked = check_plan(pose_again(MODEL, plan, EXAMPLE, cluster=LOCAL, profile=profile))
    assert (checked.stale, checked.passes, checked.value) == ((), True, plan.value)


def test_without_them_it_is(plan):
    assert check_plan(pose_again(MODEL, plan, EXAMPLE, cluster=LOCAL)).stale == ("profile",)


def test_a_layer_is_explained_by_its_measured_time(plan, profile):
    name = plan.stages[0].layers[0]
    explained = explain_layer(pose_again(MODEL, plan, EXAMPLE, cluster=LOCAL, profile=profile), name)
    plain = explain_layer(pose_again(MODEL, plan, EXAMPLE, cluster=LOCAL), name, allow_stale=True)
    assert explained.choices[0].compute_s != plain.choices[0].compute_s
    assert explained.times == f"'core' measured, {format_seconds(explained.choices[0].compute_s)}"
    assert not plain.times
    with pytest.raises(StalePlanError, match="profile"):
        explain_layer(pose_again(MODEL, plan, EXAMPLE, cluster=LOCAL), name)


def test_methods_are_compared_on_the_measured_times(profile):
    found, plain = (
        compare_methods(MODEL, EXAMPLE, cluster=LOCAL, objective="latency", methods=["greedy"], profile=given)
        for given in (profile, None)
    )
    assert found.results[0].value != plain.results[0].value


def test_a_plan_says_where_the_times_of_its_micro_batches_come_from(profile):
    trained = heterps_compile.compile(
        MODEL, EXAMPLE, cluster=LOCAL, method="exact", profile=profile, mode="training", verify=False
    ).plan
    said = [note for note in trained.notes if note.startswith("micro-batches on")]
    assert said == [
        "micro-batches on 'core': backward twice forward, in proportion to their samples, as one batch alone was "
        "measured (4); the part that does not shrink takes two (heterps-compile profile --batches N,N)"
    ]
