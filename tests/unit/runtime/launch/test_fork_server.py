"""Processes forked from one that has imported what they need are like new ones, and end with it."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from heterps_compile.errors import RunError
from heterps_compile.runtime.launch.fork_server import PRELOADED, PRELOADED_TO_TRAIN, ForkedProcess, ForkServer

PATIENCE_S = 120.0

PROGRAM = """
import json, os, random, sys

def main():
    what, *rest = sys.argv[1:]
    if what == "tell":
        server = os.getppid()
        torch = sys.modules.get("torch")
        print(json.dumps({
            "words": rest, "environment": dict(os.environ), "group": os.getpgrp() == os.getpid() == os.getsid(0),
            "preloaded": [name for name in ("fractions", "torch") if name in sys.modules],
            "random": random.random(), "threads": len(os.listdir(f"/proc/{server}/task")),
            "cuda": torch is not None and torch.cuda.is_initialized(),
        }))
        print("an error", file=sys.stderr)
    if what == "wait":
        from heterps_compile.runtime.launch.fork_server import end_with_parent
        end_with_parent(os.getppid())
        print("waits", flush=True)
        while True:
            __import__("time").sleep(1)
    return 3 if what == "fail" else None
"""


@pytest.fixture
def program(tmp_path, monkeypatch) -> str:
    (tmp_path / "a_program.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]))
    return "a_program"


@pytest.fixture
def server(program) -> Iterator[ForkServer]:
    with ForkServer(("fractions", "no_such_module")) as server:
        yield server


@pytest.fixture
def start(program, server) -> Iterator[Callable[..., ForkedProcess]]:
    """Start the program with some words; its output is closed at the end."""
    with ExitStack() as opened:

        def start(*words: str, merges_output: bool = True, by: ForkServer = server, **environment: str):
            process = by.start(program, words, environment, merges_output=merges_output)
            opened.enter_context(process.stdout)
            opened.enter_context(process.stderr)
            return process

        yield start


def told(process: ForkedProcess) -> Mapping[str, object]:
    return json.loads(process.stdout.readline())


def code_of(process: ForkedProcess) -> int:
    process.wait()
    code = process.poll()
    assert code is not None
    return code


def test_a_process_has_words_environment_session_and_output_of_its_own(start):
    process = start("tell", "one", "two", merges_output=False, ONLY="this")
    found = told(process)
    assert (found["words"], found["environment"], found["group"]) == (["one", "two"], {"ONLY": "this"}, True)
    assert found["preloaded"] == ["fractions"]
    assert (process.stdout.read(), process.stderr.read()) == ("", "an error\n")
    assert code_of(process) == 0


def test_processes_print_errors_into_the_same_pipe_if_asked_and_draw_other_random_numbers(start):
    one, other = (start("tell").stdout.read() for _ in range(2))
    assert one.endswith("}\nan error\n")
    assert json.loads(one.splitlines()[0])["random"] != json.loads(other.splitlines()[0])["random"]


def test_how_a_process_ended_is_told(start):
    processes = {what: start(what) for what in ("fail", "wait", "tell")}
    assert processes["wait"].stdout.readline() == "waits\n"
    assert processes["wait"].poll() is None
    processes["wait"].kill_group()
    assert [code_of(process) for process in processes.values()] == [3, -signal.SIGKILL, 0]
    processes["wait"].send_signal(signal.SIGTERM)  # it has left


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills what a process has started with it")
def test_processes_that_ask_for_it_end_with_their_server(server, start):
    process = start("wait")
    assert process.stdout.readline() == "waits\n"
    os.kill(server.pid, signal.SIGKILL)
    assert process.stdout.read() == ""  # until the last who could write has left
    with pytest.raises(RunError, match="SIGKILL"):
        process.poll()
    process.wait()
    with pytest.raises(RunError):
        start("wait")


def test_a_server_that_was_stopped_is_told_whoever_waits_for_it(server, start):
    process = start("wait")
    assert process.poll() is None
    os.kill(server.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, server.pid, os.WSTOPPED | os.WNOWAIT)
    for what in (process.poll, lambda: start("tell")):
        with pytest.raises(RunError, match="SIGSTOP"):
            what()
    process.wait()  # does not wait for ever either
    process.kill_group()


def test_the_server_leaves_when_its_launcher_is_gone(server):
    server._line.close()
    assert server._server.wait(PATIENCE_S) == 0


FORKING = """
import atexit, json, os, sys
from heterps_compile.runtime.launch.fork_server import ForkServer

atexit.register(print, "the command's own end", flush=True)
print("printed before", end="")
with ForkServer(("fractions",), forks_this_process=True) as server:
    process = server.start("a_program", ["tell", "one"], {"ONLY": "this"}, merges_output=False)
    told = json.loads(process.stdout.readline())
    rest = process.stdout.read(), process.stderr.read()
    process.wait()
    is_forked = type(server._server).__name__ == "_ForkedServer"
    waits = server.start("a_program", ["wait"], {}, merges_output=True)
    waits.stdout.readline()
    os.kill(server.pid, 9)
    ended = waits.stdout.read()
    try:
        waits.poll()
    except Exception as error:
        fault = str(error)
print()
print(json.dumps([told, rest, process.poll(), is_forked, ended, fault]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a new interpreter is started")
def test_a_server_forked_from_a_process_with_one_thread_is_like_a_new_one(program, tmp_path):
    (tmp_path / "forking.py").write_text(FORKING)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "forking.py")], check=True, capture_output=True, text=True, timeout=PATIENCE_S
    )
    before, answer, end = done.stdout.splitlines()
    assert (before, end, done.stderr) == ("printed before", "the command's own end", "")
    told, rest, code, is_forked, ended, fault = json.loads(answer)
    assert (told["words"], told["environment"], told["group"]) == (["one"], {"ONLY": "this"}, True)
    assert (told["preloaded"], told["threads"]) == (["fractions"], 1)
    assert (rest, code, is_forked, ended) == (["", "an error\n"], 0, True, "")
    assert fault.startswith("the process that the ranks are forked from was killed by SIGKILL")


def test_a_process_with_threads_is_not_forked(program):
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        with ForkServer(("fractions",), forks_this_process=True) as server:
            assert isinstance(server._server, subprocess.Popen)
    finally:
        stop.set()
        thread.join()


@pytest.mark.slow  # imports torch once more
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="only Linux lists threads")
def test_what_ranks_are_forked_from_has_one_thread_and_has_not_begun_with_a_gpu(start):
    with ForkServer((*PRELOADED, *PRELOADED_TO_TRAIN)) as server:
        found = told(start("tell", by=server))
    assert (found["preloaded"][-1], found["threads"], found["cuda"]) == ("torch", 1, False)
