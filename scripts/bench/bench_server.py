"""Whole requests through the server and through mlx_lm.server, in turns: chats a second, time to the first token.

Usage: ``python scripts/bench/bench_server.py --model MODEL [--adapter-path FOLDER] [--graph GRAPH] --data test.jsonl
[-n 40] [--clients 1 4 8] [--max-tokens 128] [--out results/server.jsonl]``. Both servers run at once and have the same
model; while one is asked the other waits. Each number of clients sends the chats in two halves, ours first in one and
theirs in the other, and the answers that differ are counted.
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
from pathlib import Path
from typing import Any

import httpx
from recording import origin, tell


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--adapter-path")
    parser.add_argument("--graph")
    parser.add_argument("--data", required=True)
    parser.add_argument("-n", type=int, default=40)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--out")
    args = parser.parse_args()
    chats = read_chats(Path(args.data), args.n + 8)
    model = ["--model", args.model, *(["--adapter-path", args.adapter_path] if args.adapter_path else [])]
    graph = ["--graph", args.graph] if args.graph else []
    with Served("daari", [*model, *graph]) as ours, Served("mlx_lm", model) as theirs:
        for server in (ours, theirs):
            asyncio.run(ask(server, chats[:8], 4, args.max_tokens))
        for clients in args.clients:
            tell({**origin(), **measure(ours, theirs, chats[8:], clients, args)}, args.out)


def measure(ours: Served, theirs: Served, chats: list[Any], clients: int, args: Any) -> dict[str, Any]:
    """One record: the chats in two halves, each asked of both servers, in turns."""
    half = len(chats) // 2
    found: dict[str, list[dict[str, Any]]] = {"daari": [], "mlx_lm": []}
    seconds = dict.fromkeys(found, 0.0)
    for part, order in ((chats[:half], (ours, theirs)), (chats[half:], (theirs, ours))):
        for server in order:
            start = time.perf_counter()
            found[server.name] += asyncio.run(ask(server, part, clients, args.max_tokens))
            seconds[server.name] += time.perf_counter() - start
    differ = sum(one["text"] != other["text"] for one, other in zip(found["daari"], found["mlx_lm"], strict=True))
    return {
        "measured": "server",
        "model": args.model,
        "adapter_path": args.adapter_path,
        "graph": args.graph,
        "data": args.data,
        "clients": clients,
        "chats": len(chats),
        "answers_that_differ": differ,
        "speed": seconds["mlx_lm"] / seconds["daari"],
        **{name: figures(found[name], seconds[name]) for name in found},
    }


def figures(found: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """What is told of one server."""
    first = sorted(one["first"] for one in found)
    return {
        "seconds": seconds,
        "chats_per_second": len(found) / seconds,
        "tokens_per_second": sum(one["tokens"] for one in found) / seconds,
        "first_token_p50": statistics.median(first),
        "first_token_p95": first[min(int(len(first) * 0.95), len(first) - 1)],
        "whole_p50": statistics.median(one["whole"] for one in found),
    }


async def ask(server: Served, chats: list[Any], clients: int, max_tokens: int) -> list[dict[str, Any]]:
    """The answers to all chats, in their order, by so many clients that each have one request under way."""
    left = list(enumerate(chats))[::-1]
    found: dict[int, dict[str, Any]] = {}

    async def client() -> None:
        async with httpx.AsyncClient(base_url=server.url, timeout=600) as http:
            while left:
                number, messages = left.pop()
                found[number] = await one_chat(http, messages, max_tokens)

    await asyncio.gather(*(client() for _ in range(clients)))
    return [found[number] for number in range(len(chats))]


async def one_chat(http: httpx.AsyncClient, messages: Any, max_tokens: int) -> dict[str, Any]:
    """One streamed answer and its times."""
    body = {"messages": messages, "max_tokens": max_tokens, "temperature": 0.0, "stream": True}
    body["stream_options"] = {"include_usage": True}
    start, first, text, tokens = time.perf_counter(), None, "", 0
    async with http.stream("POST", "/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
            said = event["choices"][0]["delta"].get("content") if event["choices"] else None
            if said:
                first = first or time.perf_counter() - start
                text += said
    whole = time.perf_counter() - start
    return {"first": first or whole, "whole": whole, "text": text, "tokens": tokens}


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
            "mlx_lm": ["-c", "from mlx_lm.server import main; main()", "--log-level", "INFO"],
        }
        port = str(free_port())
        self._process = subprocess.Popen(
            [sys.executable, *run[name], *options, "--port", port], stderr=subprocess.PIPE, text=True
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
        raise SystemExit(f"the server {self.name} did not start")

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


if __name__ == "__main__":
    main()
