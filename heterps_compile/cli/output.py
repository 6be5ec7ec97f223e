"""What a command may write where: its result alone on stdout, progress and other people's chatter on stderr.

Left out: what the result looks like (``report/``).
"""

import errno
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import TextIO

import click

from heterps_compile.errors import InputError
from heterps_compile.escape import printable
from heterps_compile.fit_lines import fit_lines, terminal_width
from heterps_compile.logger import CHOSEN, LOG
from heterps_compile.progress import Progress

_STDOUT = 1  # the descriptor that C libraries write to
_ERASE_LINE = "\r\x1b[K"
_SUMMARY = "GITHUB_STEP_SUMMARY"  # names the file that a GitHub runner shows as the summary of a step


@contextmanager
def result_stream() -> Iterator[TextIO]:
    """Yield a stream onto stdout that nothing else writes to.

    Whatever else is written to stdout meanwhile, from Python or from a C library, lands on stderr.
    """
    shared = sys.stdout
    try:
        own, original, elsewhere = os.dup(shared.fileno()), os.dup(_STDOUT), sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):  # closed, or a stand-in that lives in memory
        with redirect_stdout(sys.stderr), open(os.devnull, "w", encoding="utf-8") as nowhere:
            yield shared or nowhere
        return
    shared.flush()
    stream = open(own, "w", encoding=shared.encoding, errors="backslashreplace")  # noqa: SIM115 - see its close
    try:
        os.dup2(elsewhere, _STDOUT)
        with redirect_stdout(sys.stderr):
            yield stream
        stream.flush()
    finally:
        os.dup2(original, _STDOUT)
        os.close(original)
        with suppress(OSError):  # what cannot be written has failed once, above or in the block
            stream.close()


@contextmanager
def printing(what: str) -> Iterator[None]:
    """Tell what could not be printed where stdout takes no more, a full disk for one.

    Raises:
        InputError: with the reason; a closed pipe stays what it is, for click to end quietly.
    """
    try:
        yield
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise
        raise InputError(f"cannot print {what}: {error.strerror}") from error


@contextmanager
def quiet_libraries(*, verbose: bool) -> Iterator[None]:
    """Keep libraries' warnings off the screen, unless verbose or Python was told to show them (``-W``)."""
    with warnings.catch_warnings():
        if not verbose and not sys.warnoptions:
            warnings.simplefilter("ignore")
        yield


def write_shown(stream: TextIO, form: str, shown: str) -> None:
    """Write a result in one of the formats of a review: only ``text`` is for a terminal, and fits it."""
    stream.write(fit_lines(shown, terminal_width(stream)) if form == "text" else shown)
    stream.flush()


def tell(text: str) -> None:
    """Print words on stderr, broken where it is a terminal."""
    click.echo(fit_lines(text, terminal_width(sys.stderr)), err=True)


@contextmanager
def telling_defaults() -> Iterator[None]:
    """Print on stderr, once each, the numbers that are chosen for free dimensions in the block."""
    handler, level = _Defaults(), LOG.level
    LOG.addHandler(handler)
    LOG.setLevel(min(logging.INFO, LOG.getEffectiveLevel()))
    try:
        yield
    finally:
        LOG.setLevel(level)
        LOG.removeHandler(handler)


class _Defaults(logging.Handler):
    """Prints messages of one form, each once."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._told: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if record.msg == CHOSEN and message not in self._told:
            self._told.add(message)
            tell(f"{_ERASE_LINE if sys.stderr.isatty() else ''}{message}")


class ProgressLine:
    """Status line on a terminal; silent without one."""

    def __init__(self, stream: TextIO | None, *, wanted: bool) -> None:
        self._stream = stream if wanted and stream is not None and stream.isatty() else None

    def show(self, progress: Progress) -> None:
        """Say what is being done."""
        if self._stream is not None:
            width = terminal_width(self._stream) or 80
            self._stream.write(_ERASE_LINE + _in_words(progress)[: width - 1])
            self._stream.flush()

    def close(self) -> None:
        """Erase the line, before anything else is printed; it may be shown again."""
        if self._stream is not None:
            self._stream.write(_ERASE_LINE)
            self._stream.flush()


def _in_words(now: Progress) -> str:
    """Say how far the work is: ``[4/9] place-layers: proving, best 1.68, bound 1.52, 12 s …``."""
    told = [printable(now.message)] if now.message else []
    if now.fraction is not None:
        told.append(f"{100 * now.fraction:.0f} %")
    if now.message:  # what a search has found is of no use where nothing searches
        told += [
            f"{name} {value:.4g}" for name, value in (("best", now.best), ("bound", now.bound)) if value is not None
        ]
    if now.elapsed_s >= 1:
        told.append(f"{now.elapsed_s:.0f} s")
    return f"[{now.done}/{now.total}] {printable(now.step)}{': ' if told else ''}{', '.join(told)} …"


def append_summary(markdown: str) -> None:
    """Append to the summary of a GitHub workflow's step; do nothing where no runner asks for one.

    Raises:
        InputError: where the file cannot be written.
    """
    target = os.environ.get(_SUMMARY)
    if not target:
        return
    try:
        with Path(target).open("a", encoding="utf-8") as file:
            file.write(markdown + "\n")
    except OSError as error:
        raise InputError(f"cannot write the step summary {target!r} ({_SUMMARY}): {error.strerror}") from error


def check_file_target(output: str) -> None:
    """Check, before long work, that a file can be written where it is asked for.

    Raises:
        InputError: where it is a folder, or in none.
    """
    target = Path(output)
    if target.is_dir():
        raise InputError(f"{output!r} is a folder; name the file to write (-o FILE)")
    if not target.resolve().parent.is_dir():
        raise InputError(f"the folder of {output!r} does not exist; make it, or name another file (-o FILE)")
