"""A thread that hangs is noticed by another."""

import threading

from heterps_compile.runtime.launch.silence import SilenceAlarm

PATIENCE_S = 30.0


def test_silence_is_noticed():
    rang = threading.Event()
    SilenceAlarm(0.25, rang.set).start()
    assert rang.wait(PATIENCE_S)


def test_every_word_begins_the_count_anew(monkeypatch):
    """Two looks without a word are silence; here somebody speaks after every single one, until told to stop."""
    monkeypatch.setattr("heterps_compile.runtime.launch.silence._LOOK_S", 1.0)
    rings, looks = [], []
    alarm = SilenceAlarm(1.0, lambda: rings.append("rang"))

    def look(_seconds):
        alarm.all_is_well()
        looks.append("looked")
        return len(looks) > 5

    monkeypatch.setattr(alarm._over, "wait", look)
    alarm._run()
    assert (len(looks), rings) == (6, [])
