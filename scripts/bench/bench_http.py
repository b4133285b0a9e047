"""What HTTP adds to an answer: the same chats asked of the engine and of the server, in turns, in one process.

Usage: ``python scripts/bench/bench_http.py --data test.jsonl [--model MODEL] [--adapter-path FOLDER] [--graph GRAPH]
[-n 60] [--max-tokens 128] [--num-draft-tokens 0] [--out results/server_http.jsonl]``. One client. The engine's arm
does what the server does without HTTP: template, tokenizer, kept prompt caches, tokens to text. The server's arms are
a whole answer and a stream, each over one connection to a server of its own on loopback, so that every arm has its
own caches. Each chat is asked once by each arm, the first of them another each time. How far a round drafts is a
number, so that all arms do the same forwards. Without ``--model`` it is the tiny teacher of the tests, whose forwards
cost little.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench_server import other_words, read_chats
from recording import origin, tell

from daari_mlx.batch.request import Request
from daari_mlx.ground.wired import wired
from daari_mlx.measure.records import Spread
from daari_mlx.serve.caches import PromptCaches
from daari_mlx.serve.options import ServeOptions
from daari_mlx.serve.run import SWITCH, Server, drafting, listen, make_service
from daari_mlx.share.find import load_graph
from daari_mlx.teacher.load import load_teacher
from daari_mlx.text.template import ChatTemplate

ROOT = Path(__file__).resolve().parents[2]
WARMING = 6  # chats
TARGETS = {"request_ms": 2.0, "of_stream": 0.01}
Arm = Callable[[Any], tuple[str, int, int]]  # a chat -> text, tokens, and events that were sent


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=os.path.relpath(ROOT / "tests" / "tiny_teacher"))
    parser.add_argument("--adapter-path")
    parser.add_argument("--graph")
    parser.add_argument("--data", required=True)
    parser.add_argument("-n", type=int, default=60)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--num-draft-tokens", type=int, default=0)
    parser.add_argument("--out")
    args = parser.parse_args()
    sys.setswitchinterval(SWITCH)  # as the command has it
    teacher = load_teacher(args.model, adapter_path=args.adapter_path)
    graph = load_graph(args.graph) if args.graph else None
    options = ServeOptions(port=0)
    served = teacher, graph, options, args.num_draft_tokens
    with serving(*served) as one, serving(*served) as other:
        arms = {
            "engine": engine_arm(teacher, graph, options, args),
            "whole": http_arm(one, args.max_tokens, stream=False),
            "stream": http_arm(other, args.max_tokens, stream=True),
        }
        chats = read_chats(Path(args.data), args.n)
        for chat in chats[:WARMING]:
            for arm in arms.values():
                arm(other_words(chat))
        record = measure(arms, chats)
    shown = ("model", "adapter_path", "graph", "data", "max_tokens", "num_draft_tokens")
    tell({**origin(), "measured": "server_http", **{name: getattr(args, name) for name in shown}, **record}, args.out)


def measure(arms: dict[str, Arm], chats: list[Any]) -> dict[str, Any]:
    """Seconds of each arm, and what the two of HTTP add to the engine's, chat by chat."""
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    events, differ, names = 0, 0, list(arms)
    for number, chat in enumerate(chats):
        said = {}
        for name in names[number % len(names) :] + names[: number % len(names)]:
            start = time.perf_counter()
            said[name] = arms[name](chat)
            seconds[name].append(time.perf_counter() - start)
        events += said["stream"][2]
        differ += len({answer[:2] for answer in said.values()}) > 1
    added = {
        name: [1e3 * (one - alone) for one, alone in zip(seconds[name], seconds["engine"], strict=True)]
        for name in ("whole", "stream")
    }
    of_stream = statistics.median(added["stream"]) / (1e3 * statistics.median(seconds["stream"]))
    return {
        "chats": len(chats),
        "answers_that_differ": differ,
        "events": events,
        "seconds": {name: asdict(Spread.of(times)) for name, times in seconds.items()},
        "added_ms": {name: asdict(Spread.of(times)) for name, times in added.items()},
        "request_ms": statistics.median(added["whole"]),
        "of_stream": of_stream,
        "targets": TARGETS,
        "met": statistics.median(added["whole"]) <= TARGETS["request_ms"] and of_stream <= TARGETS["of_stream"],
    }


def engine_arm(teacher: Any, graph: Any, options: ServeOptions, args: Any) -> Arm:
    """The engine on this thread, with what the server's worker does around it."""
    make_engine, _ = drafting(teacher, graph, options, args.num_draft_tokens)
    engine = make_engine()
    template, caches = ChatTemplate(teacher.tokenizer), PromptCaches(options.prompt_cache_size, options.cache_bytes)

    def answer(messages: Any) -> tuple[str, int, int]:
        prompt = template.prompt_ids(messages)
        known, cache = caches.fetch("", prompt)
        request = Request(
            prompt, args.max_tokens, known=known, prompt_cache=cache, keep_cache=caches.wanted, whole_cache=False
        )
        ids, text = [], ""
        with wired(engine.model, engine.stream):
            engine.add(request)
            while len(engine):
                for event in engine.step():
                    if event.error is not None:
                        raise event.error
                    ids += [response.token for response in event.responses]
                    text += "".join(response.text for response in event.responses)
                    if event.ended and event.prompt_cache is not None:
                        caches.keep("", (prompt + ids)[: event.held], event.prompt_cache)
        return text, len(ids), 0

    return answer


def http_arm(port: int, max_tokens: int, *, stream: bool) -> Arm:
    """A client with a connection of its own, which reads without making anything of it until the end has come."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)

    def answer(messages: Any) -> tuple[str, int, int]:
        body = {"messages": messages, "max_tokens": max_tokens, "temperature": 0.0, "stream": stream}
        if stream:
            body["stream_options"] = {"include_usage": True}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        told = response.read()
        if response.status != 200:
            raise SystemExit(f"the server says {response.status}: {told.decode()}")
        if not stream:
            whole = json.loads(told)
            return whole["choices"][0]["message"]["content"], whole["usage"]["completion_tokens"], 1
        events = [json.loads(line[6:]) for line in told.decode().splitlines() if line.startswith("data: {")]
        text = "".join(one["choices"][0]["delta"].get("content") or "" for one in events if one["choices"])
        return text, events[-1]["usage"]["completion_tokens"], len(events)

    return answer


@contextmanager
def serving(teacher: Any, graph: Any, options: ServeOptions, length: int) -> Iterator[int]:
    """A server on a thread of this process; its port."""
    service, sock = make_service(teacher, graph, options, num_draft_tokens=length), listen(options)
    server = Server(service, "warning")
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    try:
        yield sock.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
        sock.close()


if __name__ == "__main__":
    main()
