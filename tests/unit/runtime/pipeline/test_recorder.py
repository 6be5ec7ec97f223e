"""What is told of a run is told to those who hear it, and to nobody else."""

from heterps_compile.runtime.launch.progress import ProgressRecorder
from heterps_compile.runtime.pipeline.recorder import Recorders, listener

EVENTS = ("begin", "end", "message", "waited", "step_done")


class Waits(Recorders):
    """Hears of waits."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[int, str, float, float]] = []

    def waited(self, step: int, what: str, began_s: float, ended_s: float) -> None:
        self.told.append((step, what, began_s, ended_s))


def test_where_nobody_hears_nothing_is_called():
    assert [listener(Recorders(), event) for event in EVENTS] == [None] * 5
    assert [event for event in EVENTS if listener(Recorders([Waits(), Recorders()]), event)] == ["waited"]


def test_one_who_hears_is_called_itself():
    alone = Waits()
    assert listener(Recorders([Recorders([alone])]), "waited") == alone.waited


def test_all_who_hear_are_told_in_order():
    first, second = Waits(), Waits()
    call = listener(Recorders([first, ProgressRecorder(), second]), "waited")
    assert call is not None
    call(3, "receive", 1.0, 2.0)
    assert first.told == second.told == [(3, "receive", 1.0, 2.0)]


def test_who_watches_progress_hears_of_actions_alone():
    assert [event for event in EVENTS if listener(ProgressRecorder(), event)] == ["begin", "end"]
