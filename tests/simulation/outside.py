"""The world that activities act on: a bank and a count, both of which honour idempotency keys.

Owns: what was done, under which key and by which attempt; the checks that a key always stands for the same intention,
and that nobody acts on what is not durable. Never: trusts the engine for any of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from clew.model.events import ActivityTaskScheduled
from clew.model.inputs import TaskToken
from clew.service.requests import ActivityTask
from tests.simulation.places import named
from tests.simulation.record import Record

BALANCE = 1_000

VIRTUAL_EVENTS = 2
"""Events of a workflow task that is not in history before its answer is: its schedule and its start."""


class Outside:
    """See the module docstring.

    Args:
        accounts: Of the bank.
        record: What is durable.
        time: The loop's clock.
    """

    def __init__(self, accounts: tuple[str, ...], record: Record, time: Callable[[], float]) -> None:
        self._record = record
        self._time = time
        self.hand_over: Callable[[ActivityTask, str, dict[str, Any]], None] = lambda *_: None
        """Takes an attempt that its worker leaves to somebody else."""
        self.attempts: dict[tuple[str, int, int], float] = {}
        """By run id, scheduled event and attempt: when it began first."""
        self.failed: dict[tuple[str, int, int], float] = {}
        """Likewise: when its failure was sent, which the engine then said it had taken."""
        self.local_failed: dict[tuple[object, int], float] = {}
        """By local step, as its worker runs it, and attempt: when that failed. A worker that has dropped a run, and
        runs it anew, runs its steps anew."""
        self.balances = dict.fromkeys(accounts, BALANCE)
        self.done: dict[str, tuple[Any, int]] = {}
        """What took effect under each key, and what was answered."""
        self.begun: Counter[tuple[str, str]] = Counter()
        """By idempotency key and run id."""
        self.inputs: dict[str, dict[str, Any]] = {}
        self.owners: dict[str, tuple[str, str]] = {}
        self.keys: dict[tuple[str, str, str], set[str]] = {}
        self.taken: dict[tuple[str, int], int] = {}
        """By run id and scheduled event: the attempt whose completion the engine said it had taken."""
        self.complaints: list[str] = []

    def note_begin(self, task: ActivityTask, key: str, values: dict[str, Any], asked_in: TaskToken | None) -> None:
        """An attempt begins; that of a local step was asked for in a workflow task."""
        self.begun[key, task.token.run_id] += 1
        if asked_in is None:
            attempt = (task.token.run_id, task.token.scheduled_event_id, task.attempt)
            self.attempts.setdefault(attempt, self._time())
        self.inputs[key] = values
        owner = (named(task.token.namespace, task.token.workflow_id), task.activity_id)
        if self.owners.setdefault(key, owner) != owner:
            self.complaints.append(f"law 7: one idempotency key for {self.owners[key]} and {owner}")
        self.keys.setdefault((task.token.run_id, *owner), set()).add(key)
        if not self._is_asked_for(task, asked_in):
            self.complaints.append(f"law 3: activity {owner} begins, and what asks for it is not durable")

    def _is_asked_for(self, task: ActivityTask, asked_in: TaskToken | None) -> bool:
        """Whether the store holds what this attempt rests on: its schedule, or, of a local step, its workflow task."""
        run, event_id = self._record.by_run_id.get(task.token.run_id), task.token.scheduled_event_id
        if run is None:
            return False
        if asked_in is not None:
            return len(run.events) + VIRTUAL_EVENTS >= asked_in.started_event_id
        return len(run.events) >= event_id and isinstance(run.events[event_id - 1], ActivityTaskScheduled)

    def note_verdict(self, task: ActivityTask, error: BaseException | None) -> None:
        """The engine took, or refused, the completion of an attempt."""
        if error is None:
            self.taken[task.token.run_id, task.token.scheduled_event_id] = task.attempt

    def note_failure(self, task: ActivityTask, sent_at: float) -> None:
        """The engine took the failure of an attempt."""
        self.failed[task.token.run_id, task.token.scheduled_event_id, task.attempt] = sent_at

    def note_local(self, step: object, task: ActivityTask, pause: Callable[[int], float]) -> None:
        """An attempt at a local step begins, on a worker that must have waited since the one before it failed."""
        before = self.local_failed.get((step, task.attempt - 1))
        if before is not None and self._time() < before + pause(task.attempt - 1) - 1e-6:
            self.complaints.append(
                f"law 8: attempt {task.attempt} of local {task.activity_id} begins {self._time() - before:g} s after "
                "the one before it failed"
            )

    def note_local_failure(self, step: object, task: ActivityTask) -> None:
        """An attempt at a local step fails."""
        self.local_failed[step, task.attempt] = self._time()

    def move(self, key: str, account: str, change: int) -> int:
        """Change a balance, once a key."""
        return self._once(key, (account, change), lambda: self._move(account, change))

    def count(self, key: str, value: int) -> int:
        """Answer with the value; that of the first time, should a key come again with another."""
        return self._once(key, value, lambda: value)

    def _move(self, account: str, change: int) -> int:
        self.balances[account] += change
        return self.balances[account]

    def _once(self, key: str, intention: Any, act: Any) -> int:
        before = self.done.get(key)
        if before is not None:
            if before[0] != intention:
                self.complaints.append(f"law 7: one idempotency key for {before[0]} and {intention}")
            return before[1]
        given: int = act()
        self.done[key] = (intention, given)
        return given
