"""A run that loses a host, goes on without it and takes it again, on hosts that are made up: no process is started."""

import io
import json
import os
import shutil
import signal
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from engine_jobs import make_job
from plans import PLAN

from heterps_compile.errors import SIGNALLED, InputError, RunError, RunKilledError
from heterps_compile.runtime.checkpoint.folder import holding_checkpoints
from heterps_compile.runtime.engines import deal, driver
from heterps_compile.runtime.engines.advice import Advice, Loss
from heterps_compile.runtime.engines.deal import Deal, Dealt, Host
from heterps_compile.runtime.engines.driver import Ending, drive
from heterps_compile.runtime.engines.elastic_limits import Limits
from heterps_compile.runtime.engines.job import Job
from heterps_compile.runtime.engines.machines import Left, Machines, Started
from heterps_compile.runtime.launch.prepare import Prepared, places_of
from heterps_compile.runtime.launch.resize import Resize, request_resize
from heterps_compile.runtime.launch.run_options import RunOptions
from heterps_compile.runtime.launch.stop_signals import RESIZED_BY
from heterps_compile.runtime.pipeline.layout import make_layout

QUICK = Limits((1, 2), max_restarts=2, back_off_s=0.0, look_s=0.0)
WIDER = SIGNALLED + RESIZED_BY
Play = Callable[["Scene"], Left | None]


class Scene(Started):
    """Ranks that leave as the play says; it is asked at every poll."""

    def __init__(self, stage: "Stage", play: Play, run: Dealt) -> None:
        self.stage, self.play, self.run = stage, play, run
        self.told: list[int] = []
        self.polls = 0
        self.left: Left | None = None

    def poll(self, now_s: float) -> bool:
        self.polls += 1
        self.left = self.play(self)
        return self.left is not None

    def stop(self, number: int) -> None:
        self.told.append(number)

    def close(self) -> Left:
        return self.left or Left((1,))

    def keep_checkpoint(self, step: int) -> None:
        folder = Path(self.run.options.checkpoint) / f"step-{step:06d}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "state.json").write_text("{}")


class Stage(Machines):
    """Hosts a of two slots and b of one, of which those are listed that are there."""

    def __init__(self, *plays: Play) -> None:
        super().__init__(io.StringIO())
        self.plays, self.there, self.seen = list(plays), {"a", "b"}, []

    def listed(self) -> tuple[Host, ...]:
        return tuple(host for host in (Host("a", 2), Host("b", 1)) if host.address in self.there)

    def fill(self, prepared, hosts) -> Deal:
        left, deal = prepared.world_size, []
        for host in hosts:
            if left:
                deal.append((host.address, min(left, host.slots)))
                left -= deal[-1][1]
        if left:
            raise RunError(f"{sum(host.slots for host in hosts)} slots for {prepared.world_size} processes")
        return tuple(deal)

    def start(self, run):
        self.seen.append((run.widths, run.deal, run.options.resume))
        return Scene(self, self.plays.pop(0), run)


@pytest.fixture
def job(tmp_path, monkeypatch) -> Job:
    def prepare(options, **_) -> Prepared:
        layout = make_layout(PLAN, training=False, replicas=list(options.replicas))
        return Prepared(Path(options.directory), PLAN, "ab" * 32, layout, places_of(layout))

    monkeypatch.setattr(deal, "prepare", prepare)
    monkeypatch.setattr(driver, "prepare", prepare)
    monkeypatch.setattr(driver, "check_same_model", lambda *_: None)
    (tmp_path / "log.jsonl").write_text("")
    keeps = {"checkpoint": str(tmp_path / "ck"), "every": 5, "log": str(tmp_path / "log.jsonl")}
    return make_job(train="t.py", replicas=(2, 1), **keeps)


def played(
    job: Job, *plays: Play, limits: Limits = QUICK, before: Callable[[Stage], Stage] = lambda stage: stage
) -> tuple[int, list[str], Stage]:
    stage = before(Stage(*plays))
    ending = drive(stage, Dealt(job.options, job.prepared, ()), limits, job.advisor)
    assert stage.plays == []
    return ending.code, stage._stream.getvalue().splitlines(), stage


def loses_b(scene: Scene) -> Left:
    scene.keep_checkpoint(5)
    scene.stage.there.discard("b")
    return Left((1, 255), ("b",), RunError("'b' is gone"))


def takes_b_again(scene: Scene) -> Left | None:
    scene.stage.there.add("b")
    if scene.polls == 2:
        scene.keep_checkpoint(10)
    if not scene.told:
        return None
    assert scene.told == [RESIZED_BY]
    return Left((WIDER,))


def ends(scene: Scene) -> Left:
    return Left((0, 0))


def test_a_run_goes_on_without_a_lost_host_and_with_it_again(job, tmp_path):
    code, told, stage = played(job, loses_b, takes_b_again, ends)
    assert code == 0
    assert stage.seen == [
        ((2, 1), (("a", 2), ("b", 1)), False),
        ((1, 1), (("a", 2),), True),
        ((2, 1), (("a", 2), ("b", 1)), True),
    ]
    assert told == [
        "'b' is gone",
        "b is lost for the 1st time: it is not asked for 0 s",
        "restart 1 of 2, from step-000005: replicas 2, 1 on 2 hosts (a=2, b=1) before, replicas 1, 1 on 1 host (a=2) "
        "now",
        "b came: replicas 1, 1 on 1 host (a=2) until the next checkpoint (--every 5), then replicas 2, 1 on 2 hosts "
        "(a=2, b=1)",
        "done, after 1 restart and 1 change of widths",
    ]
    logged = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["decision"] for line in logged] == told


@pytest.mark.parametrize(("most", "there"), [(2, {"a"}), (1, {"a", "b"})])
def test_a_run_begins_with_the_hosts_that_are_there_up_to_the_most(job, most, there):
    def before(stage: Stage) -> Stage:
        stage.there = there
        return stage

    code, told, stage = played(job, ends, limits=replace(QUICK, elastic=(1, most)), before=before)
    assert (code, stage.seen) == (0, [((1, 1), (("a", 2),), False)])
    assert told == ["begins with replicas 1, 1 on 1 host (a=2) in place of replicas 2, 1"]


def test_who_decides_about_a_lost_host_is_asked_and_followed(job, tmp_path):
    losses: list[Loss] = []

    def advised(kind: str, *plays: Play, command: str = "", back: bool = False):
        def advise(loss: Loss) -> Advice:
            losses.append(loss)
            stage = stages[0]
            if back:
                stage.there.add("b")
            return Advice(kind, (f"{kind}, since it is cheaper",), command)

        stages: list[Stage] = []
        return played(replace(job, advisor=advise), loses_b, *plays, before=lambda stage: stages.append(stage) or stage)

    code, told, stage = advised("stay", ends)
    assert (code, [widths for widths, _, _ in stage.seen]) == (0, [(2, 1), (1, 1)])
    assert told[2:4] == [
        "deciding whether to stay on the hosts that are left, to wait or to move",
        "stay, since it is cheaper",
    ]
    assert (losses[0].hosts, losses[0].lost, losses[0].patience_s) == (("a", "b"), ("b",), 0.0)
    assert losses[0].elapsed_s > 0
    shutil.rmtree(tmp_path / "ck")
    code, told, stage = advised("wait", ends, back=True)
    assert (code, [widths for widths, _, _ in stage.seen]) == (0, [(2, 1), (2, 1)])
    assert told[4] == "waiting for up to 0 s for others in the place of those that were lost"
    code, told, stage = advised("wait", ends)
    assert (code, [widths for widths, _, _ in stage.seen]) == (0, [(2, 1), (1, 1)])
    assert told[5] == "no others came within 0 s"
    with pytest.raises(RunError, match="--it"):
        advised("move", command="rent --it")
    logged = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert logged[-1]["decision"] == "move, since it is cheaper"


def test_a_run_goes_on_where_nothing_is_decided(job):
    def knows_nothing(loss: Loss) -> Advice:
        raise InputError("the deadline has been over for 2 h")

    code, told, _ = played(replace(job, advisor=knows_nothing), loses_b, ends)
    assert code == 0
    assert told[3] == (
        "nothing is decided, and the run goes on with the hosts that are left: the deadline has been over for 2 h"
    )

    def fails(scene: Scene) -> Left:
        return Left((1, 0))  # a rank's own fault: no host is lost, nobody is asked

    code, told, _ = played(replace(job, advisor=knows_nothing), fails, ends)
    assert (code, [line for line in told if "decid" in line]) == (0, [])


def test_ctrl_c_while_ranks_stop_for_other_widths_ends_the_run_there_and_no_restart_follows_one(job):
    told_at: list[int] = []

    def stopped(scene: Scene) -> Left | None:
        if scene.told:
            if told_at and scene.polls > told_at[0] + 2:
                assert scene.told == [RESIZED_BY]  # a second signal would end them in the middle of the step
                return Left((WIDER, WIDER))
            if not told_at:
                told_at.append(scene.polls)
                os.kill(os.getpid(), signal.SIGINT)
            return None
        scene.keep_checkpoint(10)
        scene.stage.there.add("b")
        return None

    code, _, stage = played(job, loses_b, stopped)
    assert (code, stage.plays) == (130, [])

    def interrupted_twice(scene: Scene) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(RunKilledError) as killed:
        played(job, interrupted_twice)
    assert killed.value.exit_code == 143

    def interrupted(scene: Scene) -> Left:
        left = loses_b(scene)
        os.kill(os.getpid(), signal.SIGINT)
        return left

    with pytest.raises(RunError, match="'b'"):
        played(job, interrupted)


def test_hosts_too_few_for_the_stages_or_the_least_end_the_run_with_what_is_missing(job):
    def loses_a(scene: Scene) -> Left:
        scene.stage.there.discard("a")
        return Left((255, 1), ("a",), RunError("'a' is gone"))

    with pytest.raises(RunError, match=r"\b1\b slot.*\b2\b"):
        played(job, loses_a)
    with pytest.raises(RunError, match=r"--elastic 2:2.*\b2\b.*\b1\b"):
        played(job, loses_b, limits=replace(QUICK, elastic=(2, 2)))


def test_a_host_that_is_taken_away_leaves_and_stays_where_it_cannot_be_spared(job):
    def without(name: str) -> Play:
        def play(scene: Scene) -> Left | None:
            scene.keep_checkpoint(5)
            scene.stage.there.discard(name)
            return Left((WIDER, WIDER)) if scene.told else Left((0, 0)) if scene.polls > 3 else None

        return play

    code, told, stage = played(job, without("b"), ends)
    assert (code, stage.seen[1]) == (0, ((1, 1), (("a", 2),), True))
    assert told[0].startswith("b left: replicas 2, 1 on 2 hosts (a=2, b=1) until ")
    code, told, stage = played(job, without("a"))
    assert (code, len(stage.seen)) == (0, 1)
    assert told == ["a left, and 1 slots for 2 processes: the run goes on with the hosts that it has"]


def test_an_elastic_run_is_resized_to_hosts_that_answer(job):
    answers: list[str] = []

    def ask() -> None:
        try:
            answers.append(request_resize(job.options.checkpoint, Resize(None, {"replicas": (1, 1)})))
        except RunError as error:
            answers.append(str(error))

    def asked(scene: Scene) -> Left | None:
        scene.keep_checkpoint(5)
        scene.stage.there = {"b"}  # which alone cannot take it
        if scene.polls == 1:
            thread.start()
        return None if not answers else Left((0, 0))

    thread = threading.Thread(target=ask)
    code, _, stage = played(job, asked)
    thread.join()
    assert (code, len(stage.seen)) == (0, 1)
    assert answers == ["the run goes on as it is: 1 slots for 2 processes"]


def test_a_restart_waits_for_ranks_that_still_hold_the_checkpoints(job):
    def holds(scene: Scene) -> Left:
        held.enter_context(holding_checkpoints(job.options.checkpoint))
        return loses_b(scene)

    def say(text: str) -> int:
        told.append(text)
        if "still holds" in text:
            held.close()
        return len(text)

    Path(job.options.checkpoint or "").mkdir()
    held, told, stream = ExitStack(), [], io.StringIO()
    stream.write = say  # type: ignore[method-assign]
    stage = Stage(holds, ends)
    stage.patience_s = 60.0
    stage._stream = stream
    assert drive(stage, Dealt(job.options, job.prepared, ()), QUICK).code == 0
    assert told[2] == "waiting until ranks that were cut off have ended: one still holds the checkpoints\n"
    assert told[3].startswith("restart 1 of 2, from step-000005: ")


def test_after_as_many_restarts_as_are_allowed_a_fault_that_ranks_have_printed_is_the_exit_code(job):
    code, told, stage = played(job, *[lambda _: Left((1, 0))] * 3)
    assert (code, [widths for widths, _, _ in stage.seen]) == (1, [(2, 1)] * 3)
    assert (told[0], told[-1]) == ("restart 1 of 2, from the beginning", "no further restart: 2 of 2 are done")


def test_a_restart_without_elastic_waits_for_all_hosts_and_keeps_the_widths(job):
    def comes_back(scene: Scene) -> Left:
        return Left((1, 255), ("b",), RunError("'b' is gone"))

    in_place = replace(QUICK, elastic=None)
    code, _, stage = played(job, comes_back, ends, limits=in_place)
    assert (code, [widths for widths, _, _ in stage.seen]) == (0, [(2, 1), (2, 1)])
    with pytest.raises(RunError, match=r"\b0\b"):
        played(job, loses_b, limits=in_place)


def test_a_request_is_answered_and_what_does_not_fit_is_refused(job):
    answers: list[str] = []

    def ask() -> None:
        for replicas in ((3, 1), (1, 1)):
            try:
                answers.append(request_resize(job.options.checkpoint, Resize(None, {"replicas": replicas})))
            except RunError as error:
                answers.append(str(error))

    def asked(scene: Scene) -> Left | None:
        if not scene.told:
            scene.keep_checkpoint(5)
            if not thread.is_alive() and not answers:
                thread.start()
            return None
        return Left((WIDER, WIDER))

    thread = threading.Thread(target=ask)
    code, told, stage = played(job, asked, lambda scene: thread.join() or ends(scene), limits=Limits())
    assert code == 0
    assert answers == [
        "the run goes on as it is: 3 slots for 4 processes",
        "replicas 2, 1 until this step is done, then 1, 1",
    ]
    assert stage.seen[1] == ((1, 1), (("a", 2),), True)
    assert told[0].startswith("resized: replicas 2, 1 until this step is done, then replicas 1, 1 on 1 host (a=2)")


class Here(Stage):
    """A machine without a choice of hosts, whose ranks can be stopped while they begin."""

    stops_at_once = True
    listed = Machines.listed
    fill = Machines.fill


@pytest.mark.parametrize("weights", [None, "/before/step-000001"])
def test_a_restart_before_the_first_checkpoint_continues_in_the_log_and_keeps_the_weights_it_began_with(job, weights):
    tried: list[RunOptions] = []

    def fails(scene: Scene) -> Left:
        tried.append(scene.run.options)
        return Left((1,), error=RunError("rank 0 was killed"))

    here = Here(fails, fails)
    options = replace(job.options, weights=weights)
    with pytest.raises(RunError, match=r"rank 0\b"):
        drive(here, Dealt(options, job.prepared, ()), Limits(max_restarts=1))
    said = ["rank 0 was killed", "restart 1 of 1, from the beginning", "no further restart: 1 of 1 are done"]
    assert here._stream.getvalue().splitlines() == said
    assert [(one.resume, one.weights) for one in tried] == [(False, weights), (weights is None, weights)]


@pytest.mark.parametrize("which", [{"averaged": True}, {"block": 1}])
def test_a_restart_from_a_checkpoint_leaves_the_weights_and_which_of_them_that_the_run_began_with(job, which):
    def fails_after_five_steps(scene: Scene) -> Left:
        scene.keep_checkpoint(5)
        return Left((1,), error=RunError("rank 0 was killed"))

    def goes_on(scene: Scene) -> Left:
        assert scene.run.options == replace(job.options, resume=True)
        return Left((0,))

    options = replace(job.options, weights="/before/step-000001", **which)
    ending = drive(Here(fails_after_five_steps, goes_on), Dealt(options, job.prepared, ()), Limits(max_restarts=1))
    assert ending == Ending(0, restarts=1, changes=0)


@pytest.mark.parametrize("begun", [{}, {"weights": "/before/step-000001", "averaged": True}])
def test_ranks_here_stop_for_other_widths_before_a_checkpoint_and_end_the_run_by_a_signal_of_their_own(job, begun):
    def resized(scene: Scene) -> Left | None:
        if scene.polls == 1:
            thread.start()
        return Left((WIDER,), is_over=True) if scene.told else None

    def stopped(scene: Scene) -> Left:
        thread.join()  # who asked looks for the answer now and then, and it goes with the run
        options = scene.run.options
        goes_on = begun or {"resume": True}
        assert options == replace(job.options, every=None, replicas=(1, 1), batch=options.batch, **goes_on)
        return Left((SIGNALLED + signal.SIGTERM,), is_over=True)  # a rank received it, not this process

    thread = threading.Thread(target=lambda: request_resize(job.options.checkpoint, Resize(None, {"replicas": (1, 1)})))
    here = Here(resized, stopped)
    options = replace(job.options, every=None, **begun)
    ending = drive(here, Dealt(options, job.prepared, ()), Limits(max_restarts=1))
    assert ending == Ending(143, restarts=0, changes=1)
    assert [widths for widths, _, _ in here.seen] == [(2, 1), (1, 1)]
    assert here._stream.getvalue() == "resized: replicas 2, 1 until this step is done, then replicas 1, 1\n"
