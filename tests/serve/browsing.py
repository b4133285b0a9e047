"""Chromium without a window, as the tests of the page use it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from serving import Running

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # nothing else is asked, whatever a page says
)
PATIENCE = 60.0  # seconds until something has to be seen


class Browser:
    """A browser on one page of a server, and what a person does there."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, server: Running, width: int = 1280, height: int = 800, dark: bool = False, **settings: Any) -> None:
        """The page afresh, in a window of this size, with these settings."""
        self.do("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = "dark" if dark else "light"
        self.do("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.do("Storage.clearDataForOrigin", origin=server.url, storageTypes="all")
        self.driver.get("about:blank")
        self.asked()  # by the page before
        self.driver.get(f"{server.url}/")
        self.run("sessionStorage.clear()")
        self.set(**settings)

    def set(self, **settings: Any) -> None:
        """What stands in the fields of the page."""
        for name, value in settings.items():
            self.run("document.getElementById(arguments[0]).value = arguments[1]", name, str(value))

    def do(self, command: str, **options: Any) -> None:
        """A command of Chromium's own protocol."""
        self.driver.execute_cdp_cmd(command, options)

    def run(self, script: str, *args: Any) -> Any:
        """What a script finds."""
        return self.driver.execute_script(script, *args)

    def find(self, css: str) -> list[Any]:
        """What is on the page and in sight."""
        return [found for found in self.driver.find_elements("css selector", css) if found.is_displayed()]

    def text(self, css: str) -> str:
        """All text of the first such element, as the page holds it; empty where there is none."""
        return str(self.run("return document.querySelector(arguments[0])?.textContent ?? ''", css))

    def style(self, css: str, name: str) -> str:
        """A computed style of the first such element."""
        return str(self.run("return getComputedStyle(document.querySelector(arguments[0]))[arguments[1]]", css, name))

    def press(self, *keys: str) -> None:
        """Keys, to whatever has the focus, as a keyboard sends them."""
        from selenium.webdriver import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def until(self, seen: Callable[[], Any], what: str) -> Any:
        """Wait until it is seen."""
        from selenium.webdriver.support.ui import WebDriverWait

        return WebDriverWait(self.driver, PATIENCE, 0.05).until(lambda _: seen(), f"{what} is not seen")

    def say(self, text: str) -> None:
        """Write a message, press Enter, and wait for the end of the answer, or of the try."""
        self.press(text, "\ue007")
        self.until(lambda: self.find("#send"), "the end of an answer")

    def asked(self) -> list[str]:
        """The addresses that were asked for since this was asked last."""
        return [request["url"] for _, request in self._requests()]

    def streamed(self, path: str) -> list[Any]:
        """The choices of the events that the page got from the one request for this path since the last look."""
        (number,) = [number for number, request in self._requests() if request["url"].endswith(path)]
        body = self.driver.execute_cdp_cmd("Network.getResponseBody", {"requestId": number})["body"]
        events = [part.removeprefix("data: ") for part in body.split("\n\n") if part.startswith("data: {")]
        return [choice for event in events for choice in json.loads(event)["choices"]]

    def _requests(self) -> list[tuple[str, Any]]:
        logged = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [one["params"] for one in logged if one["method"] == "Network.requestWillBeSent"]
        return [(one["requestId"], one["request"]) for one in sent]

    def complaints(self) -> list[str]:
        """What the page was blamed for since this was asked last: errors of its script, what its policy forbids."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]


@contextmanager
def browsing(folder: Path) -> Iterator[Browser]:
    """Start a browser with a new profile in ``folder``, and end it; skip where there is none."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed (extra dev)")
    chromium, driver = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("chromium and its driver are not installed (Debian: apt-get install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={folder}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    found = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield Browser(found)
    finally:
        found.quit()
