"""The replicas that a time asks for, against all numbers of them tried in turn."""

import numpy as np
import pytest

from heterps_compile.cost.all_reduce import Machines
from heterps_compile.cost.replicas import ReplicaDemand, StageWork

MOST = 400


def drawn(seed: int, *, machines: bool, count: int = 300) -> StageWork:
    rng = np.random.default_rng(seed)
    compute_s, data_s = rng.uniform(0.01, 4, count), rng.uniform(0, 4, count) * (rng.random(count) < 0.8)
    return StageWork(
        compute_s=compute_s,
        data_s=data_s,
        sync_s=rng.uniform(0, 6, count) * (rng.random(count) < 0.8),
        serial_compute_s=compute_s * rng.choice([1.0, 0.5, 0.05, 0.0], count),
        serial_data_s=data_s * rng.choice([1.0, 0.5, 0.05, 0.0], count),
        shared_s=rng.uniform(0, 1, count) * (rng.random(count) < 0.3),
        machines=Machines(rng.choice([1.0, 2.0, 4.0, 8.0], count), rng.uniform(0.05, 1.2, count)) if machines else None,
    )


def times_s(work: StageWork) -> np.ndarray:
    """Return [400, N], the time with 1, 2, ... replicas, by the formula."""
    k = np.arange(1.0, MOST + 1)[:, None]
    compute_s = work.serial_compute_s + (work.compute_s - work.serial_compute_s) / k
    share = (k - 1) / k
    if work.machines is not None:
        inside, whole = np.minimum(k, work.machines.units), np.ceil(k / work.machines.units)
        share = work.machines.inner * (inside - 1) / inside + (whole - 1) / whole
    assert work.sync_s is not None
    data_s = work.serial_data_s + (work.data_s - work.serial_data_s) / k + work.sync_s * share
    assert work.shared_s is not None
    return np.maximum(np.maximum(compute_s, data_s), work.shared_s)


@pytest.mark.parametrize("machines", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_the_fewest_replicas_are_those_that_trying_finds_and_no_plan_is_below_the_bound(seed, machines):
    work = drawn(seed, machines=machines)
    demand, every = work.demand(), times_s(work)
    rng = np.random.default_rng(seed)
    assert np.all(demand.fixed_s <= every.min(axis=0) * (1 + 1e-12))
    for _ in range(20):
        at = every[rng.integers(0, 40, len(work.compute_s)), np.arange(len(work.compute_s))]
        limit_s = at * rng.choice([0.5, 0.9, 0.999, 1.0, 1.001, 1.3], len(at))
        fits = every <= limit_s * (1 + 1e-12)
        expected = np.where(fits.any(axis=0), 1.0 + fits.argmax(axis=0), np.inf)
        units, bound = demand.units_and_bound(limit_s)
        beyond = np.isfinite(units) & (units > MOST)  # more than were tried
        assert units[~beyond].tolist() == expected[~beyond].tolist()
        assert demand.units(limit_s).tolist() == units.tolist()
        k_tau = np.where(fits, np.arange(1.0, MOST + 1)[:, None] * every, np.inf).min(axis=0)
        assert np.all(bound[~beyond] <= k_tau[~beyond] * (1 + 1e-9))
        finite = np.isfinite(units)
        reached_s = demand.time_s(np.where(finite, units, 1.0))
        assert np.all(reached_s[finite] <= limit_s[finite] * (1 + 1e-11))
        assert reached_s[finite] == pytest.approx(work.time_s(np.where(finite, units, 1.0))[finite])


@pytest.mark.parametrize("seed", range(4))
def test_the_fastest_number_is_the_first_behind_which_nothing_is_faster(seed):
    work = drawn(seed, machines=False)
    every, fastest = times_s(work), work.demand().fastest_units()
    for stage in np.flatnonzero(fastest <= MOST):
        k = int(fastest[stage])
        assert every[k - 1, stage] == pytest.approx(every[:, stage].min())
    assert np.all(work.demand().least_time_s() <= every.min(axis=0) * (1 + 1e-12))
    known = np.isfinite(fastest)
    assert work.demand().least_time_s()[known] == pytest.approx(every.min(axis=0)[known])
    # of a stage that gets faster for ever the last number tried is the fastest
    assert np.all(every[-1, np.isinf(fastest)] <= every[:, np.isinf(fastest)].min(axis=0) * (1 + 1e-12))


@pytest.mark.parametrize("machines", [False, True])
def test_parts_of_demands_are_joined_as_they_were(machines):
    demand = drawn(7, machines=machines).demand()
    again = ReplicaDemand.join([demand.take(slice(0, 100)), demand.take(np.arange(100, 300))])
    assert again.units(1.5).tolist() == demand.units(1.5).tolist()


@pytest.mark.parametrize("machines", [False, True])
def test_units_for_several_times_at_once_are_those_for_each(machines):
    demand, times_s = drawn(3, machines=machines).demand(), np.array([0.4, 1.5, 6.0])
    together = demand.units(times_s[:, None])
    assert together.tolist() == [demand.units(float(time_s)).tolist() for time_s in times_s]
