"""The state tables: which inputs a pending activity, a workflow task and a run take in which phase.

Owns: the phases, the inputs and the tables; the diagrams in the docs are drawn from them. Never: says what an input
does beyond the phase it may lead to (the ``decide_*`` functions do).

How it works: a table maps a phase to the inputs it takes, and each input to the phases it may lead to. Decisions ask
the table whether an input is taken; the property tests check that every change of phase that happens is in it.
"""

from __future__ import annotations

import enum
from typing import Final, TypeAlias


class ActivityPhase(enum.Enum):
    """Where a pending activity stands."""

    SCHEDULED = "Scheduled"
    """The attempt waits for a worker."""
    STARTED = "Started"
    """A worker holds the attempt."""
    BACKING_OFF = "BackingOff"
    """The next attempt is put off."""
    CLOSING = "Closing"
    """It has ended; its outcome is buffered."""
    CLOSED = "Closed"
    """It is gone."""


class ActivityInput(enum.Enum):
    """What may happen to a pending activity."""

    TAKE = "a worker takes the attempt"
    END = "the attempt completes, fails for good or is cancelled"
    END_BY_ID = "it is completed or failed by its id"
    FAIL = "the attempt fails and is retried"
    RELEASE = "the worker gives the attempt back"
    HEARTBEAT = "a heartbeat comes, or the attempt is detached from its worker or goes on at another node"
    LOSE = "the worker is lost"
    TIME_OUT = "a timeout passes"
    BACKOFF_ENDS = "the back-off ends"
    CANCEL = "the workflow asks to cancel"
    FLUSH = "the buffered outcome enters history"
    RUN_CLOSES = "the run closes"


class WorkflowTaskPhase(enum.Enum):
    """Where the workflow task of a run stands."""

    NONE = "None"
    SCHEDULED = "Scheduled"
    STARTED = "Started"
    BACKING_OFF = "BackingOff"


class WorkflowTaskInput(enum.Enum):
    """What may happen to the workflow task."""

    NEWS = "something happens that the workflow must see"
    TAKE = "a worker takes the task"
    RECORD = "the worker records markers and goes on"
    ANSWER = "the worker answers, or reports a failure"
    TIME_OUT = "a timeout passes"
    LOSE = "the worker is lost"
    BACKOFF_ENDS = "the back-off ends"
    RUN_CLOSES = "the run closes"


ActivityTable: TypeAlias = dict[ActivityPhase, dict[ActivityInput, frozenset[ActivityPhase]]]
WorkflowTaskTable: TypeAlias = dict[WorkflowTaskPhase, dict[WorkflowTaskInput, frozenset[WorkflowTaskPhase]]]

_A, _AI = ActivityPhase, ActivityInput
_ENDED: Final = frozenset({_A.CLOSING, _A.CLOSED})
_GONE: Final = frozenset({_A.CLOSED})
_RETRIED: Final = frozenset({_A.SCHEDULED, _A.BACKING_OFF})

ACTIVITY_TABLE: Final[ActivityTable] = {
    _A.SCHEDULED: {
        _AI.TAKE: frozenset({_A.STARTED}),
        _AI.END_BY_ID: _ENDED | _RETRIED,
        _AI.TIME_OUT: _ENDED,
        _AI.CANCEL: _GONE,
        _AI.RUN_CLOSES: _GONE,
    },
    _A.STARTED: {
        _AI.END: _ENDED,
        _AI.END_BY_ID: _ENDED | _RETRIED,
        _AI.FAIL: _RETRIED,
        _AI.RELEASE: frozenset({_A.SCHEDULED}),
        _AI.HEARTBEAT: frozenset({_A.STARTED}),
        _AI.LOSE: _ENDED | {_A.SCHEDULED},
        _AI.TIME_OUT: _ENDED | _RETRIED,
        _AI.CANCEL: frozenset({_A.STARTED}),
        _AI.RUN_CLOSES: _GONE,
    },
    _A.BACKING_OFF: {
        _AI.BACKOFF_ENDS: frozenset({_A.SCHEDULED}),
        _AI.END_BY_ID: _ENDED | _RETRIED,
        _AI.TIME_OUT: _ENDED,
        _AI.CANCEL: _GONE,
        _AI.RUN_CLOSES: _GONE,
    },
    _A.CLOSING: {
        _AI.CANCEL: _ENDED,
        _AI.FLUSH: _GONE,
        _AI.RUN_CLOSES: _GONE,
    },
    _A.CLOSED: {},
}
"""A pending activity."""

_T, _TI = WorkflowTaskPhase, WorkflowTaskInput
_AGAIN: Final = frozenset({_T.NONE, _T.SCHEDULED, _T.BACKING_OFF})
_NO_TASK: Final = frozenset({_T.NONE})

WORKFLOW_TASK_TABLE: Final[WorkflowTaskTable] = {
    _T.NONE: {_TI.NEWS: frozenset({_T.SCHEDULED}), _TI.RUN_CLOSES: _NO_TASK},
    _T.SCHEDULED: {
        _TI.NEWS: frozenset({_T.SCHEDULED}),
        _TI.TAKE: frozenset({_T.STARTED}),
        _TI.TIME_OUT: frozenset({_T.SCHEDULED}),
        _TI.LOSE: frozenset({_T.SCHEDULED}),
        _TI.RUN_CLOSES: _NO_TASK,
    },
    _T.STARTED: {
        _TI.NEWS: frozenset({_T.STARTED, _T.SCHEDULED}),
        _TI.RECORD: frozenset({_T.STARTED}) | _AGAIN,
        _TI.ANSWER: _AGAIN,
        _TI.TIME_OUT: _AGAIN,
        _TI.LOSE: _AGAIN,
        _TI.RUN_CLOSES: _NO_TASK,
    },
    _T.BACKING_OFF: {
        _TI.NEWS: frozenset({_T.SCHEDULED}),
        _TI.BACKOFF_ENDS: frozenset({_T.SCHEDULED}),
        _TI.RUN_CLOSES: _NO_TASK,
    },
}
"""The workflow task of an open run. News for a started task is buffered; a full buffer takes the task back, and so do
markers that are at fault."""


def activity_phases_taking(what: ActivityInput) -> tuple[ActivityPhase, ...]:
    """The phases in which a pending activity takes this input."""
    return tuple(phase for phase, row in ACTIVITY_TABLE.items() if what in row)


def task_phases_taking(what: WorkflowTaskInput) -> tuple[WorkflowTaskPhase, ...]:
    """The phases in which a workflow task takes this input."""
    return tuple(phase for phase, row in WORKFLOW_TASK_TABLE.items() if what in row)
