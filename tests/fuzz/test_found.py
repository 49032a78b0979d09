"""Inputs that once led to something that was no answer: each is read or refused from now on."""

from __future__ import annotations

import base64

import msgspec
import pytest

from clew.client import Client
from clew.link import frames as f
from clew.link.calls import METHODS
from clew.ports.store import StoreError
from clew.service.errors import RPCError
from clew.storage.sqlite.connection import to_path
from tests.fuzz.targets import TARGETS
from tests.fuzz.test_fuzz import check

DEPTH = 5_000
DEEP = b"[" * DEPTH + b"]" * DEPTH

FOUND: dict[str, tuple[str, bytes]] = {
    "a task that is nested without end": ("node_session", b'\x02{"x":' + DEEP + b"}"),
    "an attempt that is nested without end": ("node_session", b'\x03{"x":' + DEEP + b"}"),
    "a request in the inbox that is nested without end": ("inbox", b'\x00{"x":' + DEEP + b"}"),
    "a notification that is nested without end": ("hint", b'["you",[],' + DEEP + b"]"),
    "a search attribute that is nested without end": ("search_attributes", b"\x00" + DEEP),
    "an owner that is nested without end": ("owner_file", b'{"x":' + b"[" * 2_000),
    "a claim check that is nested without end": ("claim_check", b'{"x":' + DEEP + b"}"),
    "a kept payload that is nested without end": ("kept_payload", b"\x81\xa1x" + b"\x91" * DEPTH),
    "the name of a key that is a megabyte": ("encrypted_payload", b"\x00" * 1_000_000),
    "headers of a stored response that are none": ("stored_response", b"201\n\nnot msgpack\n\nbody"),
    "a status of a stored response that is none": ("stored_response", b"so-so\n\n\x90\n\nbody"),
    "a port of thousands of digits": ("server_settings", b"port = " + b"9" * 4_900),
    "a profile that is nested without end": ("profile", b"x = " + b"[" * 4_000),
    "a key in a file that is no text": ("key_file", b"\xff\xfe"),
    "a process number of thousands of digits": ("process_mark", b"9" * 5_000),
    "a password in a URL that is none": ("connection_string", b"postgresql://user:pass-word@[host/db"),
    "a password beside a letter that is another": (
        "connection_string",
        "postgresql://user:pass-word@\u2100/db".encode(),
    ),
    "a pool of thousands of digits": ("connection_string", b"postgresql://host/db?pool_size=" + b"9" * 5_000),
    "a stack that is nested without end": ("web_stack", DEEP),
}


@pytest.mark.parametrize("what", list(FOUND))
def test_what_was_found_is_read_or_refused(what: str) -> None:
    name, data = FOUND[what]
    check(TARGETS[name], data)


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), 0.0, -1.0])
def test_a_node_that_wants_pings_every_so_often_is_none(seconds: float) -> None:
    options = f.LinkOptions(ping_seconds=seconds)
    with pytest.raises(RPCError, match="ping_seconds"):
        TARGETS["node_greeting"].read(f.encode(f.Welcome(version=1, session="s", options=options)))


def test_a_path_that_is_too_long_is_refused_before_its_links_are_followed() -> None:
    with pytest.raises(StoreError, match="200000 characters"):
        to_path("sqlite:" + "*/" * 100_000)


def test_times_that_are_no_numbers_are_no_settings() -> None:
    target = TARGETS["server_variables"]
    with pytest.raises(target.refusals, match="greater than zero"):
        target.read(b"shutdown_seconds=nan")


async def test_what_one_caller_sends_fails_no_commit_with_others_in_it() -> None:
    """Search attributes are indexed by the commit, which the starts of others are in."""
    data = base64.b64encode(DEEP).decode()
    attributes = {"A": {"$payload": {"metadata": {"encoding": base64.b64encode(b"json/plain").decode()}, "data": data}}}
    start = METHODS["start_workflow"]
    client = await Client.connect("sqlite::memory:")
    try:
        connection = client.connection
        answers = []
        for workflow_id, given in (("deep", attributes), ("other", {})):
            body = msgspec.json.encode({
                "namespace": "default", "workflow_id": workflow_id, "workflow_type": "W", "task_queue": "q",
                "request_id": workflow_id, "search_attributes": given,
            })  # fmt: skip
            answers.append(connection.call(connection.service.start_workflow, start.decode_request(body)))
        for answer in answers:
            assert (await answer).started
    finally:
        await client.close()


def test_a_history_that_is_not_in_order_is_not_replayed() -> None:
    target = TARGETS["history_replay"]
    with pytest.raises(ValueError, match="Event 3 of the history of 'w' has the number 1"):
        target.read(target.examples[0].replace(b'"event_id":3,', b'"event_id":1,'))
