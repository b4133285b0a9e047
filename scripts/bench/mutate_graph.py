"""Hostile graphs: one random damage to the files of a sound one, with or without hashes that fit it.

Nothing here knows which arrays a graph has: names, types and places are read from the header.
"""

from __future__ import annotations

import hashlib
import json
import random
import struct
from collections.abc import Callable
from typing import Any

from daari_mlx.graph.artifact import ARRAYS, CONFIG, STATS, seal

Files = dict[str, bytes]
DTYPES = {"F32": 4, "I32": 4, "I64": 8, "U64": 8, "F64": 8, "U32": 4, "F16": 2, "BF16": 2, "U8": 1, "I8": 1, "BOOL": 1}
EXTREMES = {
    "F32": [0x7FC00000, 0x7F800000, 0xFF800000, 1, 0x80000000, 0x7F7FFFFF, 0x3F800001],
    "I32": [-1, -(2**31), 2**31 - 1, 0, 1],
    "I64": [-1, -(2**63), 2**63 - 1, 0, 2**32],
    "U64": [0, 2**64 - 1, 2**63],
    "U32": [0, 2**32 - 1],
    "F16": [0x7E00, 0x7C00, 0xFC00, 0x8000],
    "BF16": [0x7FC0, 0x7F80, 0xFF80, 0x8000],
    "I8": [-128, -1, 127],
    "U8": [0, 255],
}
ODD = [
    None, True, False, 0, -1, 1, 2**31, 2**32, 2**63, 2**64, 10**40, -(10**40), 0.5, 1e308, float("nan"), float("inf"),
    "", "x", "12", "\ud800", "\0", "x" * 5000, [], [[]], {}, {"": {}}, [0] * 300, {"a": {"b": [None]}},
]  # fmt: skip


def mutate(files: Files, chance: random.Random) -> tuple[str, Files]:
    """Damage a copy of ``files``.

    Args:
        files: the bytes of a sound graph's ``config.json``, ``graph.safetensors`` and ``compile_stats.json``.
        chance: decides everything; the same state gives the same damage.

    Returns:
        What was done, and the damaged files. Three in four times both hashes fit: a person who means harm writes them.
    """
    name = chance.choice(sorted(MUTATIONS))
    damaged = MUTATIONS[name](dict(files), chance)
    if chance.random() < 0.75:
        damaged = resealed(damaged)
        name += ", resealed"
    return name, damaged


def resealed(files: Files) -> Files:
    """The files with the hash of the arrays and that of the config made to fit, where the config can be read."""
    try:
        config = json.loads(files[CONFIG])
        if not isinstance(config, dict):
            return files
        config["arrays_sha256"] = hashlib.sha256(files[ARRAYS]).hexdigest()
        config["config_sha256"] = seal(config)
        return {**files, CONFIG: json.dumps(config).encode()}
    except (KeyError, ValueError, RecursionError):
        return files


def split(content: bytes) -> tuple[dict[str, Any], bytes]:
    """Header and data of a safetensors file."""
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def join(header: Any, data: bytes, length: int | None = None) -> bytes:
    """A safetensors file; ``header`` may be raw bytes, ``length`` a lie."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length % 2**64) + text + data


def _arrays(header: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The entries of a sound header that describe arrays with at least one item."""
    return {
        name: entry
        for name, entry in header.items()
        if name != "__metadata__" and entry["data_offsets"][0] < entry["data_offsets"][1]
    }


def _any_file(files: Files, chance: random.Random) -> str:
    return chance.choice([ARRAYS, ARRAYS, CONFIG, CONFIG, STATS])


def _bits(files: Files, chance: random.Random) -> Files:
    name = _any_file(files, chance)
    content = bytearray(files[name])
    for _ in range(chance.choice([1, 1, 2, 8])):
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    return {**files, name: bytes(content)}


def _bytes(files: Files, chance: random.Random) -> Files:
    name = _any_file(files, chance)
    content = bytearray(files[name])
    start, length = chance.randrange(len(content)), chance.choice([1, 4, 8, 64])
    fill = chance.choice([b"\0", b"\xff", b"[", b'"', b"9", chance.randbytes(1)])
    content[start : start + length] = fill * len(content[start : start + length])
    return {**files, name: bytes(content)}


def _cut(files: Files, chance: random.Random) -> Files:
    name = _any_file(files, chance)
    return {**files, name: files[name][: chance.choice([0, 7, 8, 9, chance.randrange(len(files[name]))])]}


def _longer(files: Files, chance: random.Random) -> Files:
    name = _any_file(files, chance)
    return {**files, name: files[name] + chance.choice([b"\0", b"{}", chance.randbytes(100), files[name]])}


def _missing(files: Files, chance: random.Random) -> Files:
    del files[_any_file(files, chance)]
    return files


def _header_length(files: Files, chance: random.Random) -> Files:
    header, data = split(files[ARRAYS])
    true = len(files[ARRAYS]) - len(data) - 8
    lie = chance.choice([0, 1, 2, true - 1, true + 1, len(files[ARRAYS]), 2**31, 2**32 + true, 2**63, 2**64 - 1])
    return {**files, ARRAYS: join(header, data, lie)}


def _header_entry(files: Files, chance: random.Random) -> Files:
    header, data = split(files[ARRAYS])
    for _ in range(chance.choice([1, 1, 2, 3])):
        names = [n for n, entry in header.items() if isinstance(entry, dict) and isinstance(entry.get("shape"), list)]
        if not names:
            break
        _lie(header, chance.choice(names), data, chance)
    return {**files, ARRAYS: join(header, data)}


def _lie(header: dict[str, Any], name: str, data: bytes, chance: random.Random) -> None:
    """One untruth about one array."""
    entry = header[name]
    match chance.randrange(8):
        case 0:
            entry["dtype"] = chance.choice([*DTYPES, "F128", "", 3])
        case 1 if entry["shape"]:
            place = chance.randrange(len(entry["shape"]))
            entry["shape"][place] = chance.choice([0, 1, -1, 2**31, 2**62, 2**64, 1.5, "4", None, len(data)])
        case 2:
            entry["shape"] = chance.choice([[], [0], [2**32, 2**32], [-1, -4], [[1]], entry["shape"][::-1], 7])
        case 3:
            entry["data_offsets"] = chance.choice(
                [[0, 0], [0, len(data)], [-4, 0], [4, 0], [0, 2**63], [len(data), len(data) + 4], [], [0], "ab", None]
            )
        case 4:  # another array's place
            other = header[chance.choice(sorted(header))]
            entry["data_offsets"] = other.get("data_offsets") if isinstance(other, dict) else other
        case 5:
            header[chance.choice(["more", "", "__metadata__", name + "\0"])] = dict(entry)
        case 6:
            del header[name]
        case _:
            header[name] = chance.choice(ODD[:-8])


def _header_text(files: Files, chance: random.Random) -> Files:
    """Headers that are no object, nested without end, padded, or say a name twice."""
    header, data = split(files[ARRAYS])
    text = json.dumps(header).encode()
    name = chance.choice(sorted(header))
    twice = json.dumps({name: {"dtype": "I32", "shape": [-1], "data_offsets": [0, -4]}}).encode()
    raw = chance.choice(
        [
            b"[" * 50_000,
            b'{"a":' * 20_000,
            b"[" + b"[]," * 60_000 + b"0]",
            b"{" + b",".join(b'"%d":{}' % n for n in range(20_000)) + b"}",
            b" " * 100_000 + text,
            text + b" " * 100_000,
            twice[:-1] + b"," + text[1:],
            text[:-1] + b"," + twice[1:],
            text.replace(b'"dtype"', b'"dtype":"F32","dtype"'),
            b"9" * 30_000,
            b'{"__metadata__":' + b"9" * 5000 + b"," + text[1:],
            text.replace(b"0", b"1e999", 1),
            b"\xff\xfe" + text,
            b"null",
            b"\x80\x04cos\nsystem\n(S'false'\ntR.",
        ]
    )
    return {**files, ARRAYS: join(raw, data)}


def _values(files: Files, chance: random.Random) -> Files:
    """Sound types and shapes, items that are out of range, out of order, or no numbers."""
    header, data = split(files[ARRAYS])
    content = bytearray(data)
    places = [entry for entry in _arrays(header).values() if entry["dtype"] in EXTREMES]
    for _ in range(chance.choice([1, 1, 3, 20])):
        entry = chance.choice(places)
        width = DTYPES[entry["dtype"]]
        begin, end = entry["data_offsets"]
        at = chance.choice([begin, end - width, begin + width * chance.randrange((end - begin) // width)])
        value = chance.choice(EXTREMES[entry["dtype"]])
        content[at : at + width] = (value % 2 ** (8 * width)).to_bytes(width, "little")
    return {**files, ARRAYS: join(header, bytes(content))}


def _shuffled(files: Files, chance: random.Random) -> Files:
    """The items of one array in another order, or all the same."""
    header, data = split(files[ARRAYS])
    entry = chance.choice(list(_arrays(header).values()))
    begin, end = entry["data_offsets"]
    width = DTYPES[entry["dtype"]]
    items = [data[at : at + width] for at in range(begin, end, width)]
    if chance.random() < 0.5:
        chance.shuffle(items)
    else:
        items = [chance.choice(items)] * len(items)
    return {**files, ARRAYS: join(header, data[:begin] + b"".join(items) + data[end:])}


def _reshaped(files: Files, chance: random.Random) -> Files:
    """A sound safetensors file, one array of which has another type or number of items."""
    header, data = split(files[ARRAYS])
    header = {name: entry for name, entry in header.items() if name != "__metadata__"}
    changed = chance.choice(sorted(header))
    parts, start, made = [], 0, dict(header)
    for name, entry in header.items():
        part = data[slice(*entry["data_offsets"])]
        new = dict(entry)
        if name == changed:
            new["dtype"] = chance.choice([entry["dtype"], *DTYPES])
            width = DTYPES[new["dtype"]]
            new["shape"] = chance.choice([[chance.randrange(40)], [chance.randrange(9), chance.randrange(9)], [], [0]])
            count = width
            for extent in new["shape"]:
                count *= extent
            part = (part * (count // max(len(part), 1) + 1))[:count].ljust(count, b"\1")
        new["data_offsets"] = [start, start + len(part)]
        start += len(part)
        parts.append(part)
        made[name] = new
    return {**files, ARRAYS: join(made, b"".join(parts))}


def _json_value(files: Files, chance: random.Random) -> Files:
    """An entry of a JSON file, at any depth, of another type, huge, or gone."""
    name = chance.choice([CONFIG, CONFIG, CONFIG, STATS])
    value = json.loads(files[name])
    for _ in range(chance.choice([1, 1, 2, 4])):
        holder, key = value, chance.choice(sorted(value)) if value else "x"
        while isinstance(holder.get(key), dict) and holder[key] and chance.random() < 0.6:
            holder = holder[key]
            key = chance.choice(sorted(holder))
        if chance.random() < 0.2:
            holder.pop(key, None)
        else:
            holder[key] = chance.choice(ODD)
    return {**files, name: json.dumps(value).encode()}


def _json_text(files: Files, chance: random.Random) -> Files:
    """A JSON file that is no object, nested without end, very long, or says a name twice."""
    name = chance.choice([CONFIG, CONFIG, STATS])
    text = files[name].strip()
    key = json.dumps(chance.choice(sorted(json.loads(text)))).encode()
    odd = json.dumps(chance.choice(ODD)).encode()
    raw = chance.choice(
        [
            b"{" + key + b":" + odd + b"," + text[1:],
            text[:-1] + b"," + key + b":" + odd + b"}",
            text[:-1] + b',"more":' + b"[" * 40_000 + b"]" * 40_000 + b"}",
            text[:-1] + b',"more":[' + b"[]," * 60_000 + b"0]}",
            text[:-1] + b',"more":' + b"9" * 20_000 + b"}",
            text[:-1] + b',"more":1e99999}',
            text[:-1] + b',"more":"' + b"y" * 400_000 + b'"}',
            b"[" * 100_000,
            b"[" + text + b"]",
            b"\xff\xfe" + text.decode().encode("utf-16-le"),
            b"\xef\xbb\xbf" + text,
            b" " * 400_000 + text,
            odd,
            b"",
        ]
    )
    return {**files, name: raw}


MUTATIONS: dict[str, Callable[[Files, random.Random], Files]] = {
    "bits flipped": _bits,
    "bytes overwritten": _bytes,
    "cut": _cut,
    "longer": _longer,
    "a file missing": _missing,
    "header length": _header_length,
    "header entries": _header_entry,
    "header text": _header_text,
    "values": _values,
    "values in another order": _shuffled,
    "another type or shape": _reshaped,
    "JSON values": _json_value,
    "JSON text": _json_text,
}
