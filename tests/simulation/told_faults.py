"""Faults in what clients are told, planted like those of ``planted``.

Owns: `TOLD_FAULTS`. Never: plants them.
"""

from __future__ import annotations

from typing import Final

from tests.simulation.fault import Fault

TOLD_FAULTS: Final = (
    Fault(
        "describe-hides-what-is-pending",
        "who asks about a run is told of no timer and no activity, in the lists and in words alike",
        "clew.engine.describe:describe_state",
        "activities = tuple(_activity",
        'state = __import__("msgspec").structs.replace(state, timers={}, activities={})\nactivities = tuple(_activity',
    ),
    Fault(
        "describe-stale",
        "who asks about a run is told for half of a minute what the one before was told",
        "clew.engine.engine:Engine.describe_workflow",
        "return describe_state(entry.state, why_unmatched=self._why_unmatched)",
        "seen, now = self.__dict__.setdefault('_seen', {}), asyncio.get_running_loop().time()\n"
        "told = describe_state(entry.state, why_unmatched=self._why_unmatched)\n"
        "if now - seen.get(request.workflow_id, (-30, None))[0] >= 30:\n    seen[request.workflow_id] = (now, told)\n"
        "return seen[request.workflow_id][1]",
    ),
    Fault(
        "describe-before-durable",
        "who asks about a run is told of what is decided and not durable",
        "clew.engine.engine:Engine.describe_workflow",
        "while entry.unsettled_count:",
        "while False:",
    ),
    Fault(
        "result-that-never-was",
        "who waits for the end of a run at hand is told that it was terminated",
        "clew.engine.close_waits:CloseWaits.look",
        "events=(entry.tail[-1],)",
        'events=(__import__("clew.model.events", fromlist=["e"]).WorkflowExecutionTerminated(\n'
        "    event_id=close_event_id, event_time=entry.tail[-1].event_time),)",
    ),
    Fault(
        "result-of-the-last-but-one",
        "who asks for the end of a run that is over is told the event before it",
        "clew.engine.reading:Reader._page",
        "self._all_events(entry, state.close_event_id, state.close_event_id)",
        "self._all_events(entry, state.close_event_id - 1, state.close_event_id - 1)",
    ),
    Fault(
        "open-run-not-found",
        "one open run in seven is said not to exist",
        "clew.engine.locate:Locator.find",
        "if entry is not None:\n",
        "if entry is not None and entry.run_key % 7 == 3:\n    raise not_found(namespace, workflow_id, run_id)\n"
        "if entry is not None:\n",
    ),
    Fault(
        "closed-run-not-found",
        "who asks about a run that is over is told that there is none",
        "clew.engine.locate:Locator.find",
        "if entry is None or entry.state.workflow_id != workflow_id:",
        "if entry is None or entry.state.workflow_id != workflow_id or not entry.state.is_open:",
    ),
    Fault(
        "once-waited-for-a-lost-start",
        "who waits for a result waits at a run whose start is then lost, and is told that there is no such run",
        "clew.engine.locate:Locator.find_started",
        "not entry.durable_last_event_id",
        "False",
    ),
    Fault(
        "once-update-refused-for-a-replaced-run",
        "a node refuses an update for a run in its memory that another node has replaced",
        "clew.engine.updates:UpdateDesk._following",
        "is_over = error.code",
        "is_over = False and error.code",
    ),
    # --- refusals whose code is another's, or comes for nothing
    Fault(
        "terminate-refused-for-want-of-a-worker",
        "a terminate that comes too late is refused as if no worker were there",
        "clew.core.messages:decide_terminate",
        "return _already_closed(state)",
        'return refuse(RejectionCode.NO_WORKER, "no worker; start one")',
    ),
    Fault(
        "signal-refused-for-a-limit",
        "a signal to a run that is over is refused as if there had been too many",
        "clew.core.messages:decide_signal",
        "return _already_closed(state)",
        'return refuse(RejectionCode.LIMIT_EXCEEDED, "too many signals")',
    ),
    Fault(
        "no-worker-told-at-once",
        "who asks a question is told that there is no worker without any time for one to come",
        "clew.engine.queries:QueryDesk._wait_polled",
        "if left <= 0:",
        "if True:",
    ),
    Fault(
        "updates-limited-to-two",
        "a third update is refused as one too many",
        "clew.core.updates:_refuse_update",
        "len(state.updates) >= limits.updates_in_flight_max",
        "len(state.updates) >= 2",
    ),
    # --- the bank itself
    Fault(
        "bank-loses-credits",
        "the bank says that it has added an amount, and has not",
        "tests.simulation.outside:Outside._move",
        "self.balances[account] += change",
        "self.balances[account] += min(change, 0)",
    ),
)
