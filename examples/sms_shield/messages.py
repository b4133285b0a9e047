"""The example's task as data: invented text messages, and what a phone shield should say about each of them.

The messages come from ``scripts/make_sms_corpus.py``; the answers are this example's own. Nobody's messages are in it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from make_sms_corpus import Row, content_key, make_rows

SYSTEM = "Screen this text message. Answer in JSON: label, category, risk, reason."
SIZES = {"train": 640, "valid": 64, "test": 96}
FIELDS = ("label", "category", "risk", "reason")

# What the shield says of a message. For spam it adds the words that gave it away, quoted from the message.
REASONS = {
    "delivery": "news of a parcel",
    "bank_alert": "a notice that asks for nothing",
    "otp": "a code to sign in",
    "appointment": "a visit that was booked",
    "family": "family",
    "plans": "friends making plans",
    "work": "colleagues",
    "weather": "a weather report",
    "travel": "a trip that was booked",
    "bill": "a bill or a receipt",
    "promo": "advertising",
    "survey": "wants answers",
    "loan_offer": "offers money",
    "prize_scam": "promises a prize",
    "phishing": "wants money or secrets",
    "job_scam": "promises easy pay",
}


def make_splits(seed: int = 0) -> dict[str, list[Row]]:
    """Chat rows by split; no message is in two of them, nor twice in one, also with case and digits ignored."""
    rows = [_shield(row) for row in make_rows(sum(SIZES.values()), seed=seed)]
    assert len({content_key(row["messages"][1]["content"]) for row in rows}) == len(rows)
    starts = [sum(list(SIZES.values())[:i]) for i in range(len(SIZES))]
    return {name: rows[start : start + SIZES[name]] for name, start in zip(SIZES, starts, strict=True)}


def write_splits(folder: Path, seed: int = 0) -> None:
    """Write ``train.jsonl``, ``valid.jsonl`` and ``test.jsonl``: the same bytes on every machine."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in make_splits(seed).items():
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8", newline="\n")


def read_answer(text: str) -> dict[str, object] | None:
    """The answer's four fields; None where it is no JSON object with exactly these, in this order."""
    try:
        answer = json.loads(text)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) and tuple(answer) == FIELDS else None


def _shield(row: Row) -> Row:
    """The generator's row with this example's system message and answer."""
    _, message, answered = row["messages"]
    made = json.loads(answered["content"])
    quoted = f": {made['evidence']}" if made["label"] == "spam" and made["evidence"] else ""
    values = (made["label"], made["category"], made["risk"], REASONS[made["category"]] + quoted)
    answer = json.dumps(dict(zip(FIELDS, values, strict=True)), ensure_ascii=False, separators=(",", ":"))
    return {
        "messages": [
            {"role": "system", "content": SYSTEM},
            message,
            {"role": "assistant", "content": answer},
        ]
    }
