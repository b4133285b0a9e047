"""The page at `/`, in a browser."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from browsing import Browser, browsing
from graphs import Compiled
from serving import Running, running

from daari_mlx.serve.page import PAGE, is_own
from daari_mlx.show.plots.style import DARK, LIGHT

TEXT = "Your card was charged 12.50 at the station"
ENTER, ESCAPE, SHIFT, TAB = "\ue007", "\ue00c", "\ue008", "\ue004"
ENDLESS = {"type": "array", "items": {"type": "integer"}, "minItems": 1000}  # an answer that does not end soon
ANSWER = "#log .answer:last-child"


@pytest.fixture(scope="module")
def a_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture
def browser(a_browser: Browser) -> Iterator[Browser]:
    """A browser; whatever a test does with a page, its script fails nowhere."""
    a_browser.complaints()
    yield a_browser
    assert [said for said in a_browser.complaints() if "Failed to load resource" not in said] == []


@contextmanager
def slowly(server: Running, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Rounds that take a while, so that an answer is seen under way."""
    engine = server.service.worker._engine
    step = engine.step  # type: ignore[union-attr]

    def slow() -> Any:
        time.sleep(0.1)
        return step()

    with monkeypatch.context() as patch:
        patch.setattr(engine, "step", slow)
        yield


def rgb(colour: str) -> str:
    """A computed colour of a hexadecimal one."""
    return f"rgb({', '.join(str(int(colour[k : k + 2], 16)) for k in (1, 3, 5))})"


def test_the_answer_is_the_apis_and_drafted_tokens_are_shaded(browser: Browser, server: Running) -> None:
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": TEXT}]
    said = server.post("/v1/chat/completions", messages=messages, max_tokens=60, temperature=0).json()
    browser.open(server, system="Be short.", max_tokens=60, temperature=0)
    browser.say(TEXT)
    assert browser.text(f"{ANSWER} .said") == said["choices"][0]["message"]["content"]
    told = [choice["daari"] for choice in browser.streamed("/v1/chat/completions") if "daari" in choice]
    shaded = browser.run(
        "return [...document.querySelectorAll(arguments[0])].map((one) => [one.dataset.source, one.textContent])",
        f"{ANSWER} .shade",
    )
    assert shaded == [pair for one in told for pair in one["sources"] if all(pair)] != []
    figures, last = browser.text(f"{ANSWER} .figures"), told[-1]
    assert f"{last['tokens_per_forward']:.2f} tokens per forward" in figures
    assert f"{last['tokens']} tokens" in figures and f"teacher {last['tokens'] - last['accepted']}" in figures
    # a token that only begins a character has no text of its own: it is named, but nothing is there to shade
    names = {source for one in told for source, _ in one["sources"] if source}
    assert names >= {source for source, _ in shaded}
    listed = server.http.get("/daari/requests").json()["requests"]  # the page has these too
    names |= {source for request in listed for source in request["sources"]} - {"teacher"}
    assert {one.text for one in browser.find("#names .shade")} == names
    first = shaded[0][0]
    lit = browser.style(f"{ANSWER} .shade", "backgroundColor")
    assert (lit != "rgba(0, 0, 0, 0)") and "underline" in browser.style(f"{ANSWER} .shade", "textDecoration")
    assert rgb(LIGHT.sources[first]) in browser.style(f"{ANSWER} .shade", "textDecoration")
    browser.find("#shading")[0].click()
    assert browser.style(f"{ANSWER} .shade", "backgroundColor") == "rgba(0, 0, 0, 0)"
    newest = server.http.get("/daari/requests").json()["requests"][0]
    row = browser.until(lambda: browser.text("#list li:first-child"), "the last request")
    assert f"{newest['tokens']} tokens" in row
    assert all(f"{name} {count}" in row for name, count in newest["sources"].items())


def test_a_second_message_goes_with_what_was_said_before(browser: Browser, server: Running) -> None:
    browser.open(server, max_tokens=10)
    browser.say("one")
    said = browser.text(f"{ANSWER} .said")
    browser.say("two")
    messages = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": said},
        {"role": "user", "content": "two"},
    ]
    expected = server.post("/v1/chat/completions", messages=messages, max_tokens=10).json()
    assert browser.text(f"{ANSWER} .said") == expected["choices"][0]["message"]["content"]
    browser.find("#new")[0].click()
    assert browser.find("#log .turn") == [] and browser.find("#hello")


@pytest.mark.parametrize("how", ["button", "escape", "new chat"])
def test_an_answer_that_is_stopped_leaves_the_batch(
    browser: Browser, server: Running, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    browser.open(server, max_tokens=1500, schema=json.dumps(ENDLESS))
    with slowly(server, monkeypatch):
        browser.press(TEXT, ENTER)
        browser.until(lambda: browser.text(f"{ANSWER} .said"), "text of the answer")
        assert (
            server.service.worker.running == 1
            and browser.run("return document.querySelector(arguments[0]).getAttribute('aria-busy')", ANSWER) == "true"
        )
        if how == "escape":
            browser.press(ESCAPE)
        else:
            browser.find("#stop" if how == "button" else "#new")[0].click()
        browser.until(lambda: server.service.worker.running == 0, "the end of the row")
    newest = browser.until(lambda: server.http.get("/daari/requests").json()["requests"][0], "the request")
    assert newest["finish"] == "left" and newest["tokens"] < 1500
    if how == "new chat":
        assert browser.find("#log .turn") == [] and browser.text("#trouble") == ""
        return
    browser.until(lambda: "stopped" in browser.text(f"{ANSWER} .figures"), "that it was stopped")
    before = browser.text(f"{ANSWER} .said")
    browser.set(max_tokens=5, schema="")
    browser.say("go on")
    assert len(browser.find("#log .answer")) == 2 and before in browser.text("#log")


def test_what_the_model_says_is_text_and_no_html(browser: Browser, server: Running) -> None:
    evil = '<img src="http://127.0.0.1:9/x" onerror="document.title = 1"><b>bold</b>'
    browser.open(server, schema=json.dumps({"const": evil}))
    browser.say(f"{evil} {TEXT}")
    assert "<b>bold</b>" in browser.text(f"{ANSWER} .said").replace("\\", "")
    assert evil in browser.text("#log .user .said")
    assert browser.run("return document.querySelectorAll('#log img, #log .said b').length") == 0


def test_no_request_goes_anywhere_but_to_the_server(browser: Browser, server: Running) -> None:
    browser.open(server, max_tokens=5)
    browser.say(TEXT)
    asked = browser.asked()
    paths = {url.removeprefix(server.url) for url in asked if not url.startswith("data:")}
    assert paths == {"/", "/v1/models", "/daari/requests", "/v1/chat/completions"}
    policy = server.http.get("/").headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    held = "return fetch('http://127.0.0.1:9/').then(() => 'asked', (error) => error.name)"
    assert browser.run(held) == "TypeError"
    assert any("Content Security Policy" in said for said in browser.complaints())


@pytest.mark.parametrize("dark", [False, True])
def test_light_and_dark(browser: Browser, server: Running, dark: bool) -> None:
    palettes = (DARK, LIGHT) if dark else (LIGHT, DARK)
    browser.open(server, dark=dark, max_tokens=40)
    browser.say(TEXT)
    for palette in palettes:
        assert browser.style("body", "backgroundColor") == rgb(palette.ground)
        assert browser.style("body", "color") == rgb(palette.ink)
        source = browser.run("return document.querySelector(arguments[0]).dataset.source", f"{ANSWER} .shade")
        assert rgb(palette.source(source)) in browser.style(f"{ANSWER} .shade", "textDecoration")
        browser.find("#theme")[0].click()
    browser.find("#theme")[0].click()
    browser.driver.refresh()
    assert browser.style("body", "backgroundColor") == rgb(palettes[1].ground), "what was chosen stays"


def test_a_phone_scrolls_down_only(browser: Browser, server: Running) -> None:
    browser.open(server, width=360, height=640, max_tokens=60)
    browser.say("x" * 200 + TEXT)

    def wide() -> list[str]:
        return list(
            browser.run(
                "return [...document.querySelectorAll('body *')].filter((one) => one.checkVisibility() && "
                "(one.getBoundingClientRect().right > 360 || one.scrollWidth > Math.max(one.clientWidth, 1) + 1 && "
                "!['INPUT', 'SPAN', 'B', 'I'].includes(one.tagName))).map((one) => one.outerHTML.slice(0, 80))"
            )
        )

    assert wide() == [] and browser.run("return document.documentElement.scrollWidth") == 360
    for name in ("settings", "requests"):
        browser.find(f"#show-{name}")[0].click()
        assert browser.find(f"#{name}") and wide() == []
    assert not browser.find("#settings"), "one of them lies over the conversation"
    browser.press(ESCAPE)
    assert not browser.find("#side") and browser.find(ANSWER)


def test_a_keyboard_is_enough(browser: Browser, server: Running) -> None:
    browser.open(server, max_tokens=8)
    here = "return document.activeElement.id"
    assert browser.run(here) == "box"
    browser.press("one")
    from selenium.webdriver import ActionChains

    ActionChains(browser.driver).key_down(SHIFT).send_keys(ENTER).key_up(SHIFT).perform()
    browser.say("two")
    assert browser.text("#log .user .said") == "one\ntwo"
    assert browser.run(here) == "box", "the next message can be written at once"
    reached = []
    for _ in range(30):
        browser.press(TAB)
        reached.append(browser.run(here))
        outline = browser.run("return getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none" or reached[-1] == "", f"{reached[-1]} shows that it has the focus"
        if reached[-1] == "show-settings" and not browser.find("#settings"):
            browser.press(ENTER)
            assert browser.find("#settings")
    wanted = {"new", "show-settings", "show-requests", "theme", "log", "system", "temperature", "max_tokens", "schema"}
    assert wanted | {"key", "shading", "box", "send"} <= set(reached)
    log = browser.run("const log = document.getElementById('log'); return [log.ariaLive, log.role]")
    assert log == ["polite", "log"]


def test_a_schema_holds_the_answer(browser: Browser, server: Running) -> None:
    browser.open(server, schema='{"enum": ["yes", "no"]}')
    browser.say("Is it?")
    assert browser.text(f"{ANSWER} .said") in ('"yes"', '"no"')
    browser.set(schema="{oops")
    browser.say("Is it?")
    assert browser.text("#trouble").startswith("The JSON schema is not JSON")
    assert browser.run("return document.activeElement.id") == "schema" and browser.find("#settings")
    assert browser.run("return document.getElementById('box').value") == "Is it?"


def test_a_server_that_is_gone_is_told(browser: Browser, compiled: Compiled) -> None:
    with running(compiled.teacher, None) as server:
        browser.open(server, max_tokens=5)
        browser.until(lambda: browser.text("#state") == "ready", "that it is ready")
    browser.say(TEXT)
    assert browser.text("#trouble").startswith("The server does not answer")
    assert browser.run("return document.getElementById('box').value") == TEXT, "it can be sent again"
    assert browser.find("#log .turn") == []
    browser.until(lambda: browser.text("#state") == "not reached", "that it is gone")


def test_a_full_queue_is_told(browser: Browser, compiled: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    form = {"type": "json_schema", "json_schema": {"schema": ENDLESS}}
    asked = {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 1500, "response_format": form}
    with running(compiled.teacher, None, decode_concurrency=1, queue_limit=0) as server:
        browser.open(server, max_tokens=5)
        browser.say(TEXT)
        with (
            slowly(server, monkeypatch),
            server.http.stream("POST", "/v1/chat/completions", json={**asked, "stream": True}) as other,
        ):
            under_way = other.iter_bytes()  # kept: where it is let go, the connection is closed
            next(under_way)
            browser.say("me too")
            assert browser.text("#trouble") == "The server's queue is full: send again in 1 s."
            under_way.close()


def test_a_key_is_asked_for_and_kept_for_the_session(browser: Browser, compiled: Compiled) -> None:
    with running(compiled.teacher, None, api_key=["secret"]) as server:
        browser.open(server, max_tokens=5)
        browser.until(lambda: "wants an API key" in browser.text("#trouble"), "that a key is wanted")
        assert browser.run("return document.activeElement.id") == "key"
        browser.press("wrong", TAB)
        browser.until(lambda: "does not know this API key" in browser.text("#trouble"), "that it is wrong")
        browser.set(key="")
        browser.press("secret", TAB)
        browser.until(lambda: browser.text("#state") == "ready", "that it is let in")
        browser.find("#box")[0].click()
        browser.say(TEXT)
        assert browser.text(f"{ANSWER} .said") and browser.text("#trouble") == ""
        assert browser.run("return [sessionStorage.getItem('key'), Object.values(localStorage)]") == ["secret", ["on"]]
        browser.driver.refresh()
        browser.until(lambda: browser.text("#state") == "ready", "that it is let in again")


def test_the_colours_are_those_of_the_pictures() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name in ("teacher", "edge", "near", "copy"):
        assert f"--{name}: light-dark({LIGHT.sources[name]}, {DARK.sources[name]});" in text
    for name in ("ground", "ink", "quiet", "grid", "bad"):
        assert f"--{name}: light-dark({getattr(LIGHT, name)}, {getattr(DARK, name)});" in text


@pytest.mark.parametrize(
    ("origin", "host", "own"),
    [
        ("http://192.168.1.5:8080", "192.168.1.5:8080", True),
        ("https://[fe80::1]:8080", "[fe80::1]:8080", True),
        ("http://localhost:8080", "localhost:8080", True),
        ("http://192.168.1.6:8080", "192.168.1.5:8080", False),
        ("http://evil.example:8080", "evil.example:8080", False),
        ("null", "", False),
    ],
)
def test_the_servers_own_page_may_ask_it(origin: str, host: str, own: bool) -> None:
    assert is_own(origin, host) is own
