"""Exceptions that only the machine makes.

Owns: the two that mean cancellation in both vocabularies. Never: what user code raises itself.

How it works: code written for asyncio catches `asyncio.CancelledError`, and `asyncio.timeout` and `TaskGroup` go by
it; code written for the published API catches `ActivityError` and looks at its cause. A cancelled activity or child
is both.
"""

from __future__ import annotations

import asyncio
from typing import final

from clew.exceptions import ActivityError, ChildWorkflowError


@final
class CancelledActivityError(ActivityError, asyncio.CancelledError):
    """An activity was cancelled."""


@final
class CancelledChildError(ChildWorkflowError, asyncio.CancelledError):
    """A child workflow was cancelled."""
