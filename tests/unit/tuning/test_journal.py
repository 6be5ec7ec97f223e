"""The journal of a search: what is written is read again, and what is no journal is refused with its line."""

from dataclasses import replace
from pathlib import Path

import pytest

from heterps_compile.errors import InputError
from heterps_compile.tuning.compute_classes import ComputeClass
from heterps_compile.tuning.journal import (
    JOURNAL_FILE,
    MOST_LINE_BYTES,
    Asked,
    Ended,
    Event,
    Failed,
    JournalWriter,
    Misfit,
    Nothing,
    Reported,
    Resumed,
    Started,
    Told,
    read_journal,
)
from heterps_compile.tuning.search_record import SearchRecord, read_record, write_record
from heterps_compile.tuning.search_state import FAILED, RUNNING, TOLD, WAITING, read_search, state_of

RECORD = SearchRecord(
    space_name="space.toml",
    space_text="[train]\nlr = 1\n",
    method="random",
    metric="auc",
    is_maximised=True,
    least=1.0,
    most=9.0,
    unit="steps",
    eta=3,
    seed=0,
    trials=10,
    rule="cost",
    classes=(ComputeClass("fast", 1, 1e9, 0.5, 1e9, 2), ComputeClass("slow", 2, 1e9, 0.1, 1e8, 1)),
    parts=("all",),
    budget=None,
    currency="USD",
    time_limit_s=None,
    retries=1,
    engine="local",
    arguments={"train": "train.py"},
)


def asked(trial: int, at_s: float = 0.0, *, fidelity: float = 9.0, continues: int | None = None) -> Asked:
    return Asked(
        at_s=at_s,
        trial=trial,
        part=0,
        class_name="slow",
        config={"train.lr": 0.5, "model.deep": True, "model.depth": 3, "model.act": "re\x1blu"},
        fidelity=fidelity,
        continues=continues,
        predicted_s=2.0,
    )


def started(trial: int, at_s: float = 0.0, attempt: int = 0) -> Started:
    return Started(at_s=at_s, trial=trial, attempt=attempt, worker="slow-1")


def told(trial: int, value: float, at_s: float = 0.0) -> Told:
    return Told(at_s=at_s, trial=trial, value=value, checkpoint=f"trials/{trial}/checkpoint")


def failed(trial: int, *, is_left: bool) -> Failed:
    return Failed(at_s=0.0, trial=trial, reason="it broke", is_left=is_left)


EVERY_EVENT: list[Event] = [
    asked(0, 0.5),
    started(0, 1.0),
    Reported(at_s=2.0, trial=0, fidelity=3.0, value=-0.5),
    told(0, 0.75, 3.0),
    Nothing(at_s=3.0, class_name="fast", reason="the budget does not last"),
    Misfit(at_s=3.5, config={"train.lr": 1.0}, reason="it fits no class"),
    Ended(at_s=4.0, why="it was interrupted"),
    Resumed(at_s=4.0, trials=12),
]


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_record(tmp_path, RECORD)
    assert read_record(tmp_path) == RECORD


def test_a_journal_is_read_as_it_was_written(tmp_path: Path) -> None:
    _write(tmp_path, EVERY_EVENT)
    found = read_journal(tmp_path)
    assert list(found.events) == EVERY_EVENT
    assert not found.is_torn
    assert found.size_bytes == (tmp_path / JOURNAL_FILE).stat().st_size


def test_half_a_line_at_the_end_is_dropped_and_told_and_what_follows_is_written_over_it(tmp_path: Path) -> None:
    write_record(tmp_path, RECORD)
    _write(tmp_path, [asked(0)])
    with (tmp_path / JOURNAL_FILE).open("ab") as file:
        file.write(b'{"at_s":1,"trial":0,"att')
    torn = read_journal(tmp_path)
    assert (len(torn.events), torn.is_torn, read_search(tmp_path).is_torn) == (1, True, True)
    writer = JournalWriter(tmp_path, torn.size_bytes)
    writer.add(started(0))
    writer.close()
    assert list(read_journal(tmp_path).events) == [asked(0), started(0)]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b"{}", "discriminator 'event'"),
        (b"[]", "Input should be an object"),
        (b'{"event":"bought","at_s":1}', "'bought' found using 'event'"),
        (b'{"event":"ended","at_s":NaN,"why":""}', "at_s: Input should be a finite number"),
        (b'{"event":"ended","at_s":-1,"why":""}', "at_s: Input should be greater than or equal to 0, not -1"),
        (b'{"event":"ended","at_s":1}', "ended.why: the key is missing"),
        (b'{"event":"ended","at_s":1,"why":"","more":1}', "ended.more: unknown key"),
        (
            b'{"event":"ended","at_s":1,"why":"' + b"x" * 2001 + b'"}',
            "ended.why: String should have at most 2000 characters",
        ),
        (b'{"event":"resumed","at_s":1,"trials":true}', "resumed.trials: Input should be a valid integer, not True"),
        (b'{"event":"misfit","at_s":1,"reason":"","config":{"a":[1]}}', "misfit.config.a"),
        (b"[" * 10_000, "Invalid JSON"),
        (b'"' + b"x" * MOST_LINE_BYTES, "has more than 262,144 bytes"),
    ],
)
def test_a_line_that_is_no_event_is_refused_with_its_number(tmp_path: Path, line: bytes, fault: str) -> None:
    _write(tmp_path, [asked(0)])
    with (tmp_path / JOURNAL_FILE).open("ab") as file:
        file.write(line + b"\n")
    with pytest.raises(InputError) as error:
        read_journal(tmp_path)
    assert "line 2" in str(error.value)
    assert fault in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ('"trials": 10', '"trials": 0'),
        ('"unit": "steps"', '"unit": "hours"'),
        ('"least": 1.0', '"least": 10.0'),
        ('"name": "slow"', '"name": "fast"'),
        ('"workers": 2', '"workers": 100001'),
        ('"schema": 2', '"schema": 1'),
        ('"eta": 3', '"eta": 3, "more": 1'),
        ('"eta": 3', '"eta": '),
    ],
)
def test_a_record_that_is_none_is_refused_in_one_line(tmp_path: Path, change: str, fault: str) -> None:
    write_record(tmp_path, RECORD)
    path = tmp_path / "search.json"
    text = path.read_text()
    assert change in text
    path.write_text(text.replace(change, fault))
    with pytest.raises(InputError, match=r"search\.json") as error:
        read_record(tmp_path)
    assert "\n" not in str(error.value)


def test_a_folder_without_a_record_is_none_of_a_search(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        read_search(tmp_path)


def test_the_state_follows_the_events() -> None:
    def statuses(*events: Event) -> list[str]:
        return [trial.status for trial in state_of(RECORD, events).trials]

    assert statuses(asked(0)) == [WAITING]
    assert statuses(asked(0), started(0)) == [RUNNING]
    assert statuses(asked(0), started(0), told(0, 0.5)) == [TOLD]
    assert statuses(asked(0), started(0), failed(0, is_left=False)) == [WAITING]
    assert statuses(asked(0), started(0), failed(0, is_left=True)) == [FAILED]
    assert statuses(asked(0), started(0), Resumed(at_s=9.0, trials=10)) == [WAITING]
    assert statuses(asked(0), started(0), Ended(at_s=9.0, why="Ctrl-C")) == [WAITING]


def test_a_second_attempt_begins_its_curve_anew_and_keeps_the_reason_of_the_first() -> None:
    first = [asked(0), started(0), Reported(at_s=0, trial=0, fidelity=1, value=0.5), failed(0, is_left=False)]
    second = [started(0, 1.0, 1), Reported(at_s=2, trial=0, fidelity=3, value=0.6), told(0, 0.6, 3.0)]
    (trial,) = state_of(RECORD, [*first, *second]).trials
    assert trial.curve == ((3.0, 0.6),)
    assert [attempt.reason for attempt in trial.attempts] == ["it broke", ""]
    assert (trial.attempts[1].started_at_s, trial.attempts[1].ended_at_s) == (1.0, 3.0)


def test_what_is_cut_off_ends_with_the_last_event_before() -> None:
    state = state_of(RECORD, [asked(0), started(0, 1.0), asked(1, 5.0), Resumed(at_s=7.0, trials=10)])
    assert state.trials[0].attempts[0].ended_at_s == 5.0


def test_the_best_is_the_best_of_the_longest() -> None:
    def best(record: SearchRecord) -> int:
        events: list[Event] = []
        for trial, (fidelity, value) in enumerate([(9.0, 0.7), (9.0, 0.8), (3.0, 0.9)]):
            events += [asked(trial, fidelity=fidelity), started(trial), told(trial, value)]
        found = state_of(record, events).best
        assert found is not None
        return found.number

    assert best(RECORD) == 1
    assert best(replace(RECORD, is_maximised=False)) == 0


@pytest.mark.parametrize(
    ("events", "fault"),
    [
        ([asked(1)], "line 1: trial 1 is asked for where trial 0 is the next"),
        ([started(0)], "line 1: trial 0 was never asked for"),
        ([asked(0), told(0, 1)], "line 2: trial 0 is waiting, where it should be running"),
        ([asked(0), started(0, attempt=1)], "line 2: attempt 1 at trial 0 follows 0 others"),
        ([asked(0, 5.0), started(0, 4.0)], "line 2: it is of 4 s, and the line before it of 5 s"),
        ([asked(0), asked(1, continues=0)], "line 2: trial 0 is waiting, where it should be told or failed"),
        ([replace(asked(0), class_name="none")], "line 1: 'none' is no class of the search"),
        ([replace(asked(0), part=1)], "line 1: trial 0 is of part 1, and there are 1"),
        ([asked(0), replace(started(0), worker="fast-0")], "line 2: 'fast-0' is no worker of class 'slow'"),
        ([Ended(at_s=0, why="x"), asked(0)], "line 2: the search had ended"),
        ([asked(0), Resumed(at_s=0, trials=0)], "line 2: 0 trials are wanted in all, and 1 were asked for"),
        (
            [asked(0), started(0), replace(told(0, 1), checkpoint="../../etc")],
            "line 3: the checkpoint '../../etc' does not lie below the folder of the search",
        ),
    ],
)
def test_events_that_cannot_follow_are_refused_with_their_line(events: list[Event], fault: str) -> None:
    with pytest.raises(InputError) as error:
        state_of(RECORD, events)
    assert fault in str(error.value)


def _write(folder: Path, events: list[Event]) -> None:
    writer = JournalWriter(folder, 0)
    for event in events:
        writer.add(event)
    writer.close()
