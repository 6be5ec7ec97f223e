"""Only processes of one user become neighbours in shared memory."""

import os
import socket
from contextlib import suppress
from functools import partial

import pytest
from another_user import CAN_BE_ANOTHER, WHY_NOT, AnotherUser

from heterps_compile.runtime.pipeline.shared_memory import neighbours


def knock(name: str) -> str:
    """Connect to an abstract socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line, suppress(OSError):
        line.connect(f"\0{name}")
        return "open"
    return "shut"


@pytest.mark.skipif(not CAN_BE_ANOTHER, reason=WHY_NOT)
def test_who_is_on_the_other_side_is_known_by_its_user():
    name = os.urandom(8).hex()
    with neighbours._listen(name, 2, 10.0) as listener:
        other = AnotherUser(partial(knock, name))
        line, _ = listener.accept()
        with line:
            assert not neighbours._is_own(line)
        assert other.found() == "open"
        with neighbours._new_socket(10.0) as own:
            own.connect(f"\0{name}")
            line, _ = listener.accept()
            with line:
                assert neighbours._is_own(line)
