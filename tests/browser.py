"""A headless Chromium, driven over the W3C WebDriver protocol; no more of it than the tests need."""

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key under which the protocol names elements
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")


def missing() -> str:
    """Say what is not installed; "" where all is."""
    absent = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"{' and '.join(absent)} not installed (Debian: apt install chromium chromium-driver)" if absent else ""


class Browser:
    """A window."""

    def __init__(self, port: int, options: dict[str, Any]) -> None:
        self._root = f"http://127.0.0.1:{port}"
        reply = self._send("POST", "/session", {"capabilities": {"alwaysMatch": options}})
        self._root += f"/session/{reply['sessionId']}"

    def _send(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._root + path, data, {"Content-Type": "application/json"}, method=method)  # noqa: S310 - loopback
        try:
            with urllib.request.urlopen(request, timeout=120) as reply:  # noqa: S310 - as above
                return json.load(reply)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(json.load(error)["value"]["message"]) from error

    def open(self, page: Path) -> None:
        self.visit(page.resolve().as_uri())

    def visit(self, address: str) -> None:
        self._send("POST", "/url", {"url": address})

    def run(self, script: str, *arguments: Any) -> Any:
        """Run JavaScript; give what it returns."""
        return self._send("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def run_until_done(self, script: str, *arguments: Any) -> Any:
        """Run JavaScript, whose last argument is a function that it calls with what is to be returned."""
        self._send("POST", "/timeouts", {"script": 110_000})
        return self._send("POST", "/execute/async", {"script": script, "args": list(arguments)})

    def find(self, css: str) -> str:
        return str(self._send("POST", "/element", {"using": "css selector", "value": css})[ELEMENT])

    def click(self, css: str) -> None:
        self._send("POST", f"/element/{self.find(css)}/click", {})

    def type(self, css: str, keys: str) -> None:
        self._send("POST", f"/element/{self.find(css)}/value", {"text": keys})

    def text(self, css: str) -> str:
        return str(self._send("GET", f"/element/{self.find(css)}/text"))

    def console(self) -> list[str]:
        """Return what the page has complained of since the last call: errors and warnings, refused scripts too."""
        entries = self._send("POST", "/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if entry["level"] in ("SEVERE", "WARNING")]

    def dark(self, *, wanted: bool) -> None:
        """Make the page believe that the user likes it dark, or light."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if wanted else "light"}]
        self._send("POST", "/goog/cdp/execute", {"cmd": "Emulation.setEmulatedMedia", "params": {"features": features}})

    def size(self, width: int, height: int = 1000) -> None:
        """Make the page so many pixels wide; a window has a least width, a page has none."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._send("POST", "/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": metrics})

    def picture(self) -> bytes:
        """Return the whole page as PNG."""
        reply = self._send(
            "POST",
            "/goog/cdp/execute",
            {"cmd": "Page.captureScreenshot", "params": {"captureBeyondViewport": True}},
        )
        return b64decode(reply["data"])

    def close(self) -> None:
        self._send("DELETE", "")


@contextmanager
def browser(folder: Path, *, width: int = 1400, height: int = 1000) -> Iterator[Browser]:
    """Start a browser whose profile lies in a folder; end it with the block."""
    driver = subprocess.Popen(
        ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder
    )
    try:
        port = _port(driver)
        flags = [*FLAGS, f"--user-data-dir={folder / 'profile'}", f"--window-size={width},{height}"]
        options = {"goog:chromeOptions": {"args": flags}, "goog:loggingPrefs": {"browser": "ALL"}}
        window = Browser(port, options)
        try:
            yield window
        finally:
            window.close()
    finally:
        driver.terminate()
        driver.wait(20)
        if driver.stdout is not None:
            driver.stdout.close()


def _port(driver: "subprocess.Popen[str]") -> int:
    """Read from the driver's greeting which port it has taken."""
    assert driver.stdout is not None
    began = time.monotonic()
    for said in driver.stdout:
        words = said.strip().rstrip(".").split()
        if "started successfully on port" in said:
            return int(words[-1])
        assert time.monotonic() - began < 60, "chromedriver does not start"
    raise AssertionError("chromedriver ended before it took a port")
