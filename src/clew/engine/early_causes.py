"""What an early task comes from: a transition that has given its workflow task to a worker before it was durable.

Owns: `EarlyCause` and the stages of its task. Never: moves one on (``engine.early`` and ``engine.express`` do).
"""

from __future__ import annotations

from typing import Final

from clew.engine.matching import Session
from clew.engine.pipeline import Submission
from clew.service.requests import ActivityTask, WorkflowTask

NOT_EARLY: Final = 0
BEGUN: Final = 1
"""The task went to its worker ahead of the commit, and has no answer yet."""
ANSWERED: Final = 2
EVICTED: Final = 3
"""The run's memory was given up before the commit; whatever the worker had of it is void."""
DURABLE: Final = 4

PAUSES_MAX: Final = 1024
"""After so many tasks of a worker whose answers came late it is tried anew whether they come in time."""


class EarlyCause(Submission, eq=False):
    """A transition whose workflow task may go out before it is durable.

    Args:
        session: Who gets `task`.
        task: What goes out after the commit, or has gone out before it.
        early: How far the workflow task has got that was given to a worker before the commit.
        early_session: Who was given it.
    """

    session: Session | None = None
    task: WorkflowTask | ActivityTask | None = None
    early: int = NOT_EARLY
    early_session: Session | None = None

    def note_overdue(self) -> None:
        """The answer to its task did not come in time: the next ones are not waited for, each time twice as many."""
        session = self.early_session
        if session is not None and self.early == BEGUN and not session.early_pauses_left:
            session.early_pauses_left = session.early_pauses_next
            session.early_pauses_next = min(2 * session.early_pauses_next, PAUSES_MAX)
