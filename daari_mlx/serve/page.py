"""The page at `/`: one file, which its browser lets load and ask nothing but this server."""

from __future__ import annotations

import re
from base64 import b64encode
from functools import cache
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path

from starlette.responses import Response

PAGE = Path(__file__).with_name("page.html")


def page() -> Response:
    """The page; its policy names its own script and style by their hashes, and forbids to make HTML of text."""
    body, policy = _page()
    return Response(
        body,
        media_type="text/html",
        headers={
            "Content-Security-Policy": policy,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-cache",
        },
    )


def is_own(origin: str, host: str) -> bool:
    """Whether an origin is this server's own page, opened at ``host``, the Host header.

    Only where that is an address or localhost: a name may lead a browser anywhere.
    """
    name = re.sub(r":\d+$", "", host)
    if origin not in (f"http://{host}", f"https://{host}"):
        return False
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return name == "localhost"
    return True


@cache
def _page() -> tuple[bytes, str]:
    text = PAGE.read_text(encoding="utf-8")
    rules = [
        "default-src 'none'",
        f"script-src {_hash(text, 'script')}",
        f"style-src {_hash(text, 'style')}",
        "img-src data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ]
    return text.encode(), "; ".join(rules)


def _hash(text: str, tag: str) -> str:
    (inside,) = re.findall(f"<{tag}[^>]*>(.*?)</{tag}>", text, re.DOTALL)
    return f"'sha256-{b64encode(sha256(inside.encode()).digest()).decode()}'"
