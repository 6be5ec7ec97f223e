"""Notices that a thread has gone silent: it hangs in a call that nothing ends.

The watcher of a rank asks the run's store, which lies on the first host. Where the network to it breaks, the answer
never comes, and no time limit of the store's client ends the wait.

Left out: what is done about it (``watch.py``).
"""

import threading
from collections.abc import Callable

_LOOK_S = 0.25


class SilenceAlarm:
    """Calls somebody, from a thread of its own, where it has not been told for a while that all is well."""

    def __init__(self, after_s: float, on_silence: Callable[[], object]) -> None:
        """Set up; :meth:`start` begins.

        Args:
            after_s: Seconds of silence; those in which this process itself was stopped do not count.
            on_silence: Called once.
        """
        self._looks = max(1, round(after_s / _LOOK_S))
        self._on_silence = on_silence
        self._left = self._looks
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="silence", daemon=True)

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def all_is_well(self) -> None:
        """Begin to count anew."""
        self._left = self._looks

    def stop(self) -> None:
        """Listen no longer."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(_LOOK_S):
            self._left -= 1
            if self._left < 0:
                self._on_silence()
                return
