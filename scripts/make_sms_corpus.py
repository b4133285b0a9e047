"""Write an invented corpus of text messages with structured answers, for compiling and for examples.

Every message is made here from the project's own templates; names, firms, numbers and links are fictional
(links end in the reserved ``.example``).
Usage: ``python scripts/make_sms_corpus.py OUT [--rows 700 --seed 0]``.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from pathlib import Path
from typing import TypedDict

from sms_templates import CATEGORIES, SLOTS

from daari_mlx.ground.errors import DaariError


class Message(TypedDict):
    """One chat message, as chat templates take it."""

    role: str
    content: str


class Row(TypedDict):
    """One line of the corpus: system, user and assistant message."""

    messages: list[Message]


SYSTEM = (
    "You sort text messages. Answer with one compact JSON object and nothing else: "
    '{"label":"ham"|"spam","category":"<one of: ' + ", ".join(CATEGORIES) + '>",'
    '"risk":<0-99>,"evidence":"<a phrase quoted from the message, or empty>"}'
)
CASUAL = {"family", "plans", "work"}  # people write these, so they come with shorthand, typos and emoji
SHORTHAND = {
    "you": "u",
    "are": "r",
    "please": "pls",
    "tomorrow": "tmrw",
    "before": "b4",
    "and": "n",
    "your": "ur",
}
URGENT = re.compile(r"\b(urgent|now|today|expires|ends|only|claim)\b", re.IGNORECASE)


class _Filler:
    """Draws what fills a template's slots."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def __getitem__(self, slot: str) -> str:
        return self.rng.choice(SLOTS[slot]) if slot in SLOTS else getattr(self, slot)()

    def money(self) -> str:
        amount = self.rng.choice([self.rng.randint(2, 99), self.rng.randint(1, 99) * 50])
        return self.rng.choice(["₹{}", "${}", "£{}", "€{}", "Rs {}", "{}.50 EUR"]).format(amount)

    def code(self) -> str:
        return "".join(self.rng.choices("ABCDEFGHKLMNPRTX", k=2)) + str(self.rng.randint(100, 9999))

    def otp(self) -> str:
        return str(self.rng.randint(100_000, 999_999))

    def pin(self) -> str:
        return str(self.rng.randint(1000, 9999))

    def small(self) -> str:
        return str(self.rng.randint(2, 40))

    def hour(self) -> str:
        hour, minute = self.rng.randint(1, 12), self.rng.choice(["", ":15", ":30", ":45"])
        return f"{hour}{minute}{self.rng.choice(['am', 'pm'])}"

    def phone(self) -> str:
        return f"555-01{self.rng.randint(0, 99):02d}"

    def link(self) -> str:
        host = self.rng.choice(["bit-go", "claim-it", "my-pay", "win4u", "secure-id", "r8r", "deal-z"])
        return f"http://{host}.example/{self.code().lower()}"


def make_rows(n_rows: int, *, seed: int = 0) -> list[Row]:
    """Chat rows whose messages all differ, also with digits and case ignored; categories take turns.

    Args:
        n_rows: how many.
        seed: the same seed gives the same rows on every machine.

    Raises:
        DaariError: where ``n_rows`` is not positive, or more than the templates can tell apart.
    """
    if n_rows < 1:
        raise DaariError(f"need at least 1 row, asked for {n_rows}")
    rng = random.Random(seed)
    rows: list[Row] = []
    seen: set[str] = set()
    tries = 0
    while len(rows) < n_rows:
        category = list(CATEGORIES)[len(rows) % len(CATEGORIES)]
        text, evidence = _message(category, rng)
        key = content_key(text)
        if key not in seen:
            seen.add(key)
            rows.append(_row(category, text, evidence))
            tries = 0
        elif (tries := tries + 1) > 1000:
            raise DaariError(f"the templates of {category!r} are used up after {len(rows)} rows; ask for fewer")
    rng.shuffle(rows)
    return rows


def content_key(text: str) -> str:
    """What makes two messages the same: case, digits and spacing are ignored."""
    return " ".join(re.sub(r"\d+", "0", text.lower()).split())


def write_corpus(out: Path, *, n_train: int = 700, seed: int = 0) -> dict[str, int]:
    """Write ``train.jsonl``, ``valid.jsonl`` and ``test.jsonl`` into the folder ``out``.

    Args:
        out: made where it is missing; files of these names are replaced.
        n_train: training rows; validation and test get a sixth of it each.
        seed: see ``make_rows``.

    Returns:
        The number of rows by split.
    """
    held_out = max(1, n_train // 6)
    sizes = {"train": n_train, "valid": held_out, "test": held_out}
    rows = make_rows(sum(sizes.values()), seed=seed)
    keys = [content_key(row["messages"][1]["content"]) for row in rows]
    assert len(set(keys)) == len(rows), "splits are cut from one list of distinct messages"
    out.mkdir(parents=True, exist_ok=True)
    start = 0
    for split, size in sizes.items():
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows[start : start + size])
        (out / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8", newline="\n")
        start += size
    return sizes


def _message(category: str, rng: random.Random) -> tuple[str, str]:
    """One message and the phrase in it that the answer quotes (maybe empty)."""
    text = rng.choice(CATEGORIES[category][2]).format_map(_Filler(rng))
    if category in CASUAL:
        text = _as_people_type(text, rng)
    elif rng.random() < 0.15:
        text = text.lower() if rng.random() < 0.5 else text.replace(". ", "! ")
    found = re.search(r"\[(.*?)\]", text)
    return text.replace("[", "").replace("]", ""), found[1] if found else ""


def _as_people_type(text: str, rng: random.Random) -> str:
    """Shorthand, a slip of the fingers, lower case, an emoji: each now and then."""
    if rng.random() < 0.4:
        text = re.sub(r"\w+", lambda m: SHORTHAND.get(m[0].lower(), m[0]), text)
    long_words = list(re.finditer(r"\b[A-Za-z]{5,}\b", text))
    if long_words and rng.random() < 0.3:
        at = rng.choice(long_words).start() + rng.randint(1, 3)
        text = text[:at] + text[at + 1] + text[at] + text[at + 2 :]
    if rng.random() < 0.3:
        text = text.lower()
    return f"{text} {rng.choice(SLOTS['emoji'])}" if rng.random() < 0.25 else text


def _row(category: str, text: str, evidence: str) -> Row:
    label, base, _ = CATEGORIES[category]
    signals = 3 * ("http" in text) + 2 * bool(URGENT.search(text))
    risk = min(99, base + (signals if label == "spam" else signals // 2))
    answer = {"label": label, "category": category, "risk": risk, "evidence": evidence}
    compact = json.dumps(answer, ensure_ascii=False, separators=(",", ":"))
    contents = {"system": SYSTEM, "user": text, "assistant": compact}
    return {"messages": [{"role": role, "content": content} for role, content in contents.items()]}


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder for train, valid and test.jsonl")
    parser.add_argument("--rows", type=int, default=700, help="training rows (default: 700)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    try:
        sizes = write_corpus(args.out, n_train=args.rows, seed=args.seed)
    except (DaariError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"wrote {args.out}: " + ", ".join(f"{size} {split}" for split, size in sizes.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
