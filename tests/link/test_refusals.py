"""Greetings that are refused, and credentials that cannot be had: told, gathered, tried again; never silent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from clew.link import Admission, ClientOptions, Hello, LinkClient, Peer
from clew.link import refusals as refusals_module
from clew.link.codes import CutCode
from clew.link.refusals import RefusalLog
from clew.model.rejection import RejectionCode
from clew.service import requests as r
from clew.service.errors import RPCError
from tests.link.memory import MemoryDial
from tests.link.service import SECONDS_MAX, FakeService, Raw, make_server, until

Lines = Callable[[], list[str]]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    """The lines so far about refusals."""
    caplog.set_level(logging.INFO, "clew.link")
    return lambda: [record.getMessage() for record in caplog.records if "link.refused" in record.getMessage()]


async def test_the_first_refusal_is_told_at_once_and_the_rest_together(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals_module, "GATHER_SECONDS", 0.05)
    log = RefusalLog(asyncio.get_running_loop())
    for number in range(100):
        log.note(CutCode.UNAUTHENTICATED, f"p{number}", "no key")
    log.note(CutCode.MALFORMED, "q", "noise")
    assert lines() == [
        "link.refused peer=p0 code=UNAUTHENTICATED reason=no key",
        "link.refused peer=q code=MALFORMED reason=noise",
    ]
    await until(lambda: len(lines()) == 3)
    assert lines()[2].startswith("link.refused_more code=UNAUTHENTICATED count=99 ")
    assert "last_peer=p99" in lines()[2]
    # After a quiet while it is news again.
    await until(lambda: not log._timers)
    log.note(CutCode.UNAUTHENTICATED, "p100", "no key")
    assert lines()[3] == "link.refused peer=p100 code=UNAUTHENTICATED reason=no key"
    log.close()


async def test_what_was_gathered_is_told_at_the_end(lines: Lines) -> None:
    log = RefusalLog(asyncio.get_running_loop())
    log.note(CutCode.UNAUTHENTICATED, "p", "no key")
    log.note(CutCode.UNAUTHENTICATED, "p", "no key")
    log.close()
    assert [line.partition(" ")[0] for line in lines()] == ["link.refused", "link.refused_more"]


async def test_a_node_gathers_the_greetings_that_it_refuses(lines: Lines, caplog: pytest.LogCaptureFixture) -> None:
    server = make_server(FakeService())
    for _ in range(20):
        raw = Raw(server)
        await raw.hello(versions=(99,))
        await until(lambda raw=raw: raw.lost)  # type: ignore[misc]
    assert len(lines()) == 1
    assert "code=UNSUPPORTED_VERSION" in lines()[0]
    assert not [record for record in caplog.records if "link.cut" in record.getMessage()]
    server.close()
    assert "count=19" in lines()[1]


async def test_credentials_that_cannot_be_had_are_asked_for_again(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever the user's function raises: the link is away for a while, and never for good without a word."""
    asked: list[str] = []
    is_down = asyncio.Event()

    async def token() -> str:
        asked.append("")
        if is_down.is_set():
            raise KeyError("vault")
        return "good"

    async def admit(hello: Hello, peer: Peer) -> Admission:
        return Admission(service)

    service: Any = FakeService()
    server = make_server(service, admit=admit)
    dial = MemoryDial(server)
    client = LinkClient(dial, token=token, chance=lambda: 0.0, options=ClientOptions(address="a"))
    await asyncio.wait_for(client.start(), SECONDS_MAX)
    is_down.set()
    dial.cut()
    await until(lambda: len(asked) > 3, "it is asked again and again")
    told = [line for record in caplog.records if "link.no_credentials" in (line := record.getMessage())]
    assert len(told) == 1
    assert "KeyError('vault')" in told[0]
    is_down.clear()
    await asyncio.wait_for(_signal(client), SECONDS_MAX)
    await client.close()
    server.close()


async def _signal(client: LinkClient) -> None:
    request = r.SignalWorkflowRequest(namespace="n", workflow_id="w", signal_name="s", request_id="q")
    await client.service.signal_workflow(request)


async def test_whoever_connects_first_is_told_why_there_are_no_credentials() -> None:
    async def token() -> str:
        raise ValueError("no such secret")

    server = make_server(FakeService())
    options = ClientOptions(connect_seconds=0.05)
    client = LinkClient(MemoryDial(server), token=token, chance=lambda: 0.0, options=options)
    with pytest.raises(RPCError, match="no such secret") as refused:
        await asyncio.wait_for(client.start(), SECONDS_MAX)
    assert refused.value.code is RejectionCode.UNAVAILABLE
    server.close()


async def test_a_bug_in_keeping_the_connection_is_not_silent(caplog: pytest.LogCaptureFixture) -> None:
    server = make_server(FakeService())
    client = LinkClient(MemoryDial(server), chance=lambda: 0.0)
    await asyncio.wait_for(client.start(), SECONDS_MAX)

    def broken() -> None:
        raise ZeroDivisionError("a bug")

    client._disconnected = broken  # type: ignore[method-assign]
    server.close()
    await until(lambda: any("link.ended" in record.getMessage() for record in caplog.records))
    with pytest.raises(RPCError, match="ended by a bug"):
        await client.service.describe_workflow(r.DescribeWorkflowRequest(namespace="n", workflow_id="w"))
    await client.close()
