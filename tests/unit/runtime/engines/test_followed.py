import io
import os
import signal
import threading
import time

from heterps_compile.runtime.engines.contract import Streams
from heterps_compile.runtime.engines.followed import Followed, follow


def followed(*ones: Followed, leave_s: float = 20.0) -> tuple[list[int], str, str]:
    streams = Streams(io.StringIO(), io.StringIO())
    return follow(ones, streams, leave_s), streams.out.getvalue(), streams.err.getvalue()


def shell(script: str, name: str = "", **more) -> Followed:
    return Followed(("sh", "-c", script), name, **more)


def test_lines_bear_the_name_of_their_machine_and_nothing_that_moves_a_terminal():
    codes, out, err = followed(shell("echo one; printf '\\033[2J\\n' >&2", "a"), shell("echo two; exit 3"))
    assert codes == [0, 3]
    assert sorted(out.splitlines()) == ["[a] one", "two"]
    assert err == "[a] \\x1b[2J\n"


def test_once_one_has_failed_the_others_may_leave_and_are_killed_after_a_while():
    codes, _, _ = followed(shell("exit 1"), shell("exec sleep 1000"), leave_s=0.2)
    assert codes == [1, 128 + signal.SIGKILL]


def test_where_the_way_to_a_machine_is_lost_the_others_are_told_to_end():
    codes, _, _ = followed(shell("exit 255", fatal=frozenset({255})), shell("exec sleep 1000"))
    assert codes == [255, 128 + signal.SIGTERM]


def test_an_interrupt_reaches_all_as_a_signal_or_a_line_of_the_input():
    def interrupt() -> None:
        while out.getvalue().count("\n") != 2:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    out = io.StringIO()
    ones = [
        shell("trap 'exit 7' INT; echo up; while :; do sleep 0.05; done"),
        shell("echo up; read line; echo got $line", "far", is_told_by_input=True),
    ]
    thread = threading.Thread(target=interrupt)
    thread.start()
    codes = follow(ones, Streams(out, io.StringIO()))
    thread.join()
    assert codes == [7, 0]
    assert "[far] got SIGINT" in out.getvalue()
