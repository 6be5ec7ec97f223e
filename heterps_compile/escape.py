"""Names from a model as harmless text: in a terminal, in Markdown.

A model file is hostile input, and its names are data. Whatever prints one sends it through here first, so that a
name can neither move the cursor, nor forge a line of output, nor start a heading, a link or a tag.

Left out: JSON (``json`` escapes everything outside printable ASCII by itself), HTML, source code (``repr``).
"""

import re
from collections.abc import Callable

# Markup anywhere, what makes a list or heading at the start, and what GitHub turns into links and formulas.
_MARKDOWN = re.compile(r"[\\`*_\[\]#|~@$]|^[-+=]|(?<=^\d)[.)]|(?<=:)//|(?<=www)\.")

_SHOWN = 60

Escape = Callable[[str], str]
"""What makes a name harmless where it is shown: one of the functions below."""


def printable(text: str) -> str:
    r"""Return the text on one line, with an escape such as ``\x1b`` for every character that is not printable.

    Printable is what ``str.isprintable`` says: no control characters, no line ends, no marks that turn the
    direction of writing around, no lone surrogates.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def one_line(text: str) -> str:
    """Return a message of several lines as one printable line, its lines joined by spaces."""
    return printable(" ".join(part for line in text.splitlines() if (part := line.strip())))


def shorten(text: str, width: int) -> str:
    """Cut the middle out of a text longer than ``width`` characters: the ends of a name tell the most."""
    if len(text) <= width:
        return text
    head = (width - 1) // 2
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def short(value: object) -> str:
    """Print a value that somebody wrote for a message, however long it is."""
    try:
        text = repr(value)
    except ValueError:  # digits beyond what Python prints
        return "a number of very many digits"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def for_markdown(text: str) -> str:
    """Return the text so that Markdown shows it as it is: one line, no markup, no HTML."""
    escaped = _MARKDOWN.sub(r"\\\g<0>", printable(text))
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
