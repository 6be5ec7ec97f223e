"""The board of a search: what it says, on any terminal, with any names."""

import io
from dataclasses import replace

import pytest
from search_states import HOSTILE, RECORD, first_trial_runs, searched_state

from heterps_compile.console import make_console
from heterps_compile.fit_lines import cells
from heterps_compile.tuning.board import MOST_ROWS, print_board
from heterps_compile.tuning.search_state import SearchState, state_of


def board(state: SearchState, width: int | None = 100) -> str:
    out = io.StringIO()
    print_board(make_console(out, width), state)
    return out.getvalue()


def fails(trial: int, attempt: int) -> str:
    if trial % 11 == 3:
        return "the trial ended with exit code 1"
    return "worker gpu-1 was lost" if trial % 9 == 1 and attempt == 0 else ""


USUAL = searched_state(fails=fails, resumes_at=20, stop_after=50)
STATES = {
    "usual": USUAL,
    "ended": searched_state(ends="60 trials were run"),
    "one": searched_state(replace(RECORD, trials=1, method="random"), ends="1 trial was run"),
    "first runs": first_trial_runs(),
    "empty": state_of(RECORD, []),
    "all failed": searched_state(fails=lambda _, attempt: f"no loss, attempt {attempt}", ends="too many failed"),
}


def test_the_board_says_how_the_search_stands():
    told = board(USUAL)
    best = USUAL.best
    for line in (
        "trials      45 of 60 finished, 5 running, 5 failed, 5 not yet chosen",
        f"best auc    {best.value:.5g} by trial {best.number}, after 9 epochs on {best.class_name} (more is better)",
        f"checkpoint  trials/{best.number}/checkpoint",
        f"train.lr                      {best.config['train.lr']:.4g}",
        "so far, about ",
        "of 20.00 USD",
    ):
        assert line in told
    for failure in (
        "trials 3, 14, 25, 36, 47 (5 left for good): the trial",
        "(none left for good): worker gpu-1 was lost",
    ):
        assert failure in " ".join(told.split())


def test_many_workers_are_told_by_number():
    record = replace(RECORD, trials=500, classes=(replace(RECORD.classes[0], workers=150),))
    told = board(searched_state(record, stop_after=10))
    assert f"… {149 - MOST_ROWS} more" in told  # the one that ended last has no other trial yet
    assert len(told.splitlines()) < 80


@pytest.mark.parametrize("width", [40, 60, 80, 200])
@pytest.mark.parametrize("name", list(STATES))
def test_every_line_fits_its_terminal(name, width):
    assert [line for line in board(STATES[name], width).splitlines() if cells(line) > width] == []


@pytest.mark.parametrize("width", [40, 100, None])
def test_hostile_names_are_text(width):
    classes = tuple(replace(of, name=name) for of, name in zip(RECORD.classes, HOSTILE[2:4], strict=True))
    record = replace(
        RECORD,
        metric=HOSTILE[6],
        classes=classes,
        parts=HOSTILE[5:7],
        currency=HOSTILE[2],
        space_name=f"{HOSTILE[2]}.toml",
    )
    told = board(searched_state(record, fails=lambda trial, _: HOSTILE[trial % 7] if trial % 5 == 0 else ""), width)
    assert not {"\x1b", "\u202e", "\x00", "\r"} & set(told)
    assert "[bold]" in told
    if width is not None:
        words = max(cells(word) for line in told.splitlines() for word in line.split())
        assert [line for line in told.splitlines() if cells(line) > max(width, words)] == []


@pytest.mark.parametrize("width", [40, 60, 100])
def test_a_long_name_of_a_parameter_leaves_room_for_its_value(width):
    name = "the_width_of_the_hidden_layers_of_the_encoder_in_channels"
    record = replace(
        RECORD, space_text=f"[model]\n{name} = {{ integer = [1, 4] }}", parts=("all",), trials=1, method="random"
    )
    told = board(searched_state(record, value=lambda *_: 0.5, ends="done"), width)
    assert [line for line in told.splitlines() if cells(line) > width] == []
    shown = next(line for line in told.splitlines() if line.startswith("  model.t"))
    assert shown.endswith("channels  " + shown[-1])
    assert shown[-1] in "1234"


def test_a_torn_journal_is_told():
    assert "half a line at the end of the journal" in " ".join(board(replace(USUAL, is_torn=True)).split())
    assert "half a line" not in board(USUAL)


def test_a_shorter_trial_with_a_better_value_is_told():
    state = searched_state(value=lambda config, fidelity: float(config["train.lr"]) - fidelity, ends="done")
    told = " ".join(board(state).split())
    best = max((trial for trial in state.trials), key=lambda trial: trial.value)
    assert f"shorter {best.value:.5g} by trial {best.number}, after 1 epoch, has a better value" in told
    assert "has a better value" not in board(USUAL)
