"""The report in a real browser: nothing leaves the file, nothing is logged, everything fits."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skipinit.reporting.page import make_page
from support.made_up_trials import full_collection

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="no chromium on this machine (Debian: apt install chromium)"
)

MEASURE = """(() => {
  const plots = [...document.querySelectorAll('svg.plot')];
  const box = element => element.getBoundingClientRect();
  const style = element => getComputedStyle(element);
  return {
    overflow: document.documentElement.scrollWidth - window.innerWidth,
    plots: plots.length,
    small: plots.filter(plot => box(plot).width < 250 || box(plot).height < 150).length,
    outside: plots.filter(plot => box(plot).right > window.innerWidth + 1 || box(plot).left < 0).length,
    texts: plots.map(plot => plot.querySelectorAll('text').length),
    unlabelled: plots.filter(plot => !plot.getAttribute('aria-label')).length,
    ink: style(document.body).color,
    paper: style(document.body).backgroundColor,
    plotInk: [...new Set(plots.flatMap(plot => [...plot.querySelectorAll('text')].map(t => style(t).fill)))],
    ids: (all => all.length - new Set(all).size)([...document.querySelectorAll('[id]')].map(e => e.id)),
    requests: performance.getEntriesByType('resource').map(entry => entry.name),
  };
})()"""


class Tab:
    """One page of a headless browser, spoken to over a pipe."""

    def __init__(self, profile: Path) -> None:
        assert BROWSER
        to_browser, self.to_browser = os.pipe()
        self.from_browser, from_browser = os.pipe()
        # The browser reads commands from descriptor 3 and answers on 4.
        script = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        quiet = "--disable-gpu --disable-dev-shm-usage --no-first-run --disable-background-networking"
        flags = [*quiet.split(), "--headless=new", "--no-sandbox", f"--user-data-dir={profile}"]
        self.process = subprocess.Popen(
            ["bash", "-c", script, BROWSER, *flags, "--remote-debugging-pipe", "about:blank"],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self.buffer, self.count, self.events = b"", 0, []
        self.session: str | None = None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Log", "Runtime", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        self.count += 1
        message = {"id": self.count, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to_browser, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.count:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def receive(self) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            piece = os.read(self.from_browser, 1 << 16)
            assert piece, "the browser has gone"
            self.buffer += piece
        first, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(first)

    def wait_for(self, method: str) -> None:
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self.receive())

    def visit(self, path: Path, width: int, scheme: str) -> dict[str, Any]:
        """Open the page and measure it."""
        self.events.clear()
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1,
                  mobile=width < 500)  # fmt: skip
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.send("Page.navigate", url=path.as_uri())
        self.wait_for("Page.loadEventFired")
        return self.evaluate(MEASURE)

    def evaluate(self, expression: str) -> Any:
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"]["value"]

    def screenshot(self, path: Path) -> None:
        data = self.send("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))

    def close(self) -> None:
        self.session = None
        self.send("Browser.close")
        self.process.wait(timeout=20)
        os.close(self.to_browser)
        os.close(self.from_browser)


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    opened = Tab(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(make_page(full_collection()), encoding="utf-8")
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_the_page_fits_and_is_silent(tab: Tab, page: Path, width: int, scheme: str) -> None:
    seen = tab.visit(page, width, scheme)
    assert seen["overflow"] <= 0, "the page scrolls sideways"
    assert seen["plots"] > 10
    assert (seen["small"], seen["outside"], seen["unlabelled"], seen["ids"]) == (0, 0, 0, 0)
    assert min(seen["texts"]) >= 5, "text of plots is text"
    assert seen["plotInk"] == [seen["ink"]], "text of plots has the page's colour"
    assert seen["requests"] == []
    urls = [
        event["params"]["request"]["url"]
        for event in tab.events
        if event["method"] == "Network.requestWillBeSent"
    ]
    assert {url.partition(":")[0] for url in urls} <= {"file", "data"}
    logged = [
        e
        for e in tab.events
        if e["method"] in ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled")
    ]
    assert logged == []


def brightness(color: str) -> int:
    """Red, green and blue of `rgb(r, g, b)` together."""
    return sum(map(int, re.findall(r"\d+", color)))


def test_light_and_dark_differ(tab: Tab, page: Path) -> None:
    light, dark = (tab.visit(page, 1440, scheme) for scheme in ("light", "dark"))
    assert brightness(light["paper"]) > 700 > 200 > brightness(light["ink"])
    assert brightness(dark["paper"]) < 100 < 600 < brightness(dark["ink"])


def test_the_keyboard_reaches_the_results(tab: Tab, page: Path) -> None:
    tab.visit(page, 390, "light")
    for kind in ("keyDown", "keyUp"):
        tab.send("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
    assert tab.evaluate("document.activeElement.getAttribute('href')") == "#content"
    assert tab.evaluate("document.activeElement.getBoundingClientRect().left >= 0"), "the link shows itself"
