"""Work that two types share, by hand."""

import numpy as np
import pytest

from heterps_compile.machines.step_times import least_shared_s


def test_layers_that_one_type_alone_may_run_are_its_own() -> None:
    """3 and 2 s on two units of the first type, 4 s on four of the second: 2.5 s and 1 s."""
    work_s, other_s = np.array([3.0, np.inf, 2.0]), np.array([np.inf, 4.0, np.inf])
    assert least_shared_s(work_s, other_s, np.array([2.0, 1.0, 9.0]), np.array([4.0, 8.0, 1.0])) == pytest.approx(
        [2.5, 5.0, 4.0]
    )
    nowhere = least_shared_s(np.array([1.0, np.inf]), np.array([2.0, np.inf]), np.ones(2), np.ones(2))
    assert nowhere.tolist() == [np.inf, np.inf]
