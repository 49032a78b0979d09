"""Faults in leases, in what waiting costs and in how punctual timers are, planted like those of ``planted``.

Owns: `WAITING_FAULTS`. Never: plants them.
"""

from __future__ import annotations

from typing import Final

from tests.simulation.fault import Fault

WAITING_FAULTS: Final = (
    Fault(
        "timers-late",
        "a timer takes half as long again",
        "clew.core.evolve:_timer_started",
        "event.event_time + event.start_to_fire_timeout",
        "event.event_time + event.start_to_fire_timeout * 1.5",
    ),
    Fault(
        "timeouts-late",
        "an attempt may take half as long again as its timeout says",
        "clew.core.evolve:_activity_scheduled",
        "start_to_close_timeout=event.start_to_close_timeout",
        "start_to_close_timeout=event.start_to_close_timeout * 1.5",
    ),
    Fault(
        "deadlines-of-all-shards",
        "each node looks after the deadlines of all shards, whoever holds them",
        "clew.engine.attention:Attention._scan",
        "shards = self._peers.own_shards()",
        "shards = None if self._peers.is_alone else list(range(self._store.shard_count))",
    ),
    Fault(
        "messages-of-all-shards",
        "each node delivers the messages of all shards, whoever holds them",
        "clew.engine.outbox:Outbox.sweep",
        "shards = self._peers.own_shards()",
        "shards = None",
    ),
    Fault(
        "lease-taken-for-truth",
        "a node that holds a shard believes its memory of the runs there",
        "clew.engine.locate:Locator.is_current",
        "if self._peers.is_alone or",
        "if self._peers.is_alone or self._peers.owns(entry.shard) or",
    ),
    Fault(
        "loser-not-read-anew",
        "a node that lost a guard goes on with what it has in memory",
        "clew.engine.pipeline:CommitPipeline._settle_unit",
        "self._on_discard(member.entry)",
        "if not isinstance(outcome, CommitStatus):\n    self._on_discard(member.entry)",
    ),
    Fault(
        "parked-run-polled",
        "a run that has left memory, as nobody needs it, is read again every five seconds",
        "clew.engine.attention:Attention.release",
        "armed, due = entry.armed_at, entry.state.next_attention()",
        "self._push(self._clock.now() + PARKED_FROM, entry.run_key, entry.shard)\n"
        "armed, due = entry.armed_at, entry.state.next_attention()",
    ),
    Fault(
        "coroutine-for-each-run",
        "each change of a run leaves a coroutine behind that waits for the next",
        "clew.engine.funnel:Funnel.settle",
        "self._on_changed(entry, transition)",
        "self._on_changed(entry, transition)\nself._loop.create_task(asyncio.sleep(100_000))",
    ),
)
