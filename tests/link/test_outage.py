"""What the log says of a link that is away: at once, then seldom, and never a secret."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from clew.link import Admission, ClientOptions, Hello, LinkClient, Peer
from clew.link.outage import OutageLog
from clew.model.rejection import Rejection, RejectionCode
from clew.service.errors import RPCError
from tests.link.memory import MemoryDial
from tests.link.service import SECONDS_MAX, FakeService, linked, make_server, until

NOBODY = RPCError(Rejection(code=RejectionCode.UNAVAILABLE, message="nobody listens"))
REVOKED = RPCError(Rejection(code=RejectionCode.UNAUTHENTICATED, message="This API key is revoked."))


class Clock:
    """The time, as the test wants it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    """The lines so far about outages, with their levels; each is given once."""
    caplog.set_level(logging.INFO, "clew.link")

    def take() -> list[tuple[str, str]]:
        found = [(record.levelname, record.getMessage()) for record in caplog.records if record.module == "outage"]
        caplog.clear()
        return found

    return take


def test_an_outage_is_told_at_once_then_once_a_minute_then_its_end(lines: Any) -> None:
    clock = Clock()
    log = OutageLog("a:1", clock)
    log.lost("the node is gone")
    assert lines() == [("WARNING", "link.lost address=a:1 reason=the node is gone")]
    for _ in range(59):
        clock.now += 1
        log.failed(NOBODY)
    assert lines() == []
    clock.now += 1
    log.failed(NOBODY)
    log.failed(NOBODY)
    assert lines() == [("WARNING", "link.down address=a:1 for=60s reason=nobody listens")]
    clock.now += 2.5
    log.back()
    log.back()
    assert lines() == [("INFO", "link.back address=a:1 after=62.5s")]


def test_a_refusal_for_good_is_an_error_with_its_code_at_most_once_a_minute(lines: Any) -> None:
    clock = Clock()
    log = OutageLog("a:1", clock)
    log.lost("closed")
    lines()
    expected = [("ERROR", "link.refused address=a:1 code=" + REVOKED.code.value + " reason=This API key is revoked.")]
    for _ in range(2):
        log.failed(REVOKED)
        clock.now += 30
        log.failed(REVOKED)
        assert lines() == expected
        clock.now += 30


def test_a_link_that_breaks_again_and_again_gives_a_line_a_second(lines: Any) -> None:
    clock = Clock()
    log = OutageLog("a:1", clock)
    for _ in range(40):
        log.lost("broken")
        clock.now += 0.0625
        log.back()
        clock.now += 0.0625
    assert [level for level, _ in lines()] == ["WARNING", "INFO"] * 5


def test_a_planned_move_is_of_note_only_when_it_fails(lines: Any) -> None:
    clock = Clock()
    log = OutageLog("a:1", clock)
    log.lost("moving", is_planned=True)
    log.back()
    assert lines() == []
    log.lost("moving", is_planned=True)
    log.failed(NOBODY)
    assert lines() == [("WARNING", "link.lost address=a:1 reason=nobody listens")]


def test_before_the_first_connection_the_log_is_silent(lines: Any) -> None:
    log = OutageLog("a:1", Clock())
    log.failed(REVOKED)
    log.back()
    assert lines() == []


def test_words_of_the_other_end_stay_on_one_line(lines: Any) -> None:
    OutageLog("a:1", Clock()).lost("no\nERROR forged\x1b[2J")
    assert lines() == [("WARNING", "link.lost address=a:1 reason=no ERROR forged [2J")]


async def test_a_client_tells_that_its_node_is_gone_and_back(lines: Any) -> None:
    async with linked(make_server(FakeService()), address="a:1") as (client, dial):
        dial.is_down = True
        dial.cut()
        await until(lambda: client.last_error is not None, "a try failed")
        assert lines() == [("WARNING", "link.lost address=a:1 reason=the connection broke (1006)")]
        dial.is_down = False
        await until(lambda: client.connects_count == 2, "it is back")
        [(level, line)] = lines()
        assert level == "INFO"
        assert line.startswith("link.back address=a:1 after=")
    assert lines() == [], "its own goodbye is no outage"


async def test_a_client_whose_key_was_revoked_tells_it_and_not_the_key(
    lines: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    is_revoked = False

    async def admit(hello: Hello, peer: Peer) -> Admission:
        if is_revoked:
            raise REVOKED
        return Admission(FakeService())

    async def token() -> str:
        return "clew_secret"

    server = make_server(FakeService(), admit=admit)
    dial = MemoryDial(server)
    client = LinkClient(dial, token=token, chance=lambda: 0.0, options=ClientOptions(address="a:1"))
    await asyncio.wait_for(client.start(), SECONDS_MAX)
    try:
        is_revoked = True
        dial.cut()
        await until(lambda: len(dial.wires) >= 4, "it tries again and again")
        await until(lambda: client.last_error is not None)
        assert "clew_secret" not in caplog.text
        found = lines()
        assert [level for level, _ in found] == ["WARNING", "ERROR"]
        assert "code=" + REVOKED.code.value in found[1][1]
    finally:
        await asyncio.wait_for(client.close(), SECONDS_MAX)
        server.close()
