"""Kills at commit after commit while rounds of the mixed workload go on.

Owns: `Point`, one kill to make; `Sweep`, which has nodes die at their points, one point a life, until none is left, and
then has everything checked; `Mortal`, who dies now and then beside them: workers, callers. Never: how a node is made to
die there (it is given that).

How it works: the n-th commit of a node is counted from its start, so the first points fall into its recovery of what
its last life left half done, and later ones into all that the rounds ask for. A round is begun with each life and every
while, so that there is always something to commit.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.crash.caller import names
from tests.crash.nodes import Node, Program
from tests.crash.rounds import SECONDS_MAX, Rounds

_ROUNDS_WIDTH = 6
"""Rounds under way at a time, at most."""

_ROUND_SECONDS = 0.7
"""A node that lives on gets a further round after so long."""

_KILLS_BETWEEN = 12
"""Another process than a node is killed after so many deaths of nodes; what it had is given up after half a minute."""


_CALLS_BETWEEN = 2
"""A caller is killed after so many deaths of nodes, and comes back at once."""


class Mortal(NamedTuple):
    """Who is killed now and then, and started again: a word for the record, and the process."""

    what: str
    program: Program


class Point(NamedTuple):
    """A kill to make: at which commit of a life, and how."""

    at: int
    how: str


def spread(ways: Sequence[str], last: int, count: int) -> list[Point]:
    """So many points: every way in turn, at commits from 1 to `last`, evenly; all of them when `count` is as large.

    Early and late ones are mixed, so that short lives do not follow on each other only.
    """
    if count >= last * len(ways):
        points = [Point(at, how) for at in range(1, last + 1) for how in ways]
    else:
        step = (last - 1) / max(count - 1, 1)
        points = [Point(1 + int(number * step), ways[number % len(ways)]) for number in range(count)]
    random.Random(1).shuffle(points)
    return points


class Sweep:
    """See the module docstring.

    Args:
        rounds: The workload.
        points: The kills to make, each by whichever node is started next.
        nodes: Those that are killed.
        arm: Called before each life with the node and its point (None: live on); for kills from outside.
        others: Killed in turn, at whatever they are about, each time that so many nodes have died.
        caller: A client process, killed in the middle of its calls, far more often.
    """

    def __init__(
        self,
        rounds: Rounds,
        points: Sequence[Point],
        nodes: Sequence[Node],
        arm: Callable[[Node, Point | None], None] | None = None,
        others: Sequence[Mortal] = (),
        caller: Mortal | None = None,
    ) -> None:
        self.rounds = rounds
        self.kills: Counter[str] = Counter()
        self._left = list(reversed(points))
        self._nodes = nodes
        self._arm = arm
        self._numbers = itertools.count()
        self._under_way: set[asyncio.Task[None]] = set()
        self.others_killed: Counter[str] = Counter()
        self._others = itertools.cycle(others)
        self._has_others = bool(others)
        self._caller = caller
        self._calling: asyncio.Task[None] | None = None
        self._coming_back: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Make all kills; when this returns, all nodes live on and all rounds came to their ends."""
        await asyncio.gather(*map(self._keep, self._nodes))
        self._begin_round()
        if self._coming_back is not None:
            await self._coming_back
        if self._calling is not None:
            await self._calling
        await asyncio.gather(*self._under_way)

    async def stop_caller(self, folder: Path) -> int:
        """Have the client process end when its round does, and take over what it went through; answers how much.

        Raises:
            AssertionError: A round of it did not come to its end; the message says what is open, or what it met.
        """
        if self._caller is None:
            return 0
        try:
            await self._caller.program.stop()
        except TimeoutError:
            found = await self.rounds.open_runs()
            raise AssertionError(f"the caller's round did not end within {SECONDS_MAX:g} s: {found}") from None
        begun = names(folder / "begun")
        assert begun, "it was there the whole time"
        assert begun == names(folder / "ended"), "each of its rounds came to its end"
        for name in begun:
            self.rounds.take_over(name)
        return len(begun)

    async def _keep(self, node: Node) -> None:
        while self._left:
            point = self._left.pop()
            if await self._live(node, point):
                await self._load_until_dead(node, point)
            self.kills[point.how] += 1
            if self._has_others and self.kills.total() % _KILLS_BETWEEN == _KILLS_BETWEEN // 2:
                await self._kill_another()
            if self._caller is not None and self.kills.total() % _CALLS_BETWEEN == 0:
                self._kill_caller(self._caller)
        assert await self._live(node, None), "a node without a point lives"

    async def _kill_another(self) -> None:
        """Kill one of the others; it comes back while nodes go on dying."""
        if self._coming_back is not None:
            await self._coming_back
        what, program = next(self._others)
        self.others_killed[what] += 1
        program.kill()
        self._coming_back = asyncio.ensure_future(program.start_again())

    def _kill_caller(self, caller: Mortal) -> None:
        """Kill the client process; it comes back, and repeats its calls, while nodes go on dying.

        One that has not come back yet is left alone: it may wait for the very node that is dead now.

        Raises:
            AssertionError: It had ended by itself, on an answer that no caller should get.
        """
        if self._calling is not None and not self._calling.done():
            return
        caller.program.check_up()
        self.others_killed[caller.what] += 1
        caller.program.kill()
        self._calling = asyncio.ensure_future(caller.program.start_again())

    async def _live(self, node: Node, point: Point | None) -> bool:
        if self._arm is not None:
            self._arm(node, point)
        elif point is not None:
            return await node.live(point.at, point.how)
        return await node.live()

    async def _load_until_dead(self, node: Node, point: Point) -> None:
        """Begin rounds, until the node has come to its point."""
        dying = asyncio.ensure_future(node.wait_killed())
        give_up_at = time.monotonic() + SECONDS_MAX
        while not dying.done():
            assert time.monotonic() < give_up_at, f"a node did not come to {point} within {SECONDS_MAX:g} s"
            self._begin_round()
            await asyncio.wait([dying], timeout=_ROUND_SECONDS)
        await dying

    def _begin_round(self) -> None:
        self._take_ended()
        if len(self._under_way) < _ROUNDS_WIDTH:
            self._under_way.add(asyncio.ensure_future(self.rounds.see_through(str(next(self._numbers)))))

    def _take_ended(self) -> None:
        for task in [task for task in self._under_way if task.done()]:
            self._under_way.discard(task)
            task.result()
