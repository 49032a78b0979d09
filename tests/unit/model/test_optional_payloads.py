"""Payloads that may be left out survive the way into history and back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

from clew.model import events as e
from clew.model.failure import Failure

AT = datetime(2024, 3, 1, tzinfo=UTC)


def test_texts_for_people_round_trip() -> None:
    timer = e.TimerStarted(
        event_id=1,
        event_time=AT,
        timer_id="1",
        start_to_fire_timeout=timedelta(days=2),
        user_metadata=e.UserMetadata(summary=msgspec.Raw(b'"wait for photos"')),
    )
    [back] = e.decode_events(e.encode_events([timer]))
    assert isinstance(back, e.TimerStarted)
    assert back.user_metadata is not None
    assert back.user_metadata.summary is not None
    assert bytes(back.user_metadata.summary) == b'"wait for photos"'
    assert back.user_metadata.details is None
    assert e.encode_events([back]) == e.encode_events([timer])


def test_encoded_attributes_of_a_failure_round_trip() -> None:
    failure = Failure(message="m", encoded_attributes=msgspec.Raw(b'{"message":"secret"}'), cause=Failure(message="c"))
    back = msgspec.json.decode(msgspec.json.encode(failure), type=Failure)
    assert back.encoded_attributes is not None
    assert bytes(back.encoded_attributes) == b'{"message":"secret"}'
    assert back.cause is not None
    assert back.cause.encoded_attributes is None
