"""What goes wrong with a network, by a seed.

Owns: `Episode`, one trouble of some seconds, and `make_episodes`. Never: waits, or does it to a network.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tests.partition.rules import CUT, Rule

DATABASE = "db"


class Hosts(NamedTuple):
    """Who is there."""

    nodes: tuple[str, ...]
    workers: tuple[str, ...]
    clients: tuple[str, ...]

    def all(self) -> list[str]:
        """Every one, the database first."""
        return [DATABASE, *self.nodes, *self.workers, *self.clients]


class Episode(NamedTuple):
    """A trouble.

    Args:
        kind: What it is, for the record.
        ways: From whom to whom.
        rule: For all of them.
        seconds: How long it lasts.
        pause: How long all is well afterwards.
    """

    kind: str
    ways: tuple[tuple[str, str], ...]
    rule: Rule
    seconds: float
    pause: float


def make_episodes(hosts: Hosts, chance: random.Random, *, seconds_max: float) -> Iterator[Episode]:
    """Troubles without end; every kind comes before one comes again."""
    while True:
        plan = [(place, manner) for place in _PLACES for manner in _MANNERS]
        chance.shuffle(plan)
        for place, manner in plan:
            yield _episode(hosts, chance, place, manner, seconds_max)


_PLACES = ("worker-server", "client-server", "server-database", "one node", "one worker")
_MANNERS = ("cut", "cut to", "cut from", "slow", "lossy")


def _episode(hosts: Hosts, chance: random.Random, place: str, manner: str, seconds_max: float) -> Episode:
    pairs = _pairs(hosts, chance, place)
    there, back = tuple(pairs), tuple((target, source) for source, target in pairs)
    # Mostly short ones, of which there can be many, and some that outlast every patience.
    seconds = min(seconds_max, chance.choice((2.0, 4.0, 8.0, 15.0, 30.0, 60.0)) * (0.75 + chance.random() / 2))
    rule = CUT
    if manner == "slow":
        rule = Rule(delay=chance.choice((0.05, 0.2, 0.6)))
    elif manner == "lossy":
        rule = Rule(delay=0.01, loss=chance.choice((0.05, 0.15, 0.3)))
    ways = {"cut to": there, "cut from": back}.get(manner, there + back)
    return Episode(f"{place}: {manner}", ways, rule, seconds, chance.choice((1.0, 3.0)))


def _pairs(hosts: Hosts, chance: random.Random, place: str) -> Sequence[tuple[str, str]]:
    """Caller and server, of all links that the trouble is about."""
    node = chance.choice(hosts.nodes)
    nodes = hosts.nodes if chance.random() < 0.4 else (node,)
    if place == "worker-server":
        return [(worker, one) for worker in hosts.workers for one in nodes]
    if place == "client-server":
        return [(client, one) for client in hosts.clients for one in nodes]
    if place == "server-database":
        return [(one, DATABASE) for one in nodes]
    if place == "one node":
        return [(node, DATABASE), *((caller, node) for caller in (*hosts.workers, *hosts.clients))]
    worker = chance.choice(hosts.workers)
    return [(worker, one) for one in hosts.nodes]
