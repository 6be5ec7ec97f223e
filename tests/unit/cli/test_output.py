import io
import os
import sys
import termios
import warnings

import pytest

from heterps_compile.cli.output import ProgressLine, quiet_libraries, result_stream
from heterps_compile.fit_lines import terminal_width
from heterps_compile.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_only_the_result_reaches_stdout(capfd):
    with result_stream() as stream:
        print("a library's print")
        os.write(1, b"a C library's print\n")
        stream.write("result\n")
    print("after")
    out, err = capfd.readouterr()
    assert out == "result\nafter\n"
    assert sorted(err.splitlines()) == ["a C library's print", "a library's print"]


def test_stdout_is_whole_again_after_a_failure(capfd):
    with pytest.raises(RuntimeError), result_stream():
        raise RuntimeError
    os.write(1, b"raw\n")
    print("python")
    assert capfd.readouterr().out == "raw\npython\n"


def test_a_closed_stdout_is_no_failure(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    with result_stream() as stream:
        stream.write("result\n")


def test_the_stream_writes_what_its_encoding_lacks_as_escapes(capfd, monkeypatch):
    with open(1, "w", encoding="ascii", closefd=False) as ascii_stdout:
        monkeypatch.setattr(sys, "stdout", ascii_stdout)
        with result_stream() as stream:
            stream.write("Größe …\n")
    assert capfd.readouterr().out == "Gr\\xf6\\xdfe \\u2026\n"


def test_warnings_of_libraries_are_kept_quiet_unless_wanted(monkeypatch):
    monkeypatch.setattr(sys, "warnoptions", [])
    with quiet_libraries(verbose=False):
        warnings.warn("noise", UserWarning, stacklevel=1)
    with pytest.raises(UserWarning), quiet_libraries(verbose=True):
        warnings.warn("noise", UserWarning, stacklevel=1)
    monkeypatch.setattr(sys, "warnoptions", ["error"])
    with pytest.raises(UserWarning), quiet_libraries(verbose=False):
        warnings.warn("noise", UserWarning, stacklevel=1)


def test_a_terminal_has_a_width_and_one_that_does_not_say_has_80(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    ours, theirs = os.openpty()  # of no size
    with open(ours, "w") as stream, open(theirs, "w"):
        assert terminal_width(stream) == 80
        termios.tcsetwinsize(theirs, (24, 97))
        assert terminal_width(stream) == 97


def test_progress_is_one_line_that_goes_again():
    stream = Terminal()
    progress = ProgressLine(stream, wanted=True)
    progress.show(Progress("reading", 0, 10))
    progress.show(Progress("place-layers", 4, 10))
    progress.close()
    assert stream.getvalue() == "\r\x1b[K[0/10] reading …\r\x1b[K[4/10] place-layers …\r\x1b[K"


def test_progress_tells_what_a_search_has_found():
    stream = Terminal()
    found = Progress("place-layers", 4, 10, "proving", best=1.6789, bound=1.5, elapsed_s=12.3)
    ProgressLine(stream, wanted=True).show(found)
    assert stream.getvalue() == "\r\x1b[K[4/10] place-layers: proving, best 1.679, bound 1.5, 12 s …"
    ProgressLine(stream, wanted=True).show(Progress("verify", 8, 10, "\x1b[31mstage", fraction=0.5))
    assert stream.getvalue().endswith("[8/10] verify: \\x1b[31mstage, 50 % …")


def test_progress_fits_the_line():
    stream = Terminal()
    ProgressLine(stream, wanted=True).show(Progress("x" * 500, 0, 10))
    assert len(stream.getvalue()) < 90


@pytest.mark.parametrize(("stream", "wanted"), [(io.StringIO(), True), (Terminal(), False), (None, True)])
def test_progress_is_silent_where_nobody_looks(stream, wanted):
    progress = ProgressLine(stream, wanted=wanted)
    progress.show(Progress("reading", 0, 10))
    progress.close()
    assert stream is None or stream.getvalue() == ""
