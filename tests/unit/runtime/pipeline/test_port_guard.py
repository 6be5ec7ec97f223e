"""Which connections to a port a guard takes for those of this user; with strangers: ``test_strangers.py``."""

import os
import socket

from heterps_compile.runtime.pipeline import port_guard

# As /proc/net/tcp has it: 127.0.0.1 is 0100007F, a state of 01 or 02 is a connection there or asked for, then the user.
ROW = "   0: 0100007F:{source:04X} 0100007F:{port:04X} {state} 00000000:00000000 00:00000000 00000000 {user} 0 1 1 0 20"


def test_only_connections_of_this_user_to_this_port_are_asked_for(tmp_path, monkeypatch):
    listener = socket.create_server(("127.0.0.1", 0))
    with listener:
        port, own = listener.getsockname()[1], os.geteuid()
        rows = [
            ROW.format(source=1001, port=port, state="01", user=own),
            ROW.format(source=1002, port=port, state="02", user=own),
            ROW.format(source=1003, port=port, state="01", user=own + 1),
            ROW.format(source=1004, port=port, state="06", user=own),
            ROW.format(source=1005, port=port % 65535 + 1, state="01", user=own),
        ]
        table = tmp_path / "tcp"
        table.write_text("\n".join(["  sl  local_address rem_address", *rows]), "ascii")
        monkeypatch.setattr(port_guard, "_TABLES", {socket.AF_INET: table})
        found = list(port_guard._Port(listener)._asked_for())
    assert found == [(socket.inet_aton("127.0.0.1"), 1001), (socket.inet_aton("127.0.0.1"), 1002)]
