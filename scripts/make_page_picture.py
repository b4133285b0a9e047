"""Take the picture of the server's page for README: a finished answer, shaded by what drafted its tokens.

python scripts/make_page_picture.py --model MODEL --graph GRAPH --rows FILE [--adapter-path ADAPTER]

A server is started on a free port of this machine, a message is sent as a person would, and the page is photographed in
headless Chromium (Debian: ``apt-get install chromium chromium-driver``). The message is invented; of the rows that the
graph was compiled from only the first system prompt is taken.
"""

from __future__ import annotations

import argparse
import base64
import json
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import run_demo

import daari_mlx  # noqa: F401  on Linux it loads a fast BLAS, which must happen before MLX is imported
from daari_mlx.ground.errors import DaariError

if TYPE_CHECKING:
    from daari_mlx.serve.service import Service

OUT = Path(__file__).resolve().parent.parent / "results" / "page.png"
MESSAGE = "Shall we have dosa at the old market on Friday? Around seven. Bring your sister!"
WIDTH, HEIGHT, SCALE = 800, 430, 1.5  # pixels of the page, and of the picture for each of them
PATIENCE = 300.0  # seconds for an answer
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # nothing but the server is asked
)


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit status, 1 after an error that the user can mend."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", required=True, help="the teacher")
    parser.add_argument("--adapter-path", help="its adapter, if it has one")
    parser.add_argument("--graph", required=True, help="a graph of it")
    parser.add_argument("--rows", type=Path, help="the file it was compiled from, for the system prompt")
    parser.add_argument("--name", help="what the page calls the model (default: its own name)")
    parser.add_argument("--message", default=MESSAGE, help="what is asked")
    parser.add_argument("--out", type=Path, default=OUT, help="the picture, .png (default: results/page.png)")
    args = parser.parse_args(argv)

    def work() -> int:
        chromium = find_chromium()
        system = "" if args.rows is None else system_prompt(args.rows)
        with running(service_of(args.model, args.adapter_path, args.graph)) as url:
            picture, figures = photograph(url, chromium, system, args.message, args.name)
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_bytes(picture)
        print(f"{args.out}: {len(picture) / 1000:.0f} kB; the page says: {figures}")
        return 0

    return run_demo.status_of(work)


def find_chromium() -> tuple[str, str]:
    """Chromium and its driver.

    Raises:
        DaariError: one of them, or selenium, is missing.
    """
    try:
        import selenium  # noqa: F401
    except ImportError as error:
        raise DaariError("The picture needs selenium, which is missing: pip install '.[dev]' in a clone.") from error
    chromium, driver = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        raise DaariError("Chromium or its driver is missing: on Debian, apt-get install chromium chromium-driver.")
    return chromium, driver


def system_prompt(rows: Path) -> str:
    """The first row's system prompt; empty where it has none.

    Raises:
        DaariError: it is no file of rows.
    """
    from daari_mlx.ground.files import read_json_lines

    first = read_json_lines(rows, "file of rows", instead="Give the file that the graph was compiled from.")[0]
    messages = first.get("messages") or [{}]
    return str(messages[0].get("content", "")) if messages[0].get("role") == "system" else ""


def service_of(model: str, adapter_path: str | None, graph: str) -> Service:
    """What answers: the teacher with its graph, on a free port.

    Raises:
        DaariError: what the user can mend.
    """
    from daari_mlx.serve.options import ServeOptions
    from daari_mlx.serve.run import make_service
    from daari_mlx.share.find import load_graph
    from daari_mlx.teacher.load import load_teacher

    teacher = load_teacher(model, adapter_path=adapter_path)
    return make_service(teacher, load_graph(graph), ServeOptions(port=0))


@contextmanager
def running(service: Service) -> Iterator[str]:
    """Its server, as long as the block lasts; the address."""
    from daari_mlx.serve.run import Server, listen

    sock, server = listen(service.options), Server(service, "warning")
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(60)
        sock.close()


def photograph(url: str, chromium: tuple[str, str], system: str, message: str, name: str | None) -> tuple[bytes, str]:
    """Send the message twice, so that the picture's answer waits for no timing of the machine; the PNG, the figures."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium[0]
    with tempfile.TemporaryDirectory() as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(chromium[1]))
        try:
            screen = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": SCALE, "mobile": False}
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
            light = [{"name": "prefers-color-scheme", "value": "light"}]
            driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": light})
            driver.get(f"{url}/")
            until(lambda: text_of(driver, "#state") == "ready", "a page that is ready")
            driver.execute_script("document.getElementById('system').value = arguments[0]", system)
            for _ in range(2):
                driver.find_element("id", "new").click()
                driver.find_element("id", "box").send_keys(message, "\ue007")
                until(lambda: driver.find_element("id", "send").is_displayed(), "the end of the answer")
            if trouble := text_of(driver, "#trouble"):
                raise DaariError(f"The page could not answer: {trouble}")
            driver.find_element("css selector", "#drafts summary").click()
            if name is not None:
                driver.execute_script("document.getElementById('model').textContent = arguments[0]", name)
            driver.execute_script("document.activeElement.blur()")
            shot: dict[str, Any] = driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
            return base64.b64decode(shot["data"]), text_of(driver, ".answer .figures")
        finally:
            driver.quit()


def text_of(driver: Any, css: str) -> str:
    """The text of the first such element, as the page holds it."""
    return str(driver.execute_script(f"return document.querySelector({json.dumps(css)})?.textContent ?? ''"))


def until(seen: Callable[[], bool], what: str) -> None:
    """Wait until it is seen.

    Raises:
        DaariError: it is not, for ``PATIENCE`` seconds.
    """
    end = time.monotonic() + PATIENCE
    while not seen():
        if time.monotonic() > end:
            raise DaariError(f"The page showed no sign of {what} for {PATIENCE:.0f} s: try again on a quiet machine.")
        time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main())
