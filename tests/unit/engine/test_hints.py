"""Hints: gathered, cut to what a message takes, and followed by whoever is meant."""

from __future__ import annotations

import asyncio

from clew.engine.hints import ALL_NODES, FleetChanged, Hint, Hints, QueueHasTasks, RunChanged, StickyTask
from clew.ports.notifier import MESSAGE_BYTES_MAX
from tests.fleet.notifiers import Exchange


class End:
    """One node's hints."""

    def __init__(self, exchange: Exchange) -> None:
        self.got: list[tuple[str, Hint]] = []
        self.gaps = 0
        self.hints = Hints(
            exchange.join(), on_hint=lambda sender, hint: self.got.append((sender, hint)), on_gap=self.gap
        )

    def gap(self) -> None:
        self.gaps += 1


async def pair() -> tuple[Exchange, End, End]:
    exchange = Exchange()
    a, b = End(exchange), End(exchange)
    await a.hints.listen("a")
    await b.hints.listen("b")
    return exchange, a, b


async def until(end: End, count: int) -> None:
    while len(end.got) < count:
        await asyncio.sleep(0)


async def test_what_comes_together_goes_out_in_one_message_and_once() -> None:
    exchange, a, b = await pair()
    for _ in range(3):
        for number in range(20):
            a.hints.send("b", StickyTask(0, number))
    await asyncio.wait_for(until(b, 20), 5)
    assert exchange.sent["b"] == 1
    assert b.got == [("a", StickyTask(0, number)) for number in range(20)]
    assert a.got == []


async def test_all_are_told_but_the_sender() -> None:
    _, a, b = await pair()
    a.hints.send(ALL_NODES, FleetChanged())
    await asyncio.wait_for(until(b, 1), 5)
    assert (a.got, b.got) == ([], [("a", FleetChanged())])


async def test_much_goes_out_in_messages_that_the_notifier_takes() -> None:
    exchange, a, b = await pair()
    sizes: list[int] = []
    carry = exchange.carry
    exchange.carry = lambda channel, message: (sizes.append(len(message)), carry(channel, message))[1]  # type: ignore[method-assign]
    for number in range(2_000):
        a.hints.send("b", RunChanged(number, 1))
    await asyncio.wait_for(until(b, 2_000), 5)
    assert max(sizes) <= MESSAGE_BYTES_MAX
    assert len(sizes) > 1


async def test_a_hint_that_no_message_takes_is_dropped_and_the_others_go() -> None:
    _, a, b = await pair()
    a.hints.send("b", QueueHasTasks("default", "q" * MESSAGE_BYTES_MAX))
    a.hints.send("b", QueueHasTasks("default", "q"))
    await asyncio.wait_for(until(b, 1), 5)
    assert b.got == [("a", QueueHasTasks("default", "q"))]


async def test_what_another_release_says_is_passed_over() -> None:
    exchange, _, b = await pair()
    exchange.carry("b", '["a",[["SomethingNew",1]]]')
    exchange.carry("b", "not even JSON")
    exchange.carry("b", '["a",[["FleetChanged"]]]')
    await asyncio.wait_for(until(b, 1), 5)
    assert b.got == [("a", FleetChanged())]
