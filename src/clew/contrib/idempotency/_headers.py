"""The sender's side: which key goes with a request.

Owns: the header, and the keys of several steps within one activity. Never: sends anything.

How it works: an activity that makes one call passes on its own key. One that makes several needs a key for each, since
a receiver takes the same key with another request for a mistake: a step's key is a hash of the activity's key and the
step's name, so it is as stable as these two.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Generator
from contextvars import ContextVar
from typing import Final

from clew import activity

IDEMPOTENCY_KEY_HEADER: Final = "Idempotency-Key"

_step: Final[ContextVar[str | None]] = ContextVar("clew_idempotency_step", default=None)


@contextlib.contextmanager
def idempotency_step(name: str) -> Generator[None]:
    """Give the requests inside the block a key of their own.

    Args:
        name: Names the step within the activity; the same in every attempt. Steps may be nested.

    Raises:
        ValueError: The name is empty.
    """
    if not name:
        raise ValueError("A step needs a name, such as 'charge', by which its key is the same in every attempt.")
    outer = _step.get()
    token = _step.set(name if outer is None else f"{outer}\0{name}")
    try:
        yield
    finally:
        _step.reset(token)


def current_idempotency_key(step: str | None = None) -> str:
    """Give the key of the running activity, or of the step in whose block this is called.

    Args:
        step: Names one step, as `idempotency_step` does.

    Raises:
        RuntimeError: No activity is running here.
    """
    if step is not None:
        with idempotency_step(step):
            return current_idempotency_key()
    key = activity.info().idempotency_key
    name = _step.get()
    return key if name is None else hashlib.sha256(f"{key}\0{name}".encode()).hexdigest()


def idempotency_headers(step: str | None = None) -> dict[str, str]:
    """Give the header to send along, for any HTTP client; see `current_idempotency_key`.

    Args:
        step: Names the call, when the activity makes more than one.

    Raises:
        RuntimeError: No activity is running here.
    """
    return {IDEMPOTENCY_KEY_HEADER: current_idempotency_key(step)}
