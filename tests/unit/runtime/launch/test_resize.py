"""A run that trains goes on with other widths, or after a fault, and every sample counts once."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from counted_rows import MODEL, TRAIN, times_seen
from processes import ranks_of

from heterps_compile.errors import InputError, RunError
from heterps_compile.options import OptionError
from heterps_compile.runtime.launch import resize as module
from heterps_compile.runtime.launch.resize import RESIZE, Resize, ResizeRequests, hosting_requests, request_resize
from heterps_compile.runtime.launch.run_options import RunOptions
from heterps_compile.runtime.launch.server_options import ServerOptions

OPTIONS = RunOptions(
    directory="/model", train="/train.py", data="random", checkpoint="/ck", replicas=(1, 1), expect_sha256="a" * 64
)


def test_what_changes_replaces_what_was_and_what_the_run_begins_with_stays():
    changed = Resize("/other", {"replicas": (2, 1), "micro_batches": 4}).applied(replace(OPTIONS, micro_batches=2))
    expected = replace(OPTIONS, directory="/other", replicas=(2, 1), micro_batches=4, expect_sha256=None)
    assert changed == expected
    assert Resize(None, {"replicas": (2, 1)}).applied(OPTIONS).expect_sha256 == "a" * 64
    served = Resize(None, {"parameter_servers": 2}).applied(OPTIONS)
    assert served.servers == ServerOptions(count=2)
    begun = replace(OPTIONS, weights="/before/step-000001", averaged=True)
    assert Resize(None, {"replicas": (2, 1)}).applied(begun) == replace(begun, replicas=(2, 1))


def test_what_makes_no_run_is_refused():
    with pytest.raises(OptionError, match=r"--server-optimizer.*--parameter-servers"):
        Resize(None, {"parameter_servers": 0}).applied(
            replace(OPTIONS, servers=ServerOptions(count=1, optimizer="adam"))
        )


@pytest.fixture
def run(tmp_path) -> Iterator[tuple[Path, ResizeRequests]]:
    """Yield the checkpoints of a run whose launcher is this process, and the requests to it."""
    with hosting_requests(replace(OPTIONS, checkpoint=str(tmp_path / "ck"))) as requests:
        yield tmp_path / "ck", requests


def test_a_request_reaches_the_run_that_writes_there_and_its_answer_comes_back(run, monkeypatch):
    checkpoints, requests = run
    store = requests._store
    assert requests.next() is None
    store.set("resize/1/answer", json.dumps({"words": "replicas 1, 1, then 2, 1", "refused": False}))
    assert request_resize(checkpoints, Resize(None, {"replicas": (2, 1)})) == "replicas 1, 1, then 2, 1"
    assert requests.next() == Resize(None, {"replicas": (2, 1)})
    store.set("resize/2/answer", json.dumps({"words": "no", "refused": True}))
    with pytest.raises(RunError, match="goes"):
        request_resize(checkpoints, Resize("/other"))
    assert requests.next() == Resize("/other")
    monkeypatch.setattr(module, "_ANSWER_S", 0.05)
    with pytest.raises(RunError, match="answer"):
        request_resize(checkpoints, Resize("/third"))


def test_a_run_is_found_whatever_the_folder_of_temporary_files_and_two_runs_keep_apart(run, tmp_path, monkeypatch):
    checkpoints, requests = run
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with hosting_requests(replace(OPTIONS, checkpoint=str(checkpoints))):  # a second one, which ranks will refuse
        requests._store.set("resize/1/answer", json.dumps({"words": "yes", "refused": False}))
        assert request_resize(checkpoints, Resize("/other")) == "yes"
    assert requests.next() == Resize("/other")


@pytest.mark.parametrize("pointed", ["[" * 50_000, "7", '"/tmp"', '"heterps-run-0"', ""])
def test_what_points_to_no_run_of_this_user_is_passed_over(tmp_path, pointed):
    (tmp_path / ".heterps-run").write_text(pointed)
    with pytest.raises(InputError, match="--resume"):
        request_resize(tmp_path, Resize("/other"))
    with hosting_requests(replace(OPTIONS, checkpoint=str(tmp_path))) as requests:
        assert requests is not None
        requests._store.set("resize/1/answer", json.dumps({"words": "yes", "refused": False}))
        assert request_resize(tmp_path, Resize("/other")) == "yes"
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_a_run_that_keeps_no_checkpoint_does_not_stay(tmp_path):
    with hosting_requests(replace(OPTIONS, checkpoint=str(tmp_path / "a" / "ck"))):
        assert (tmp_path / "a" / "ck").is_dir()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content", [b"{", b"[]", b"7", b'{"directory": 7, "options": {}}', b'{"directory": null, "options": {"steps": 1}}']
)
def test_a_request_of_another_form_is_refused_and_the_next_one_is_heard(run, content):
    _, requests = run
    store = requests._store
    store.set("resize/1", content)
    store.set("resize/2", json.dumps({"directory": "/other", "options": {}}))
    assert requests.next() == Resize("/other")
    assert json.loads(store.get("resize/1/answer"))["refused"]


def test_a_run_that_is_not_there_and_a_request_for_nothing_are_refused(tmp_path):
    with pytest.raises(InputError, match="--resume"):
        request_resize(tmp_path, Resize("/other"))
    with pytest.raises(InputError, match="nothing"):
        request_resize(tmp_path, Resize())
    assert [option.name for option in RESIZE.options if option.needs or option.against] == []


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "heterps_compile", *words]


@pytest.mark.slow  # three starts of a run's ranks
@pytest.mark.kill("a rank, between resizes")
def test_every_sample_is_trained_on_once_through_resizes_a_dead_rank_and_other_cuts(tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    hold = tmp_path / "hold"
    (tmp_path / "train.py").write_text(f"HOLD = {str(hold)!r}\n{TRAIN}")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    call = {"cwd": tmp_path, "env": environment, "text": True, "timeout": 300}
    subprocess.run([sys.executable, "model.py"], check=True, capture_output=True, **call)
    words = "run two --train train.py --data x.parquet --epochs 3 -q --batch 32 --micro-batches 2 --replicas 1,1"
    words += " --checkpoint ck --every 10 --restarts 1 --hang-after 120 --log log.jsonl"
    with subprocess.Popen(
        command(*words.split()),
        cwd=tmp_path,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:

        def hold_after(step: int) -> None:
            hold.unlink(missing_ok=True)
            while not any(int(found.name[5:]) >= step for found in tmp_path.glob("ck/step-*[0-9]")):
                assert process.poll() is None, process.stdout and process.stdout.read()
                time.sleep(0.05)
            hold.touch()

        def resize(*changes: str) -> str:
            return subprocess.run(command("resize", "ck", *changes), check=True, capture_output=True, **call).stdout

        hold_after(10)
        assert resize("--replicas", "2,1") == "replicas 1, 1 until this step is done, then 2, 1\n"
        hold_after(50)
        os.kill(ranks_of(process.pid)[0], signal.SIGKILL)
        hold_after(70)
        assert resize("--to", "one", "--replicas", "2") == "replicas 2, 1 until this step is done, then 2\n"
        hold.unlink()
        told, _ = process.communicate(timeout=300)
    assert process.returncode == 0, told
    assert "144 steps, 4,608 samples\n1 restart after a failed process\n2 resizes\n" in told
    assert "was killed by SIGKILL" in told
    assert times_seen(tmp_path / "ck" / "step-000144") == {3}
    records = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert {record["step"] for record in records if "step" in record} == set(range(144))
    decided = [record["decision"].split()[0] for record in records if "decision" in record]
    assert decided == ["resized:", "stage", "restart", "resized:", "done,"]
