"""A thousand requests from thirty-two clients, a tenth of them leaving early and a tenth bad: what is left behind.

Usage: ``python scripts/bench/load_server.py [--requests 1000] [--clients 32] [--out results/server_load.jsonl]``. The
server is a process of its own with the tiny teacher of the tests. Every answer has to be the one that a first client
got alone. Memory is that of the process after a tenth of the requests and after all, when nothing runs any more.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from pathlib import Path
from typing import Any

import httpx
from bench_server import Served
from recording import SHORT, origin, tell

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("plain", "stream", "sampled", "schema", "responses", "messages")
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"], "additionalProperties": False}
MOST_GROWTH = 0.02


def main() -> None:
    """Run it; exit status 1 where something was lost, wrong or kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--graph")
    parser.add_argument("--out")
    args = parser.parse_args()
    options = ["--model", str(ROOT / "tests" / "tiny_teacher"), "--prompt-cache-bytes", "1MB"]
    options += ["--graph", args.graph, "--num-draft-tokens", "4"] if args.graph else []
    with Served("daari", options) as server:
        record = asyncio.run(_Load(server, args.clients).run(args.requests))
    tell({**origin(*SHORT), **record}, args.out)
    growth = record["memory"]["end"] / record["memory"]["settled"] - 1
    lost = record["wrong"] or record["refused"] or record["unanswered"] or record["left_running"]
    raise SystemExit(
        1 if lost or growth > MOST_GROWTH or record["threads"]["end"] > record["threads"]["settled"] else 0
    )


class _Load:
    def __init__(self, server: Served, clients: int) -> None:
        self._server, self._clients = server, clients
        self._expected: dict[tuple[str, int], Any] = {}
        self._counts = dict.fromkeys(("good", "wrong", "refused", "bad", "left", "unanswered"), 0)
        self._random = random.Random(0)

    async def run(self, requests: int) -> dict[str, Any]:
        """The record."""
        async with httpx.AsyncClient(base_url=self._server.url, timeout=300) as http:
            for kind in KINDS:
                for topic in range(10):
                    self._expected[kind, topic] = await self._ask(http, kind, topic)
            await self._some(requests // 10)
            settled = await self._state(http)
            start = time.perf_counter()
            await self._some(requests - requests // 10)
            seconds = time.perf_counter() - start
            end = await self._state(http)
        return {
            "measured": "server_load",
            "requests": requests,
            "clients": self._clients,
            **self._counts,
            "seconds": seconds,
            "left_running": end["running"],
            "memory": {"settled": settled["memory"], "end": end["memory"]},
            "threads": {"settled": settled["threads"], "end": end["threads"]},
        }

    async def _some(self, count: int) -> None:
        left = list(range(count))

        async def client() -> None:
            async with httpx.AsyncClient(base_url=self._server.url, timeout=300, verify=False) as http:
                while left:
                    await self._one(http, left.pop())

        await asyncio.gather(*(client() for _ in range(self._clients)))

    async def _one(self, http: httpx.AsyncClient, number: int) -> None:
        topic, kind = self._random.randrange(10), self._random.choice(KINDS)
        try:
            if number % 10 == 3:
                await self._leave(http, topic)
                self._counts["left"] += 1
            elif number % 10 == 7:
                answer = await http.post("/v1/chat/completions", json={"messages": _messages(topic), "bad": 1})
                self._counts["bad" if answer.status_code == 400 else "wrong"] += 1
            else:
                right = await self._ask(http, kind, topic) == self._expected[kind, topic]
                self._counts["good" if right else "wrong"] += 1
        except httpx.HTTPStatusError:
            self._counts["refused"] += 1
        except httpx.HTTPError:
            self._counts["unanswered"] += 1

    async def _leave(self, http: httpx.AsyncClient, topic: int) -> None:
        body = {"messages": _messages(topic), "stream": True, "logit_bias": {"2": -100}}
        try:
            async with http.stream("POST", "/v1/chat/completions", json=body, timeout=10) as response:
                seen = self._random.randrange(4)
                async for _ in response.aiter_lines():
                    seen -= 1
                    if seen < 0:
                        break
        except httpx.ReadTimeout:  # it was queued, and left there
            pass

    async def _ask(self, http: httpx.AsyncClient, kind: str, topic: int) -> Any:
        body: dict[str, Any] = {"messages": _messages(topic), "max_tokens": 24}
        path = "/v1/chat/completions"
        if kind == "stream":
            return _joined((await _post(http, path, {**body, "stream": True})).text.splitlines())
        if kind == "sampled":
            body.update(temperature=1.0, seed=topic, top_p=0.9)
        elif kind == "schema":
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
        elif kind == "responses":
            asked = {"input": body["messages"], "max_output_tokens": 24}
            return (await _post(http, "/v1/responses", asked)).json()["output"][0]["content"][0]["text"]
        elif kind == "messages":
            return (await _post(http, "/v1/messages", body)).json()["content"][0]["text"]
        return (await _post(http, path, body)).json()["choices"][0]["message"]["content"]

    async def _state(self, http: httpx.AsyncClient) -> dict[str, Any]:
        for _ in range(600):
            health = (await http.get("/health")).json()
            if not health["running"] + health["queued"]:
                break
            await asyncio.sleep(0.1)
        await asyncio.sleep(1.0)
        status = Path(f"/proc/{self._server.pid}/status").read_text(encoding="utf-8")
        told = dict(line.split(":", 1) for line in status.splitlines())
        memory, threads = int(told["VmRSS"].split()[0]) * 1024, int(told["Threads"])
        return {"running": health["running"] + health["queued"], "memory": memory, "threads": threads}


async def _post(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> httpx.Response:
    answer = await http.post(path, json=body)
    answer.raise_for_status()
    return answer


def _messages(topic: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"Your card was charged {topic}.50 at station {topic}"}]


def _joined(lines: list[str]) -> str:
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    return "".join(event["choices"][0]["delta"].get("content") or "" for event in events)


if __name__ == "__main__":
    main()
