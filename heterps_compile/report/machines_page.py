"""The page of ``machines --pareto``: what was chosen and why in sentences, and money against time as a picture.

It fetches nothing and runs nothing; all text in it is escaped.
"""

from html import escape

from heterps_compile.escape import printable
from heterps_compile.machines.machines_words import told
from heterps_compile.machines.search import Answer

from .pictures.machine_front import machine_front
from .pictures.svg import STYLE

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_PAGE_STYLE = (
    ":root{color-scheme:light dark}body{font:15px system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem}"
    "svg{max-width:100%;height:auto}"
)


def machines_page(answer: Answer) -> str:
    """Write the page."""
    lines = "".join(f"<p>{escape(printable(line))}</p>\n" for line in (*told(answer), *answer.notes))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Machines</title>\n<style>{STYLE}{_PAGE_STYLE}</style>\n</head>\n<body>\n<h1>Machines</h1>\n{lines}"
        f"<h2>Money against time</h2>\n{machine_front(answer).element}\n</body>\n</html>\n"
    )
