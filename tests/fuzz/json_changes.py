"""Changes of JSON that leave it JSON: what gets past a parser, to whatever makes sense of what was parsed.

Owns: `changed`. Never: chance; which places change, and how, are numbers that whoever asks has chosen.
"""

from __future__ import annotations

import json
from typing import Any

ODD: tuple[Any, ...] = (
    None, True, 0, -1, 1, 2, 2**31, 2**63, 2**64, -(2**63) - 1, 1e308, -0.5, "", "x", "\0",
    "\u00e9" * 300, "PT1S", "P99999999D",
    "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", [], {}, [[]], [None], {"": None}, ["x", "x"],
    {"$payload": {"metadata": {"encoding": "YmluYXJ5L3BsYWlu"}, "data": "AAE="}}, {"$payload": {}}, {"$payload": 1},
)  # fmt: skip
"""Values that few readers expect."""


def changed(data: bytes, changes: list[tuple[int, int]]) -> bytes:
    """`data`, before whose JSON there may be one byte, with some places changed; as it is when it is no JSON."""
    starts = [at for at in (data.find(b"{"), data.find(b"[")) if 0 <= at <= 1]
    if not starts:
        return data
    head, body = data[: min(starts)], data[min(starts) :]
    try:
        whole = [json.loads(body)]
    except ValueError:
        return data
    for where, how in changes:
        places = _places(whole)
        if not places:
            break
        holder, key = places[where % len(places)]
        _change(holder, key, how, places)
    return head + (json.dumps(whole[0], separators=(",", ":")).encode() if whole else b"")


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every place in lists and objects: what holds it, and under which key."""
    found: list[tuple[Any, Any]] = []
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        found.append((value, key))
        found += _places(value[key])
    return found


def _change(holder: Any, key: Any, how: int, places: list[tuple[Any, Any]]) -> None:
    kind, detail = how % 5, how // 5
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, list):
        holder.insert(detail % (len(holder) + 1), _copy(holder[key]))
    elif kind == 2:
        other, other_key = places[detail % len(places)]
        holder[key] = _copy(other[other_key])
    elif kind == 3 and isinstance(holder[key], int):
        holder[key] += detail % 7 - 3
    else:
        holder[key] = _copy(ODD[detail % len(ODD)])


def _copy(value: Any) -> Any:
    return json.loads(json.dumps(value))
