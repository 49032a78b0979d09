"""Batches of events decoded together give what they give one by one."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from clew.model import events as e

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def batch(first: int, count: int, size: int = 1) -> bytes:
    return e.encode_events(
        [
            e.MarkerRecorded(
                event_id=first + n,
                event_time=NOW,
                marker_name="m",
                details={"data": (msgspec.Raw(b'"' + b"x" * size + b'"'),)},
            )
            for n in range(count)
        ]
    )


@pytest.mark.parametrize(
    "batches",
    [
        [],
        [batch(1, 1)],
        [batch(1, 2), batch(3, 1), batch(4, 3)],
        [batch(1, 1), batch(2, 1, 10_000)],
        [b"[]", batch(1, 1)],
    ],
    ids=["none", "one", "small", "a large one", "an empty one"],
)
def test_together_is_as_one_by_one(batches: list[bytes]) -> None:
    assert e.decode_event_batches(batches) == [event for data in batches for event in e.decode_events(data)]


@pytest.mark.parametrize("bad", [b"{}", b"[{]", b"", b"[1", b'[{"type": "Unheard"}]', b"[],[]"])
def test_a_bad_batch_is_refused_among_good_ones(bad: bytes) -> None:
    with pytest.raises(msgspec.DecodeError) as alone:
        e.decode_events(bad)
    with pytest.raises(msgspec.DecodeError) as together:
        e.decode_event_batches([batch(1, 1), bad, batch(2, 1)])
    assert str(together.value) == str(alone.value)
