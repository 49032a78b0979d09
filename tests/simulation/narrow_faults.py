"""Faults that each break one promise and little else, planted like those of ``planted``.

Owns: `NARROW_FAULTS`. Never: plants them.
"""

from __future__ import annotations

from typing import Final

from tests.simulation.fault import Fault

NARROW_FAULTS: Final = (
    # --- what readers are told
    Fault(
        "history-before-durable",
        "a reader of events is told of events that are not durable",
        "clew.engine.reading:Reader._page",
        "end = min(last,",
        "last = max(last, state.next_event_id - 1)\nend = min(last,",
    ),
    Fault(
        "once-page-of-a-deleted-run",
        "a page of a run that is deleted while it is read comes without events, as if there had been none",
        "clew.engine.reading:Reader._all_events",
        "if len(events) < last - first + 1:",
        "if False:",
    ),
    Fault(
        "activity-waits-since-the-start",
        "who asks about a run is told that an activity waits since the run began",
        "clew.engine.describe:_activity",
        "scheduled_time=activity.scheduled_time,",
        "scheduled_time=state.start_time,",
    ),
    # --- what lists show
    Fault(
        "upserts-not-listed",
        "lists show the search attributes that a run was started with, whatever it has made of them",
        "clew.engine.summary:visibility_of",
        "attributes = state.search_attributes or None",
        "attributes = None",
    ),
    Fault(
        "lists-go-by-the-root-of-the-root",
        "lists show a child as the root of its tree",
        "clew.engine.summary:visibility_of",
        "root_run_id=root.run_id if root else state.run_id,",
        "root_run_id=state.run_id,",
    ),
    # --- attempts that have lost their lease
    Fault(
        "stale-heartbeat-counts",
        "the heartbeat of an attempt that has lost its lease counts",
        "clew.core.activities:decide_heartbeat_activity",
        "activity = _find(state, request.token, _MAY_HEARTBEAT, _MAY_HEARTBEAT)",
        "activity = state.activities.get(request.token.scheduled_event_id)\n"
        "activity = activity or _find(state, request.token, _MAY_HEARTBEAT, _MAY_HEARTBEAT)",
    ),
    Fault(
        "stale-cancel-report-counts",
        "an attempt that has lost its lease closes the activity as cancelled",
        "clew.core.activities:decide_cancel_activity",
        "activity = _find(state, request.token, _MAY_END, _MAY_END_BY_ID)",
        "activity = state.activities.get(request.token.scheduled_event_id)\n"
        "activity = activity or _find(state, request.token, _MAY_END, _MAY_END_BY_ID)",
    ),
    Fault(
        "stale-failure-counts",
        "the failure of an attempt that has lost its lease counts",
        "clew.core.activities:decide_fail_activity",
        "activity = _find(state, request.token, _MAY_FAIL, _MAY_END_BY_ID)",
        "activity = state.activities.get(request.token.scheduled_event_id)\n"
        "activity = activity or _find(state, request.token, _MAY_FAIL, _MAY_END_BY_ID)",
    ),
    # --- messages to other runs
    Fault(
        "failed-cancel-taken-for-delivered",
        "a cancel of another run that reached nobody is recorded as delivered",
        "clew.engine.outbox:Outbox._cancel",
        "if cause is None:",
        "cause = None\nif cause is None:",
    ),
    Fault(
        "cancel-of-another-never-sent",
        "every other cancel of another run is recorded as delivered, and was never sent",
        "clew.engine.outbox:Outbox._cancel",
        "cause = await self._reach(",
        "cause = None if initiated_event_id % 2 else await self._reach(",
    ),
    Fault(
        "delivered-signal-told-as-failed",
        "every other signal that another run has taken is recorded as failed",
        "clew.engine.outbox:Outbox._signal",
        "if cause is None:",
        "lost = ExternalFailedCause.EXTERNAL_WORKFLOW_EXECUTION_NOT_FOUND\n"
        "cause = cause or (lost if initiated_event_id % 2 else None)\n"
        "if cause is None:",
    ),
    # --- keys over the runs of a chain
    Fault(
        "cron-run-keeps-its-keys",
        "the next run of a schedule has the keys of the one before",
        "clew.core.chain:_cron_run",
        "key_generation=run_id,",
        "key_generation=state.key_generation,",
    ),
    Fault(
        "retried-run-has-new-keys",
        "a run that is tried again has keys of its own",
        "clew.core.chain:run_after_failure",
        "key_generation=state.key_generation,",
        'key_generation=state.key_generation + "x",',
    ),
    # --- timers
    Fault(
        "one-timer-at-an-instant",
        "of several timers that are due at one instant the first fires, and the others never",
        "clew.core.due:decide_due",
        "timers = [item_id for _, kind, item_id in due if kind == ITEM_TIMER]",
        "timers = [item_id for _, kind, item_id in due if kind == ITEM_TIMER][:1]",
    ),
)
