"""Any place of a plan file with any other value: every command ends well, and no screen gets it as it is."""

import contextlib
import io
import json
from copy import deepcopy
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from large_plan import large_findings

from heterps_compile.cli.main import run
from heterps_compile.plan.file import to_json
from heterps_compile.plan.plan import PoolDevice

EVIL = "\x1b[31m\u202e\n::error::x</script><script>document.title=1</script><img src=x onerror=y>](x)"
POOL = tuple(PoolDevice(name, kind, 2.42, 64, 2.0**35) for name, kind in (("v100", "gpu"), ("cpu-core", "cpu")))


def plan_text() -> str:
    """Return a plan of two stages whose every number follows from the others."""
    return to_json(replace(large_findings(6, 2, training=True).plan, devices=POOL, other=None))


PLAN = json.loads(plan_text())


def places(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Return the path of everything in a document, the whole of it left out."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, part in inner for place in ((*path, key), *places(part, (*path, key)))]


VALUES = st.sampled_from(
    ["", EVIL, "cpu-core", "1f1b", "5 GiB", -1, 0, 1, 7, 2**62, 1e300, 1e-300, True, None, [], {}, [EVIL], {EVIL: EVIL}]
)
COMMANDS = (
    ["show", "-v", "f.json"],
    ["show", "--json", "f.json"],
    ["simulate", "f.json", "--json", "--allow-stale", "--trace", "f.trace"],
    ["simulate", "f.json"],
    ["diff", "plan.json", "f.json"],
    ["diff", "f.json", "plan.json", "--format", "markdown"],
    ["diff", "plan.json", "f.json", "--format", "github", "--report", "f.html"],
)


class Tags(HTMLParser):
    """Collects the tags, and the names of attributes that would run something."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen += [tag, *(name for name, _ in attrs if name.startswith("on"))]


@pytest.fixture(scope="module", autouse=True)
def _here(tmp_path_factory):
    with contextlib.chdir(tmp_path_factory.mktemp("plans")):
        Path("plan.json").write_text(plan_text(), "ascii")
        yield


@given(st.sampled_from(places(PLAN)), VALUES)
def test_every_command_ends_well_whatever_stands_in_the_plan(place, value):
    document = deepcopy(PLAN)
    part = document
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    Path("f.json").write_text(json.dumps(document), "ascii")
    Path("f.html").unlink(missing_ok=True)
    for words in COMMANDS:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run(words)
        assert code in (0, 1, 2)
        assert "This is a bug" not in err.getvalue(), (words, err.getvalue())
        shown = (out.getvalue() + err.getvalue()).splitlines()
        assert [line for line in shown if not line.isprintable()] == []
        assert sum(line.startswith("::error::x") for line in shown) == 0
        if code and words[0] == "show":
            assert err.getvalue().startswith("Error: f.json")
    if Path("f.html").exists():
        seen = Tags(Path("f.html").read_text("utf-8")).seen
        assert seen.count("script") == 2
        assert [tag for tag in seen if tag == "img" or tag.startswith("on")] == []
