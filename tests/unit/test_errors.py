"""What a command leaves with follows from the error alone."""

import signal

from heterps_compile.errors import HeterpsError, RunError, RunKilledError


def test_an_error_is_exit_code_1_and_a_signal_that_of_shells():
    assert HeterpsError("no").exit_code == RunError("no").exit_code == 1
    assert RunKilledError("twice", signal.SIGINT).exit_code == 130
    assert RunKilledError("twice", signal.SIGTERM).exit_code == 143
