"""Ways out of the rules, each by name.

Owns: `is_replaying`, `is_read_only` and the context managers that suspend a check. Never: a check itself.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager

from clew.workflow._runtime import current, maybe_current

_suspend_guard: Callable[[], AbstractContextManager[None]] | None = None
"""Set by the machine's package, which owns the guard."""


def set_guard_suspension(suspend: Callable[[], AbstractContextManager[None]]) -> None:
    """Tell how the determinism guard is suspended. For the machine, not for users."""
    global _suspend_guard
    _suspend_guard = suspend


def is_replaying() -> bool:
    """Whether the code runs to rebuild what has happened, not for the first time. True while answering a query, too."""
    return current().is_replaying()


def is_replaying_history_events() -> bool:
    """Like `is_replaying`, but false inside query handlers and validators, which never run twice for one call."""
    return current().is_replaying_history_events()


def is_read_only() -> bool:
    """Whether the code must not change anything: query handlers, validators, conditions."""
    return current().is_read_only()


def in_sandbox() -> bool:
    """Always false: there is no sandbox."""
    return False


@contextmanager
def imports_passed_through() -> Generator[None]:
    """Accepted for compatibility and without effect: imports are not sandboxed."""
    yield


@contextmanager
def sandbox_import_notification_policy(policy: object) -> Generator[None]:
    """Accepted for compatibility and without effect."""
    yield


@contextmanager
def sandbox_unrestricted() -> Generator[None]:
    """Suspend the determinism guard for a block that does not await. What it lets in must not steer the workflow."""
    if _suspend_guard is None or maybe_current() is None:
        yield
        return
    with _suspend_guard():
        yield


unrestricted = sandbox_unrestricted
"""The same, by the name of what it does here."""
