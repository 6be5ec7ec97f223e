"""Connections to some machines are watched by the system; others stay as they are."""

import socket
import sys

import pytest

from heterps_compile.runtime.pipeline.silent_machines import end_silent_connections

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sockets are found in /proc")


def test_connections_to_the_machines_named_end_after_a_silence_and_others_do_not():
    with socket.create_server(("127.0.0.3", 0)) as server, socket.create_connection(server.getsockname()) as mine:
        assert end_silent_connections(["127.0.0.4", "no-such-name.invalid"], 5.0) == 0
        assert mine.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0
        assert end_silent_connections(["127.0.0.3"], 5.0) == 1
        found = [mine.getsockopt(socket.IPPROTO_TCP, one) for one in (socket.TCP_KEEPIDLE, socket.TCP_USER_TIMEOUT)]
        assert (mine.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE), *found) == (1, 1, 5000)
