from dataclasses import replace

import pytest
from test_profile_model import QUICK, read

from heterps_compile.backends.torch.backend import TorchBackend
from heterps_compile.errors import RunError
from heterps_compile.profiling import profile_model as profiling
from heterps_compile.profiling.crowding import crowding_of

CROWDED = replace(QUICK, batches=(2, 4), with_crowding=True)


def test_the_factor_is_the_median_of_rounds_beside_others_over_those_before_them():
    # the machine gets slower from round to round, and one round fell into somebody else's work
    alone, beside = [1.0, 2.0, 3.0, 4.0, 5.0], [1.2, 2.4, 9.0, 4.8, 6.0]
    found = crowding_of(alone, beside, 3, 8)
    assert found is not None
    assert (found.factor, found.spread) == pytest.approx((1.2, 0.0))
    assert (found.others, found.batch) == (3, 8)


def test_a_clock_that_saw_nothing_tells_nothing():
    assert crowding_of([0.0, 1.0], [1.0, 1.0], 1, 8) is None


def test_one_core_has_no_neighbours(monkeypatch):
    monkeypatch.setattr(profiling, "usable_cores", lambda: 1)
    (device,) = profiling.profile_model(read, CROWDED).devices
    assert device.crowding is None


@pytest.mark.slow  # processes that import PyTorch
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_neighbours_are_measured_at_the_largest_batch(monkeypatch, mode):
    monkeypatch.setattr(profiling, "usable_cores", lambda: 2)
    (device,) = profiling.profile_model(read, replace(CROWDED, mode=mode)).devices
    found = device.crowding
    assert found is not None
    assert (found.others, found.batch) == (1, 4)
    assert found.factor > 0
    assert found.spread >= 0


@pytest.mark.slow  # processes of a run start cold
def test_a_neighbour_that_fails_is_told_with_its_reason(monkeypatch):
    write = TorchBackend.write

    def broken(self, graph, stages, cuts, directory):
        files = write(self, graph, stages, cuts, directory)
        (directory / files[0][0]).write_text("raise RuntimeError('no such luck')\n")
        return files

    monkeypatch.setattr(TorchBackend, "write", broken)
    monkeypatch.setattr(profiling, "usable_cores", lambda: 2)
    with pytest.raises(RunError, match=r"measured.*luck.*--no-replicas"):
        profiling.profile_model(read, CROWDED)
