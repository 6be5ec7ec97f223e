from dataclasses import replace

import numpy as np
import pytest
from drafts import DRAFT
from profiles import CPU, device, layer, point
from sketch import sketch

from heterps_compile.cluster.devices import Cluster
from heterps_compile.cluster.load import load_cluster
from heterps_compile.cost.layer_cost import layer_costs
from heterps_compile.cost.layer_key import layer_keys
from heterps_compile.cost.layer_times import CALIBRATED, ESTIMATED, MEASURED, LayerTimes, layer_times
from heterps_compile.cost.measured import Measurements, assign_profiles
from heterps_compile.cost.pose import pose_problem
from heterps_compile.cost.profile import Crowding, DeviceProfile, Fitted
from heterps_compile.cost.roofline import TRAINING_FACTOR, layer_phases
from heterps_compile.cost.served_tables import served_costs, tables_of
from heterps_compile.errors import InputError, UnknownNameError
from heterps_compile.ir.layers import LayerGraph
from heterps_compile.passes.group_layers import group_nodes
from heterps_compile.plan.request import Request

LAYERS: LayerGraph = group_nodes(DRAFT.graph)
COSTS = layer_costs(LAYERS)
KEYS = layer_keys(LAYERS)
POOL: Cluster = DRAFT.cluster
FIRST = POOL.device_types[0].name


def profile_of(*places: int, training: bool = False, times_s: tuple[float, float] = (2.0, 3.0)) -> DeviceProfile:
    """Return a profile of some of the model's layers, each two seconds at half its batch and three at all of it."""
    half = max(1, LAYERS.graph.batch // 2)
    found = []
    for place in places:
        of_layer, cost = LAYERS.layers[place], COSTS[place]
        points = [
            replace(
                point(batch, time_s, 10 * time_s if training else None), flops=cost.flops, moved_bytes=cost.moved_bytes
            )
            for batch, time_s in zip((half, LAYERS.graph.batch), times_s, strict=True)
        ]
        made = layer("a", *points, kind=str(of_layer.kind))
        found.append(replace(made, keys=(KEYS[place],), dtype=LAYERS.dtype(place), operations=cost.operations))
    return device(*found)


def pose(profile: DeviceProfile, *, training: bool = False):
    measurements = Measurements({FIRST: profile}, "")
    times = layer_times(LAYERS, COSTS, POOL, measurements, training=training)
    return pose_problem(LAYERS, COSTS, times, Request()), times


def test_a_measured_layer_takes_the_measured_time():
    problem, times = pose(profile_of(0))
    assert problem.compute_s[0, 0] == 3.0
    assert times.sources[0][0] == MEASURED


def test_training_takes_the_measured_backward_not_the_factor_3():
    problem, _ = pose(profile_of(0, training=True), training=True)
    assert problem.compute_s[0, 0] == 3.0 + 30.0


def test_a_profile_of_inference_lends_training_its_forward():
    problem, times = pose(profile_of(0), training=True)
    assert problem.compute_s[0, 0] == TRAINING_FACTOR * 3.0
    assert any("backward is taken to be twice forward" in note for note in times.notes())


def test_a_layer_that_was_not_measured_is_calibrated_by_those_of_its_kind():
    problem, times = pose(profile_of(0))
    kinds = [str(of_layer.kind) for of_layer in LAYERS.layers]
    place = next(i for i in range(1, len(kinds)) if KEYS[i] != KEYS[0])
    first = POOL.device_types[0]
    ratio = 3.0 / layer_phases(COSTS[0], first, LAYERS.dtype(0), training=False).whole_s
    estimate_s = layer_phases(COSTS[place], first, LAYERS.dtype(place), training=False).whole_s
    assert times.sources[place][0] == CALIBRATED
    assert problem.compute_s[place, 0] == pytest.approx(ratio * estimate_s)


def test_a_measured_backward_of_one_table_is_not_that_of_another_of_any_size():
    """The profile's table has a backward of thirty times its forward; the model's has a gradient of its own size."""
    rows, first = 100_000, POOL.device_types[0]
    graph = sketch(f"""
        in ids 64x2
        par table {rows}x16
        par w 32x8
        embedding rows : ids table -> h 64x32
        gemm product : h w -> y 64x8 flops=32768
        out y
    """)
    layers = group_nodes(graph)
    costs, found = layer_costs(layers), device(layer("a", point(64, 2e-3, 60e-3), kind="embedding"))
    times = layer_times(layers, costs, POOL, Measurements({FIRST: found}, ""), training=True)
    phases, array_s = times.phases(0, 0), rows * 16 * 4 / (first.memory_bytes_per_s * first.efficiency)
    assert times.sources[0][0] == CALIBRATED
    assert phases.forward_s > 2 * layer_phases(costs[0], first, "float32", training=True).forward_s
    assert phases.backward_s == pytest.approx(2 * phases.forward_s + array_s)
    assert phases.accumulate_s == pytest.approx(2 * phases.forward_s + 4 * array_s)


def test_a_type_without_a_profile_keeps_the_roofline():
    problem, times = pose(profile_of(0))
    plain = pose_problem(LAYERS, COSTS, layer_times(LAYERS, COSTS, POOL, training=False), Request())
    assert {row[1] for row in times.sources} == {ESTIMATED}
    np.testing.assert_array_equal(problem.compute_s[:, 1], plain.compute_s[:, 1])


def test_a_plan_is_told_how_many_layers_are_measured():
    _, times = pose(profile_of(0))
    measured = sum(key == KEYS[0] for key in KEYS)
    note = times.notes()[0]
    assert note.startswith(f"times of layers on {FIRST!r}: {measured} measured, {len(KEYS) - measured} calibrated")


def test_a_certain_fraction_replaces_the_pools_and_an_uncertain_one_does_not():
    certain = replace(profile_of(0), compute_parallel=Fitted(0.5, 0.01, (1, 2)), data_parallel=Fitted(0.4, 0.9, (1, 2)))
    problem, _ = pose(certain)
    assert problem.compute_parallel[0] == 0.5
    assert problem.data_parallel[0] == POOL.device_types[0].data_parallel


def test_a_link_is_that_of_this_machine_alone():
    local = load_cluster("local")
    here = Measurements({"core": CPU}, "").correct(local).device_types[0]
    assert (here.network_bytes_per_s, here.network_latency_s) == (2e9, 3e-5)
    there = Measurements({FIRST: CPU}, "").correct(POOL).device_types[0]
    assert there.network_bytes_per_s == POOL.device_types[0].network_bytes_per_s


def test_a_profile_is_for_the_type_that_is_named_or_the_only_one_of_its_kind():
    local = load_cluster("local")
    assert list(assign_profiles(local, [("", CPU)]).devices) == ["core"]
    assert list(assign_profiles(local, [("core", CPU)]).devices) == ["core"]
    with pytest.raises(UnknownNameError, match="v100"):
        assign_profiles(local, [("v100", CPU)])


def test_what_is_not_to_be_told_is_refused():
    local = load_cluster("local")
    (core,) = local.device_types
    two = replace(local, device_types=(core, replace(core, name="other")))
    with pytest.raises(InputError, match=r"\b2\b"):
        assign_profiles(two, [("", CPU)])
    with pytest.raises(InputError, match="'core'"):
        assign_profiles(local, [("", CPU), ("core", CPU)])
    with pytest.raises(InputError, match="'local'"):
        assign_profiles(local, [("", replace(CPU, kind="gpu"))])


def test_other_times_have_another_hash():
    local = load_cluster("local")
    one, same = (assign_profiles(local, [("", CPU)]) for _ in range(2))
    other = assign_profiles(local, [("", replace(CPU, layers=CPU.layers[:1]))])
    assert one.sha256 == same.sha256 != other.sha256


def with_alpha(value: float, error: float) -> DeviceProfile:
    """Return a profile of the type and, with an alpha, of the first layer."""
    whole = replace(profile_of(0), compute_parallel=Fitted(0.9, 0.02, (1, 2)))
    own = replace(whole.layers[0], compute_parallel=Fitted(value, error, (1, 2)))
    return replace(whole, layers=(own, *whole.layers[1:]))


def test_a_layer_has_its_own_fraction_where_it_differs_by_more_than_its_error():
    problem, times = pose(with_alpha(0.3, 0.1))
    alike = [key == KEYS[0] for key in KEYS]
    assert problem.layer_compute_parallel is not None
    assert problem.layer_compute_parallel[:, 0].tolist() == [0.3 if own else 0.9 for own in alike]
    assert problem.layer_compute_parallel[:, 1].tolist() == [POOL.device_types[1].compute_parallel] * len(KEYS)
    assert problem.layer_data_parallel is None
    note = f"the alpha of computation on {FIRST!r}: {sum(alike)} of {len(KEYS)} layers have their own"
    assert any(told.startswith(note) for told in times.notes())


def test_a_layer_whose_fraction_is_no_surer_than_it_differs_takes_the_types_and_is_named():
    problem, times = pose(with_alpha(0.8, 0.1))
    assert problem.layer_compute_parallel is None
    (note,) = (told for told in times.notes() if told.startswith("the alpha"))
    assert f": 0 of {len(KEYS)} layers have their own; " in note
    assert f"take the type's 0.9, from which theirs differs by no more than its error ({LAYERS.layers[0].name}" in note


def test_fractions_of_layers_are_part_of_a_profiles_identity_and_none_of_them_changes_nothing():
    local = load_cluster("local")
    plain, told = profile_of(0), with_alpha(0.3, 0.1)
    without = replace(told, layers=plain.layers)
    hashes = [assign_profiles(local, [("core", each)]).sha256 for each in (told, without, with_alpha(0.31, 0.1))]
    assert len(set(hashes)) == 3
    assert "parallel=None" not in repr(plain.layers)  # plans that were made before keep their hash


def test_a_pool_of_this_machine_is_told_what_busy_cores_take_from_one_another():
    own = load_cluster("local")
    name = own.device_types[0].name
    plain = profile_of(*range(len(KEYS)))
    crowded = replace(plain, crowding=Crowding(1.2, 0.03, 1, 8))

    def notes(pool: Cluster, of: str, profile: DeviceProfile) -> str:
        return "\n".join(layer_times(LAYERS, COSTS, pool, Measurements({of: profile}, ""), training=False).notes())

    assert "while 2 are busy the model takes 1.20 x as long (±0.03), which the plan's step does not have" in notes(
        own, name, crowded
    )
    assert "does not say what busy cores take from one another" in notes(own, name, plain)
    assert "busy" not in notes(POOL, FIRST, crowded)  # other machines have other cores
    assert assign_profiles(own, [(name, plain)]).sha256 != assign_profiles(own, [(name, crowded)]).sha256


def test_what_was_faster_beside_others_is_taken_to_be_chance():
    assert (Crowding(0.97, 0.02, 1, 8).slower, Crowding(1.2, 0.02, 1, 8).slower) == (1.0, 1.2)


TABLES = group_nodes(
    sketch("""
        in ids 8
        par one 100x4
        par two 100x4
        embedding a : ids one -> x 8x4
        embedding b : ids two -> y 8x4
        move join : x y -> z 8x8
        par w 8x2
        gemm fc : z w -> out 8x2 flops=256
        out out
    """)
)


def times_of_tables(profile: DeviceProfile, *names: str) -> LayerTimes:
    """Return the times of the layers above with some tables on servers."""
    costs = layer_costs(TABLES)
    served = served_costs(TABLES, costs, [table for table in tables_of(TABLES, costs) if table.name in names])
    return layer_times(TABLES, served, POOL, Measurements({FIRST: profile}, ""), training=True)


def profile_of_tables(*, is_measured: bool) -> DeviceProfile:
    keys, batch = layer_keys(TABLES), TABLES.graph.batch
    served = (point(batch, 1.0, 2.0),) if is_measured else ()
    table = layer("a", point(batch, 3.0, 30.0), kind="embedding")
    return device(*(replace(table, keys=(key,), served=served) for key in dict.fromkeys(keys)))


def test_a_layer_takes_the_time_that_was_measured_with_its_table_on_servers_where_it_lies_there():
    names = ("one", "two")
    profile = profile_of_tables(is_measured=True)
    own = [i for i, cost in enumerate(layer_costs(TABLES)) if cost.by_kind[0].kind == "embedding"]
    held, served = times_of_tables(profile), times_of_tables(profile, *names)
    assert held.compute_s[own, 0] == pytest.approx(33.0)
    assert served.compute_s[own, 0] == pytest.approx(3.0)
    assert served.phases(own[0], 0).accumulate_s == 3.0
    assert not any("tables on servers" in note for times in (held, served) for note in times.notes())
    one = times_of_tables(profile, "two")
    assert sorted(one.compute_s[own, 0]) == pytest.approx([3.0, 33.0])


def test_a_profile_that_lacks_the_time_of_served_layers_is_told_and_lends_that_with_the_tables():
    times = times_of_tables(profile_of_tables(is_measured=False), "one", "two")
    own = [i for i, cost in enumerate(times._costs) if cost.served]
    assert times.compute_s[own, 0] == pytest.approx(33.0)
    (note,) = (note for note in times.notes() if "tables on servers" in note)
    assert "does not say what 2 layers with tables on servers take without them: they are planned" in note


def test_what_served_layers_take_is_in_the_hash_of_a_profile_and_the_hashes_of_before_stay():
    hashes = [assign_profiles(POOL, [(FIRST, profile_of_tables(is_measured=each))]).sha256 for each in (True, False)]
    assert hashes[0] != hashes[1]
