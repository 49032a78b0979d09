"""The world that activities act on: a bank and a count, both of which honour idempotency keys.

Owns: what was done, under which key and by which attempt; the check that a key always stands for the same intention.
Never: trusts the engine for any of it.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from clew.service.requests import ActivityTask

BALANCE = 1_000


class Outside:
    """See the module docstring."""

    def __init__(self, accounts: tuple[str, ...]) -> None:
        self.balances = dict.fromkeys(accounts, BALANCE)
        self.done: dict[str, tuple[Any, int]] = {}
        """What took effect under each key, and what was answered."""
        self.begun: Counter[str] = Counter()
        self.inputs: dict[str, dict[str, Any]] = {}
        self.owners: dict[str, tuple[str, str]] = {}
        self.keys: dict[tuple[str, str, str], set[str]] = {}
        self.taken: dict[tuple[str, int], int] = {}
        """By run id and scheduled event: the attempt whose completion the engine said it had taken."""
        self.complaints: list[str] = []

    def note_begin(self, task: ActivityTask, key: str, values: dict[str, Any]) -> None:
        """An attempt begins."""
        self.begun[key] += 1
        self.inputs[key] = values
        owner = (task.token.workflow_id, task.activity_id)
        if self.owners.setdefault(key, owner) != owner:
            self.complaints.append(f"law 7: one idempotency key for {self.owners[key]} and {owner}")
        self.keys.setdefault((task.token.run_id, *owner), set()).add(key)

    def note_verdict(self, task: ActivityTask, error: BaseException | None) -> None:
        """The engine took, or refused, the completion of an attempt."""
        if error is None:
            self.taken[task.token.run_id, task.token.scheduled_event_id] = task.attempt

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
