"""Wrappers of the service hear of an answer first, in their order, whenever it comes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from clew.service.reply import Reply
from clew.service.telling import telling

Tell = Callable[[BaseException | None], None]


def teller(heard: list[str], name: str) -> Tell:
    return lambda error: heard.append(f"{name} {error}")


def test_all_tellers_hear_before_the_listener_and_the_answer_stays_the_same_object() -> None:
    heard: list[str] = []
    reply: Reply[int] = Reply()
    assert telling(telling(reply, teller(heard, "inner")), teller(heard, "outer")) is reply
    reply.listen(lambda answer: heard.append(f"listener {answer.result()}"))
    reply.set_result(7)
    assert heard == ["inner None", "outer None", "listener 7"]


def test_an_error_is_told_too() -> None:
    heard: list[str] = []
    reply: Reply[int] = Reply()
    telling(reply, teller(heard, "teller"))
    reply.listen(lambda answer: heard.append(f"listener {answer.exception()}"))
    reply.set_exception(ValueError("no"))
    assert heard == ["teller no", "listener no"]


def test_an_answer_that_is_there_is_told_at_once() -> None:
    heard: list[str] = []
    reply: Reply[int] = Reply()
    reply.set_result(7)
    telling(reply, teller(heard, "teller"))
    assert heard == ["teller None"]
    reply.listen(lambda answer: heard.append("listener"))
    assert heard == ["teller None", "listener"]


async def test_a_reply_with_a_teller_can_be_awaited() -> None:
    heard: list[str] = []
    reply: Reply[int] = Reply()
    telling(reply, teller(heard, "teller"))
    asyncio.get_running_loop().call_soon(reply.set_result, 7)
    assert await reply == 7
    assert heard == ["teller None"]


def test_a_teller_that_fails_keeps_nobody_from_hearing(caplog: pytest.LogCaptureFixture) -> None:
    def fail(error: BaseException | None) -> None:
        raise RuntimeError("a bug")

    heard: list[str] = []
    reply: Reply[int] = Reply()
    telling(telling(reply, fail), teller(heard, "second"))
    reply.listen(lambda answer: heard.append("listener"))
    with caplog.at_level(logging.CRITICAL, "clew.service"):
        reply.set_result(7)
    assert heard == ["second None", "listener"]


def test_a_reply_has_one_listener() -> None:
    reply: Reply[int] = Reply()
    telling(reply, lambda error: None)
    reply.listen(lambda answer: None)
    with pytest.raises(AssertionError, match="one listener"):
        reply.listen(lambda answer: None)
