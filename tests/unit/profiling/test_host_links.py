"""Links between hosts: which processes may measure them."""

import pytest

from heterps_compile.errors import RunError
from heterps_compile.profiling.host_links import _checked_ranks
from heterps_compile.runtime.launch.env_rank import Asked


def asked(*hosts: str) -> list[Asked]:
    return [Asked("0" * 32, host, "", "") for host in hosts]


def test_two_processes_of_one_host_among_several_are_refused():
    with pytest.raises(RunError, match="'a' are 2 of 3"):
        _checked_ranks(asked("a", "b", "a"))
    assert list(_checked_ranks(asked("a", "b", "c"))) == [0, 1, 2]
    assert list(_checked_ranks(asked("a", "a"))) == [0, 1]
