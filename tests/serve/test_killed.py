"""A server that is killed loses what it was saying, and nothing that it had written."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

import httpx
import pytest
from graphs import Compiled
from serving import RUN, process
from test_leaving import ENDLESS, until

from daari_mlx.serve.cache_files import CacheFiles

# dies when half of the second cache that it writes is on the disk
DIES_WRITING = f"""
import os, signal
from daari_mlx.serve import cache_files
save, written = cache_files.save_prompt_cache, []
def dies(file, cache, told):
    save(file, cache, told)
    file.flush()
    written.append(file.name)
    if len(written) == 2:
        os.ftruncate(file.fileno(), os.path.getsize(file.name) // 2)
        os.kill(os.getpid(), signal.SIGKILL)
cache_files.save_prompt_cache = dies
{RUN}
"""
CHATS: Any = [
    [{"role": "system", "content": "Answer in JSON, and be brief about it."}, {"role": "user", "content": text}]
    for text in ("Your card was charged 12.50", "Are we still on for dinner?", "You have won a prize")
]


@contextmanager
def killed(*options: Any, run: str = RUN) -> Iterator[tuple[Popen[str], str]]:
    """A server that is dead by SIGKILL at the end."""
    server, url = process(*options, run=run)
    yield server, url
    assert server.wait(60) == -signal.SIGKILL


def ask(url: str, chat: Any) -> tuple[str, int]:
    """The answer, and how many tokens of its prompt were known."""
    made = httpx.post(f"{url}/v1/chat/completions", json={"messages": chat, "max_tokens": 30}, timeout=60).json()
    return made["choices"][0]["message"]["content"], made["usage"]["prompt_tokens_details"]["cached_tokens"]


def caches(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


@pytest.mark.slow
def test_what_was_written_is_there_after_a_kill_and_nothing_is_torn(
    compiled: Compiled, tiny_teacher_path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = ["--model", tiny_teacher_path, "--graph", compiled.path, "--num-draft-tokens", 3]
    options += ["--prompt-cache-dir", tmp_path]
    with killed(*options) as (server, url):
        said, known = ask(url, CHATS[0])
        assert known == 0
        until(lambda: bool(caches(tmp_path)), "a cache that is written")
        body = {**ENDLESS, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as answer:
            lines = answer.iter_lines()
            assert '"text"' in next(lines)
            server.kill()
            with pytest.raises(httpx.HTTPError):
                list(lines)
    with killed(*options, run=DIES_WRITING) as (server, url):
        again, known = ask(url, CHATS[0])
        assert again == said and known > 20, "read from the disk"
        second, _ = ask(url, CHATS[1])
        assert second != said
        until(lambda: server.poll() is not None, "a death while it writes")
    assert [path for path in tmp_path.iterdir() if path not in caches(tmp_path)], "it died within a file"
    with killed(*options) as (server, url):
        until(lambda: sorted(tmp_path.iterdir()) == caches(tmp_path), "what was torn is gone")
        assert ask(url, CHATS[0]) == (said, known)
        assert ask(url, CHATS[1])[0] == second
        server.kill()
    files = CacheFiles(str(tmp_path), compiled.teacher.fingerprint(), 64, 1 << 30)
    assert len(list(files.load())) == len(caches(tmp_path)) and not caplog.text
