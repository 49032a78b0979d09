"""Local steps, alone and together, with updates, signals and patches between them. Never edited; see README.md."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta

from clew import activity, workflow
from clew.common import RetryPolicy

LOCAL = timedelta(seconds=30)


@dataclass(frozen=True)
class Line:
    article: str
    count: int


class Shop:
    """Names and types alone: a replay runs no activity."""

    @activity.defn
    def price(self, article: str) -> int:
        raise NotImplementedError

    @activity.defn
    def reserve(self, article: str, count: int) -> str:
        raise NotImplementedError

    @activity.defn
    def notify(self, text: str) -> None:
        raise NotImplementedError


async def price(article: str) -> int:
    return await workflow.execute_local_activity_method(
        Shop.price,
        article,
        start_to_close_timeout=LOCAL,
        retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=20)),
    )


async def reserve(article: str, count: int) -> str:
    return await workflow.execute_local_activity_method(Shop.reserve, args=[article, count], start_to_close_timeout=LOCAL)


@workflow.defn
class Basket:
    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.total = 0
        self.notes: list[str] = []
        self.is_closed = False
        self.prices = asyncio.Lock()

    @workflow.run
    async def run(self, articles: list[str]) -> list[str]:
        for article in articles:
            self.total += await price(article)
        if workflow.patched("ask-prices-together"):
            self.total += sum(await asyncio.gather(*(price(article) for article in articles)))
        reservations = [await reserve(article, 1) for article in articles]
        await workflow.wait_condition(lambda: len(self.lines) >= 3)
        workflow.deprecate_patch("tell-the-shop")
        for line in self.lines:
            reservations.append(await reserve(line.article, line.count))
        try:
            await workflow.wait_condition(lambda: self.is_closed, timeout=timedelta(hours=1))
        finally:
            await workflow.execute_activity_method(
                Shop.notify, f"{len(reservations)} reserved", start_to_close_timeout=LOCAL
            )
        await workflow.wait_condition(workflow.all_handlers_finished)
        return [*reservations, *self.notes, f"{self.total}"]

    @workflow.update
    async def add(self, line: Line) -> int:
        async with self.prices:
            cost = await price(line.article) * line.count
            if workflow.patched("round-up"):
                cost += await price("rounding")
        self.total += cost
        self.lines.append(line)
        return self.total

    @add.validator
    def check(self, line: Line) -> None:
        if line.count <= 0:
            raise ValueError("at least one")

    @workflow.signal
    async def note(self, text: str) -> None:
        await workflow.sleep(timedelta(milliseconds=30))
        self.notes.append(f"{text}: {await reserve(text, 0)}")

    @workflow.signal
    def close(self) -> None:
        self.is_closed = True

    @workflow.query
    def how_many(self) -> int:
        return len(self.lines)


WORKFLOWS = [Basket]
