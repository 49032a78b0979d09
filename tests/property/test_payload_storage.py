"""Payloads come back from storage byte by byte, and what is stored is always JSON (docs/adr/0002)."""

from __future__ import annotations

import json

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from clew.model.payload import JSON_PLAIN, Payload, from_stored, is_strict_json, to_stored

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.just("$payload"), inner, max_size=4),
    max_leaves=12,
)
json_documents = st.builds(
    lambda value, indent: json.dumps(value, indent=indent, ensure_ascii=False).encode("utf-8", "surrogatepass"),
    json_values,
    st.none() | st.just(2),
)
metadata = st.just({"encoding": JSON_PLAIN}) | st.dictionaries(st.text(), st.binary(), max_size=3)


@given(metadata=metadata, data=st.binary() | json_documents)
@example(metadata={"encoding": JSON_PLAIN}, data=b'{"$payload": {"metadata": {}, "data": ""}}')
@example(metadata={"encoding": JSON_PLAIN}, data=b"NaN")
@example(metadata={"encoding": JSON_PLAIN}, data=b"[1] trailing")
@example(metadata={"encoding": JSON_PLAIN}, data=b'"\\ud800"')
@example(metadata={"encoding": JSON_PLAIN}, data=b'"\xff"')
@example(metadata={"encoding": JSON_PLAIN}, data=b"  [1, 2]\n")
@example(metadata={"encoding": JSON_PLAIN}, data=b" " * 40 + b'{"$payload": 1}')
@example(metadata={"encoding": JSON_PLAIN}, data=b'{"$\\u0070ayload": {"metadata": {}, "data": ""}}')
@example(metadata={}, data=b"")
def test_what_is_stored_comes_back(metadata: dict[str, bytes], data: bytes) -> None:
    payload = Payload(metadata, data)
    stored = to_stored(payload)
    assert from_stored(stored) == payload
    assert is_strict_json(bytes(stored))
    # Also after a trip through an event, where it is one value among others.
    inside = msgspec.json.decode(msgspec.json.encode([stored, stored]), type=list[msgspec.Raw])
    assert [from_stored(slice_) for slice_ in inside] == [payload, payload]


@given(data=json_documents)
def test_plain_json_is_stored_as_the_text_that_it_is(data: bytes) -> None:
    stored = bytes(to_stored(Payload({"encoding": JSON_PLAIN}, data)))
    if b'"$payload"' in data or not is_strict_json(data):  # such as a string with a lone surrogate
        assert stored.startswith(b'{"$payload":')
    else:
        assert stored == data
