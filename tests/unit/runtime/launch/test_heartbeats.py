"""A thread that hangs is noticed by another."""

import threading

from heterps_compile.runtime.launch.heartbeats import WatchdogTimer

PATIENCE_S = 30.0


def test_silence_is_noticed():
    rang = threading.Event()
    WatchdogTimer(0.25, rang.set).start()
    assert rang.wait(PATIENCE_S)


def test_every_word_begins_the_count_anew(monkeypatch):
    """Two counts without a word are silence; here somebody speaks after every single one, until told to stop."""
    rings, counts = [], []
    alarm = WatchdogTimer(1.0, lambda: rings.append("rang"), count_every_s=1.0)

    def count(_seconds):
        alarm.restart()
        counts.append("counted")
        return len(counts) > 5

    monkeypatch.setattr(alarm._over, "wait", count)
    alarm._run()
    assert (len(counts), rings) == (6, [])
