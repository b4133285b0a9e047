"""Whole requests through the server and through mlx_lm.server, in turns: chats a second, time to the first token.

Usage: ``python scripts/bench/bench_server.py --model MODEL [--adapter-path FOLDER] [--graph GRAPH] --data test.jsonl
[-n 200] [--clients 1 4 8 16] [--turns 4] [--max-tokens 128] [--out results/server.jsonl]``. Both servers run at once,
have the same model and the same BLAS, and are started anew for each number of clients, so that neither knows the chats;
while one is asked the other waits. The chats are sent in so many turns, ours first in one and theirs in the next. Every
answer is held against mlx-lm's own to that chat alone, made here before, by its text and its number of tokens; then our
server is asked all of it once more, untimed, for the tokens' ids.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
from recording import origin, tell

WARMING = 8  # chats at least that warm a server up
# with daari_mlx's BLAS, where there is one: what is compared is not how fast matrices are multiplied; and with room for
# clients that connect at once: of Python's five places too few are there for eight, and connections wait or are reset
THEIRS = """
import daari_mlx, socketserver
socketserver.TCPServer.request_queue_size = 128
from mlx_lm.server import main
main()
"""


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--adapter-path")
    parser.add_argument("--graph")
    parser.add_argument("--data", required=True)
    parser.add_argument("-n", type=int, default=200)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--out")
    args = parser.parse_args()
    chats = read_chats(Path(args.data), args.n)
    plain = plain_answers(args, chats)
    model = ["--model", args.model, *(["--adapter-path", args.adapter_path] if args.adapter_path else [])]
    graph = ["--graph", args.graph] if args.graph else []
    for clients in args.clients:
        warming = [other_words(chat) for chat in chats[: max(WARMING, 2 * clients)]]
        with Served("daari", [*model, *graph]) as ours, Served("mlx_lm", model) as theirs:
            for server in (ours, theirs):
                asyncio.run(ask(server, warming, clients, args.max_tokens))
            tell({**origin(), **measure(ours, theirs, chats, plain, clients, args)}, args.out)


def measure(
    ours: Served, theirs: Served, chats: list[Any], plain: list[tuple[str, list[int]]], clients: int, args: Any
) -> dict[str, Any]:
    """One record: the chats in some turns, each asked of both servers."""
    found: dict[str, list[dict[str, Any]]] = {"daari": [], "mlx_lm": []}
    seconds: dict[str, list[float]] = {name: [] for name in found}
    size = -(-len(chats) // args.turns)
    for turn, start in enumerate(range(0, len(chats), size)):
        for server in (theirs, ours) if turn % 2 else (ours, theirs):
            answers, took = asyncio.run(ask(server, chats[start : start + size], clients, args.max_tokens))
            found[server.name] += answers
            seconds[server.name].append(took)
    differ = {
        name: sum(
            (one["text"], one["tokens"]) != (text, len(ids)) for one, (text, ids) in zip(answers, plain, strict=True)
        )
        for name, answers in found.items()
    }
    again = asyncio.run(told_ids(ours, chats, clients, args.max_tokens))
    return {
        "measured": "server",
        "model": args.model,
        "adapter_path": args.adapter_path,
        "graph": args.graph,
        "data": args.data,
        "max_tokens": args.max_tokens,
        "clients": clients,
        "chats": len(chats),
        "answers_that_differ_from_plain": differ,
        "ids_that_differ_from_plain": sum(one != ids for one, (_, ids) in zip(again, plain, strict=True)),
        "speed": sum(seconds["mlx_lm"]) / sum(seconds["daari"]),
        "speed_of_turns": [their / our for our, their in zip(*seconds.values(), strict=True)],
        **{name: figures(found[name], sum(seconds[name])) for name in found},
    }


def figures(found: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """What is told of one server."""
    first = sorted(one["first"] for one in found)
    return {
        "seconds": seconds,
        "chats_per_second": len(found) / seconds,
        "tokens": sum(one["tokens"] for one in found),
        "tokens_per_second": sum(one["tokens"] for one in found) / seconds,
        "cached_tokens": sum(one["cached"] for one in found),
        "first_token_p50": statistics.median(first),
        "first_token_p95": first[min(int(len(first) * 0.95), len(first) - 1)],
        "whole_p50": statistics.median(one["whole"] for one in found),
    }


def plain_answers(args: Any, chats: list[Any]) -> list[tuple[str, list[int]]]:
    """Text and ids of mlx-lm's own answer to each chat, the end token with them."""
    from daari_mlx.teacher.load import load_teacher  # isort: skip  before mlx_lm: it chooses the BLAS
    from mlx_lm import stream_generate

    from daari_mlx.text.template import ChatTemplate

    teacher = load_teacher(args.model, adapter_path=args.adapter_path)
    template, found = ChatTemplate(teacher.tokenizer), []
    for chat in chats:
        said = list(
            stream_generate(teacher.model, teacher.tokenizer, template.prompt_ids(chat), max_tokens=args.max_tokens)
        )
        found.append(("".join(one.text for one in said), [one.token for one in said]))
    return found


async def ask(server: Served, chats: list[Any], clients: int, max_tokens: int) -> tuple[list[dict[str, Any]], float]:
    """The answers to all chats, in their order, by clients that each have one request under way; and the seconds."""
    async with httpx.AsyncClient(base_url=server.url, timeout=600, verify=False) as http:
        await http.get("/health")  # the clients exist, and are connected, before time is taken
        start = time.perf_counter()
        answers = await each(chats, clients, lambda messages: one_chat(http, messages, max_tokens))
        return answers, time.perf_counter() - start


async def told_ids(server: Served, chats: list[Any], clients: int, max_tokens: int) -> list[list[int]]:
    """The ids of our server's answers, which it tells with their log-probabilities."""

    async def one(messages: Any) -> list[int]:
        body = {"messages": messages, "max_tokens": max_tokens, "temperature": 0.0, "logprobs": True}
        answer = (await http.post("/v1/chat/completions", json=body)).raise_for_status().json()
        return [token["id"] for token in answer["choices"][0]["logprobs"]["content"]]

    async with httpx.AsyncClient(base_url=server.url, timeout=600, verify=False) as http:
        return await each(chats, clients, one)


async def each(chats: list[Any], clients: int, one: Callable[[Any], Awaitable[Any]]) -> list[Any]:
    """What ``one`` gives for each chat, in their order, so many at a time."""
    left, found = list(enumerate(chats))[::-1], dict[int, Any]()

    async def client() -> None:
        while left:
            number, messages = left.pop()
            found[number] = await one(messages)

    await asyncio.gather(*(client() for _ in range(clients)))
    return [found[number] for number in range(len(chats))]


async def one_chat(http: httpx.AsyncClient, messages: Any, max_tokens: int) -> dict[str, Any]:
    """One streamed answer and its times."""
    body = {"messages": messages, "max_tokens": max_tokens, "temperature": 0.0, "stream": True}
    body["stream_options"] = {"include_usage": True}
    start, first, text, tokens, cached = time.perf_counter(), None, "", 0, 0
    async with http.stream("POST", "/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            usage = event.get("usage") or {}
            tokens = usage.get("completion_tokens", tokens)
            cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", cached)
            said = event["choices"][0]["delta"].get("content") if event["choices"] else None
            if said:
                first = first or time.perf_counter() - start
                text += said
    whole = time.perf_counter() - start
    return {"first": first or whole, "whole": whole, "text": text, "tokens": tokens, "cached": cached}


class Served:
    """A server in a process of its own.

    Args:
        name: ``"daari"`` or ``"mlx_lm"``.
        options: of its command.
    """

    def __init__(self, name: str, options: list[str]) -> None:
        self.name = name
        run = {
            "daari": ["-c", "from daari_mlx.cli.start import main; main()", "server", "--log-level", "WARNING"],
            "mlx_lm": ["-c", THEIRS, "--log-level", "WARNING"],
        }
        port = str(free_port())
        self._process = subprocess.Popen(
            [sys.executable, *run[name], *options, "--port", port],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.url = f"http://127.0.0.1:{port}"

    def __enter__(self) -> Served:
        threading.Thread(target=self._drain, daemon=True).start()
        for _ in range(1200):
            try:
                if httpx.get(f"{self.url}/health").status_code == 200:
                    return self
            except httpx.HTTPError:
                if self._process.poll() is not None:
                    break
            time.sleep(0.25)
        self._process.kill()
        raise SystemExit(f"the server {self.name} did not start: what it said stands above")

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._process.pid

    def _drain(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if re.search("error|Traceback", line, re.IGNORECASE):
                print(f"{self.name}: {line}", end="", file=sys.stderr)

    def __exit__(self, *_: Any) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()


def free_port() -> int:
    """A port that nobody listens on."""
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def read_chats(path: Path, count: int) -> list[Any]:
    """The messages of the first rows, without their last answer."""
    chats = []
    for line in path.read_text(encoding="utf-8").splitlines()[:count]:
        messages = json.loads(line)["messages"]
        chats.append(messages[:-1] if messages[-1]["role"] == "assistant" else messages)
    return chats


def other_words(chat: Any) -> Any:
    """The same chat with the words of its last message turned round: as long, and in nobody's cache."""
    last = chat[-1]
    return [*chat[:-1], {**last, "content": " ".join(last["content"].split()[::-1])}]


if __name__ == "__main__":
    main()
