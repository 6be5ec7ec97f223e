"""Time the report of a large plan: making the page, and drawing it in Chromium by the browser's own clock.

python tools/bench_report.py [LAYERS [STAGES]]
"""

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import browser
from large_plan import large_findings

from heterps_compile.report.html import html_report

ROUNDS = 5
LOADED = (
    "const entry = performance.getEntriesByType('navigation')[0]; return [entry.domInteractive, entry.loadEventStart]"
)
DRAWN = (
    "const began = performance.now(); document.body.style.width = '99%'; document.body.getBoundingClientRect();"
    "return performance.now() - began"
)


def main(layers: int = 1500, stages: int = 12) -> None:
    found = large_findings(layers, stages, training=True)
    began = time.perf_counter()
    page = html_report(found)
    print(
        f"{layers:,} layers, {stages} stages: {len(page.encode()) / 1e6:.2f} MB in {time.perf_counter() - began:.2f} s"
    )
    if browser.missing():
        print(browser.missing())
        return
    with tempfile.TemporaryDirectory() as folder, browser.browser(Path(folder)) as window:
        file = Path(folder, "page.html")
        file.write_text(page, "utf-8")
        for _ in range(ROUNDS):
            window.open(file)
            parsed_ms, loaded_ms = window.run(LOADED)
            drawn_ms = window.run(DRAWN)
            print(f"parsed {parsed_ms:5.0f} ms, loaded {loaded_ms:5.0f} ms, laid out anew {drawn_ms:5.0f} ms")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
