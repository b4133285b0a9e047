"""A stand-in for the Hugging Face Hub on loopback: the part of its HTTP API that a graph's push and pull call.

Repositories have commits, branches and owners; answers can be told to fail, or to break off in the middle.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import huggingface_hub
import yaml

TOKEN = "hf_standInTokenOfAlice"
OWNER = "alice"


@dataclass
class Repository:
    """What the stand-in knows of one: its commits, by hash, and where its branches are."""

    private: bool
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)

    def commit(self, files: dict[str, bytes], branch: str = "main") -> str:
        """Lay files over those of a branch; the new commit's hash."""
        held = {**self.commits.get(self.branches.get(branch, ""), {}), **files}
        digest = hashlib.sha1(f"{len(self.commits)} {branch} {sorted(held)}".encode()).hexdigest()
        self.commits[digest], self.branches[branch] = held, digest
        return digest


@dataclass
class Fault:
    """What goes wrong with the next requests that fit: a status, an answer that is cut off behind so many bytes, or one
    that does not come before the client gives up."""

    method: str
    path: str  # a pattern that is searched for
    status: int | None = None
    code: str = ""  # the Hub's word for it
    cut: int | None = None
    stalled: float = 0.0  # seconds
    times: int = 1


class StandIn(ThreadingHTTPServer):
    """The server; ``requests`` lists (method, path) as they came, ``bodies`` all bytes that were sent to it."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.repositories: dict[str, Repository] = {}
        self.blobs: dict[str, bytes] = {}
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str]] = []
        self.bodies: list[bytes] = []
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.thread.start()

    def add(self, name: str, files: dict[str, bytes], *, private: bool = False) -> str:
        """Put a repository there, or a further commit on its main branch; the commit's hash."""
        return self.repositories.setdefault(name, Repository(private)).commit(files)

    def asked(self, method: str, pattern: str) -> int:
        """How many requests fit."""
        return sum(m == method and re.search(pattern, path) is not None for m, path in self.requests)

    def close(self) -> None:
        """Nobody can reach it any more, over an open connection neither."""
        huggingface_hub.close_session()
        self.shutdown()
        self.server_close()
        self.thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: StandIn
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer("GET")

    def do_HEAD(self) -> None:
        self._answer("HEAD")

    def do_POST(self) -> None:
        self._answer("POST")

    def do_PUT(self) -> None:
        self._answer("PUT")

    def _answer(self, method: str) -> None:
        path = unquote(urlsplit(self.path).path)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.requests.append((method, path))
        self.server.bodies.append(self.path.encode() + b"\n" + body)
        fault = next(
            (f for f in self.server.faults if f.times and f.method == method and re.search(f.path, path)), None
        )
        self.cut: int | None = None
        if fault is not None:
            fault.times -= 1
            threading.Event().wait(fault.stalled)
            if fault.status is not None:
                self._send(fault.status, {"error": f"stand-in's {fault.status}"}, X_Error_Code=fault.code)
                return
            self.cut = fault.cut
        for method_of_route, pattern, act in _ROUTES:
            found = re.fullmatch(pattern, path)
            if method_of_route == method and found:
                act(self, body, **found.groupdict())
                return
        self._send(404, {"error": f"no route for {method} {path}"})

    # --- what it answers with

    def _send(self, status: int, content: Any, **headers: str) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if self.cut is not None:
            self.wfile.write(data[: self.cut])
            self.close_connection = True
            return
        self.wfile.write(data)

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, {"error": code}, X_Error_Code=code)

    def _signed_in(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def _find(self, repo: str, revision: str = "main") -> tuple[Repository, str] | None:
        """The repository and the commit; None after an error was sent."""
        found = self.server.repositories.get(repo)
        if found is None or (found.private and not self._signed_in()):
            # as the Hub does, which does not tell strangers what exists
            self._refuse(404 if self._signed_in() else 401, "RepoNotFound")
            return None
        commit = found.branches.get(revision, revision)
        if commit not in found.commits and found.commits:
            self._refuse(404, "RevisionNotFound")
            return None
        return found, commit

    # --- routes

    def model(self, _: bytes, repo: str, revision: str | None = None) -> None:
        if (found := self._find(repo, revision or "main")) is None:
            return
        repository, commit = found
        files = [{"rfilename": n, "size": len(c)} for n, c in repository.commits.get(commit, {}).items()]
        self._send(200, {"id": repo, "sha": commit, "private": repository.private, "siblings": files, "tags": []})

    def create(self, body: bytes) -> None:
        asked = json.loads(body)
        if not self._signed_in():
            self._refuse(401, "Unauthorized")
            return
        name = f"{asked['organization']}/{asked['name']}"
        if asked["organization"] != OWNER:
            self._send(403, {"error": "You don't have the rights to create a model under this namespace"})
        elif name in self.server.repositories:
            self._send(409, {"error": "You already created this model repo"})
        else:
            private = asked.get("private", False) or asked.get("visibility") == "private"
            self.server.repositories[name] = Repository(private)
            self._send(200, {"url": f"{self.server.url}/{name}", "name": name})

    def validate(self, body: bytes) -> None:
        content = json.loads(body)["content"]
        try:
            front = yaml.safe_load(content.split("---\n")[1])
            assert isinstance(front, dict)
        except (yaml.YAMLError, IndexError, AssertionError) as error:
            self._send(400, {"errors": [{"message": f"Invalid metadata: {error}"}]})
            return
        self._send(200, {"errors": [], "warnings": []})

    def preupload(self, body: bytes, repo: str, revision: str) -> None:
        if self._writable(repo):
            files = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
                    "shouldIgnore": False,
                }
                for file in json.loads(body)["files"]
            ]
            self._send(200, {"files": files})

    def _writable(self, repo: str) -> bool:
        if self._find(repo) is None:
            return False
        if not self._signed_in() or not repo.startswith(f"{OWNER}/"):
            self._send(403, {"error": "Forbidden"})
            return False
        return True

    def lfs_batch(self, body: bytes, repo: str) -> None:
        if self._writable(repo):
            objects = [
                {**o, "actions": {"upload": {"href": f"{self.server.url}/lfs/{o['oid']}"}}}
                for o in json.loads(body)["objects"]
            ]
            self._send(200, {"transfer": "basic", "objects": objects})

    def lfs_put(self, body: bytes, oid: str) -> None:
        if hashlib.sha256(body).hexdigest() != oid:
            self._send(400, {"error": "other bytes than were announced"})
            return
        self.server.blobs[oid] = body
        self._send(200, {})

    def commit(self, body: bytes, repo: str, revision: str) -> None:
        if not self._writable(repo):
            return
        files = {}
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.server.blobs[value["oid"]]
        digest = self.server.repositories[repo].commit(files, revision)
        self._send(200, {"commitUrl": f"{self.server.url}/{repo}/commit/{digest}", "commitOid": digest})

    def resolve(self, _: bytes, repo: str, revision: str, name: str) -> None:
        if (found := self._find(repo, revision)) is None:
            return
        repository, commit = found
        content = repository.commits.get(commit, {}).get(name)
        if content is None:
            self._refuse(404, "EntryNotFound")
            return
        status, start, headers = 200, 0, {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X_Repo_Commit": commit}
        if asked := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "")):
            status, start = 206, int(asked[1])
            headers["Content_Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        self._send(status, content[start:], **headers)


_REPO = r"(?P<repo>[^/]+/[^/]+)"
_ROUTES = [
    ("GET", rf"/api/models/{_REPO}", _Handler.model),
    ("GET", rf"/api/models/{_REPO}/revision/(?P<revision>.+)", _Handler.model),
    ("POST", r"/api/repos/create", _Handler.create),
    ("POST", r"/api/validate-yaml", _Handler.validate),
    ("POST", rf"/api/models/{_REPO}/preupload/(?P<revision>.+)", _Handler.preupload),
    ("POST", rf"/{_REPO}\.git/info/lfs/objects/batch", _Handler.lfs_batch),
    ("PUT", r"/lfs/(?P<oid>[0-9a-f]{64})", _Handler.lfs_put),
    ("POST", rf"/api/models/{_REPO}/commit/(?P<revision>.+)", _Handler.commit),
    ("GET", rf"/{_REPO}/resolve/(?P<revision>.+)/(?P<name>[^/]+)", _Handler.resolve),
    ("HEAD", rf"/{_REPO}/resolve/(?P<revision>.+)/(?P<name>[^/]+)", _Handler.resolve),
]
