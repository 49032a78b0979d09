"""Faults planted into the engine on purpose: a check that catches none of them is not a check.

Owns: `FAULTS`, each a small change of one function, and `planted`, which makes it and takes it back. Never: decides
what catches a fault (``hunt`` finds that out).

How it works: a fault names a function and a piece of its source with what stands in its place. The function is compiled
anew and lends its code to the old one, so that everybody who holds that meets the fault. When the engine's source has
changed and the piece is not there any more, that is an error that names the fault: adapt its text.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import textwrap
from collections.abc import Generator
from types import FunctionType
from typing import Any

from tests.simulation.again_faults import AGAIN_FAULTS
from tests.simulation.far_faults import FAR_FAULTS
from tests.simulation.fault import Fault
from tests.simulation.late_regressions import LATE_FAULTS
from tests.simulation.lifecycle_faults import LIFECYCLE_FAULTS
from tests.simulation.narrow_faults import NARROW_FAULTS
from tests.simulation.store_regressions import STORE_FAULTS
from tests.simulation.told_faults import TOLD_FAULTS
from tests.simulation.waiting_faults import WAITING_FAULTS

FAULTS: tuple[Fault, ...] = (
    # --- the store
    Fault(
        "no-version-guard",
        "an update of a run is written whatever version it was decided on",
        "tests.simulation.model_store:ModelStore._commit_unit",
        "run.row.version != write.expected_version",
        "False",
    ),
    Fault(
        "no-latest-run-guard",
        "a new run is inserted beside an open one",
        "tests.simulation.model_store:ModelStore._may_insert",
        "latest != write.expected_latest_run_key",
        "False and latest",
    ),
    Fault(
        "group-loses-its-last-unit",
        "a group commit says that all is done, and leaves out the last unit",
        "clew.storage.sqlite.commit:GroupCommitter._commit_all",
        "for unit in units)",
        "for unit in (units[:-1] or units))",
    ),
    Fault(
        "later-batches-lost",
        "of several batches of one run only the first is written",
        "clew.storage.sqlite.commit:GroupCommitter.collect",
        "if len(batches) > 1:",
        "if len(batches) > 99:",
    ),
    # --- the pipeline and the funnel
    Fault(
        "failure-taken-for-success",
        "a commit that the store refused counts as committed",
        "clew.engine.pipeline:CommitPipeline._settle",
        "outcomes = [error] * len(heads)",
        "outcomes = [CommitStatus.COMMITTED] * len(heads)",
    ),
    Fault(
        "answer-before-commit",
        "a caller is answered when the decision is taken, not when it is durable",
        "clew.engine.funnel:Funnel.submit",
        "if transition.events:",
        "if operation is not None and operation.reply is None:\n    operation.answer(None)\nif transition.events:",
    ),
    Fault(
        "refusal-before-commit",
        "a refusal is told although the state it rests on may be lost",
        "clew.engine.funnel:Funnel._after_current",
        "self._pipeline.after_current(entry, settled)",
        "tell()",
    ),
    Fault(
        "question-refused-before-durable",
        "a question is refused for the close of a run that may yet be lost",
        "clew.engine.queries:QueryDesk._ask",
        "while entry.unsettled_count and not entry.state.is_open:",
        "while False:",
    ),
    Fault(
        "close-and-successor-apart",
        "a run's close and the run that follows are written one after the other",
        "clew.engine.pipeline:CommitPipeline.submit_together",
        "if heads[0] is not None and heads[1] is not None:",
        "if False:",
    ),
    Fault(
        "failed-state-kept",
        "the state in memory is kept although its commit failed",
        "clew.engine.runs:RunCache.discard",
        "entry.is_discarded = True",
        "return",
    ),
    Fault(
        "state-changed-without-event",
        "a decision changes the state beside its events",
        "clew.core.messages:record_signal",
        "step.record(",
        "step.state.signal_count += 1\nstep.record(",
    ),
    # --- history
    Fault(
        "buffered-event-lost",
        "of the events that came during a workflow task the last is dropped",
        "clew.core.step:Step.flush",
        "for event in buffered:",
        "for event in buffered[:-1] or buffered:",
    ),
    Fault(
        "event-id-used-again",
        "a signal takes the id of the event before it",
        "clew.core.messages:record_signal",
        "event_id=step.outside_event_id",
        "event_id=max(step.outside_event_id - 1, 0)",
    ),
    # --- leases
    Fault(
        "any-attempt-may-report",
        "a report on an activity counts whatever attempt it is of",
        "clew.core.activities:_find",
        "not (activity.lease_id == token.lease_id and activity.attempt == token.attempt)",
        "False",
    ),
    Fault(
        "any-worker-may-answer",
        "a workflow task may be answered by a worker that lost it",
        "clew.core.workflow_tasks:held_task",
        "or task.lease_id != token.lease_id",
        "",
    ),
    Fault(
        "one-attempt-too-many",
        "an activity that may run once is tried again",
        "clew.core.retry:decide_retry",
        "attempt >= policy.maximum_attempts",
        "attempt > policy.maximum_attempts",
    ),
    # --- idempotency
    Fault(
        "key-forgets-the-activity",
        "the idempotency key does not depend on the activity",
        "clew.core.idempotency:idempotency_key",
        "_lp(activity_id)",
        '_lp("activity")',
    ),
    Fault(
        "start-repeated",
        "the repeat of a start is not recognised",
        "clew.core.start:decide_id_policy",
        "request.request_id == existing.start_request_id",
        "False",
    ),
    Fault(
        "signal-repeated",
        "the repeat of a signal is not recognised",
        "clew.core.messages:decide_signal",
        "_has_signal(state, request.request_id)",
        "False",
    ),
    Fault(
        "cancel-dropped",
        "a cancel request is answered, and not recorded",
        "clew.core.messages:decide_cancel_request",
        "not state.is_open or state.cancel_requested",
        "True",
    ),
    Fault(
        "terminate-dropped",
        "a request to terminate is answered, and the run goes on",
        "clew.core.messages:decide_terminate",
        "return finish(step)",
        "return Transition()",
    ),
    Fault(
        "update-repeated",
        "the repeat of an update is not recognised",
        "clew.core.updates:decide_admit_update",
        "if known is not None:",
        "if False:",
    ),
    Fault(
        "chain-forgets-signals",
        "a run that continues does not know the signals of the run before it",
        "clew.core.chain:_earlier_request_ids",
        "[*earlier, *old.recent_request_ids]",
        "[]",
    ),
    Fault(
        "chain-forgets-starts",
        "a run that continues does not know the start of its chain",
        "clew.core.chain:_begin_next",
        "known[-step.limits.request_ids_kept :]",
        "[]",
    ),
    # --- timers
    Fault(
        "timer-early-and-says-not",
        "what is due within half a second counts as due, and its events are given that later moment",
        "clew.core.due:decide_due",
        "take_due(now, state.deadline_of)",
        'take_due(now := now + __import__("datetime").timedelta(seconds=0.5), state.deadline_of)',
    ),
    Fault(
        "timer-early",
        "what is due within half a second counts as due",
        "clew.core.due:decide_due",
        "take_due(now, state.deadline_of)",
        'take_due(now + __import__("datetime").timedelta(seconds=0.5), state.deadline_of)',
    ),
    Fault(
        "timers-forgotten-on-restart",
        "deadlines that are stored are not looked for",
        "clew.engine.attention:Attention._scan",
        "rows = await",
        "rows = [] and await",
    ),
    Fault(
        "timer-not-removed",
        "a timer that has fired stays pending",
        "clew.core.evolve:_timer_closed",
        "del state.timers[event.started_event_id]",
        "pass",
    ),
    # --- messages between runs
    Fault(
        "message-dropped",
        "a signal to another run is not written down",
        "clew.engine.outbox_rows:outbox_rows",
        "if type(effect) in OUTBOX_EFFECTS",
        'if type(effect) in OUTBOX_EFFECTS and type(effect).__name__ != "SignalExternal"',
    ),
    Fault(
        "parent-not-told",
        "the end of a child is not written down for its parent",
        "clew.engine.outbox_rows:outbox_rows",
        "if type(effect) in OUTBOX_EFFECTS",
        'if type(effect) in OUTBOX_EFFECTS and type(effect).__name__ != "NotifyParent"',
    ),
    Fault(
        "message-never-removed",
        "a message that was delivered stays",
        "clew.engine.outbox:Outbox._record",
        "row.message_id if is_one_commit else None",
        "None",
    ),
    Fault(
        "message-removed-first",
        "a message is removed before it is delivered",
        "clew.engine.outbox:Outbox._deliver_once",
        "effect = decode_outbox(row.body)",
        "effect = decode_outbox(row.body)\nawait self._remove(row)",
    ),
    Fault(
        "child-never-released",
        "a child's first task waits for ever",
        "clew.core.start:decide_release_first_task",
        "state.is_first_task_held = False",
        "return Transition()",
    ),
    # --- tasks
    Fault(
        "row-lost-with-its-claim",
        "the row of a task is removed when it is claimed, not when it is started",
        "clew.engine.claims:Claims.start",
        "is_usable = want is not None",
        "await self._store.delete_tasks([row.task_id])\nis_usable = want is not None",
    ),
    Fault(
        "no-task-for-news",
        "what came while a workflow task was out makes no new one",
        "clew.core.workflow_tasks:decide_complete_workflow_task",
        "if step.flush() or",
        "if (step.flush() and False) or",
    ),
    Fault(
        "partial-history-short",
        "a worker that has the run cached gets one event too few",
        "clew.engine.offers:_first_event_id",
        "offer.started.previous_started_event_id + 1",
        "offer.started.previous_started_event_id + 2",
    ),
    Fault(
        "stale-read",
        "a query is answered from what the run was like when the worker first saw it",
        "clew.engine.queries:QueryDesk._ask",
        "return QueryWorkflowResponse(result=result.result)",
        "seen = self.__dict__.setdefault('_seen', {})\n"
        "kept = seen.setdefault((entry.run_key, request.query_type), result.result)\n"
        "return QueryWorkflowResponse(result=kept)",
    ),
    # --- resets
    Fault(
        "reset-loses-signals",
        "a reset leaves behind the signals that came after its point",
        "clew.core.reset:_Reapply._signal",
        "_append_again(self._step, event)",
        "pass",
    ),
    Fault(
        "reset-has-keys-of-its-own",
        "the run that a reset makes has idempotency keys of its own",
        "clew.core.reset:decide_reset",
        "new.origins = _origins(source.base, event_id)",
        "new.origins = _origins(source.base, event_id); new.key_generation = run_id",
    ),
    Fault(
        "child-reports-to-the-old-run",
        "the end of a child is told to the run that started it, also after that was reset",
        "clew.engine.outbox:Outbox._notify_parent",
        "await self._after_reset(ref, namespace, effect.initiated_event_id)",
        "None",
    ),
    # --- tasks that are given out before their cause is durable
    Fault(
        "early-machine-kept",
        "a worker that is ahead of what is durable is not told to forget when that is lost",
        "clew.engine.early:EarlyTasks.on_discarded",
        "session.sink.evict_workflow(entry.state.namespace, entry.state.run_id)",
        "pass",
    ),
    Fault(
        "early-joined-events-lost",
        "of an answer that joins the write of its cause the last event is lost",
        "clew.engine.express:Express._submit",
        "cause.events += events",
        "cause.events += events[:-1]",
    ),
    Fault(
        "early-worthless-answer-taken",
        "an answer that rests on a lost cause is decided again",
        "clew.engine.express:Express._lost",
        "if rests_on is not None and rests_on.early != DURABLE:",
        "if False:",
    ),
    Fault(
        "early-cause-never-confirmed",
        "a worker is not told that the cause of its early task is durable",
        "clew.engine.early:EarlyTasks.note_durable",
        "session.early_sink.confirm_workflow_task(task)",
        "pass",
    ),
    Fault(
        "early-step-acts-at-once",
        "a local step of a task that was given out early runs before the task's cause is durable",
        "clew.worker._workflow_tasks:WorkflowTasks._take_result",
        "if run.is_early and result.local_activities:",
        "if False:",
    ),
    Fault(
        "early-void-answer-sent",
        "a worker answers a task although it was told to forget the run",
        "clew.worker._workflow_tasks:WorkflowTasks.evict",
        "run.is_void = run.is_early",
        "pass",
    ),
    Fault(
        "early-asked-while-ahead",
        "a worker is asked while it knows of what is not durable",
        "clew.engine.queries:_is_direct",
        "if entry.unsettled_count:",
        "if False:",
    ),
    Fault(
        "early-general-answer-decided-again",
        "an answer that takes the general way and rests on a lost cause is decided again",
        "clew.engine.funnel:Funnel.lost",
        "if operation is not None and operation.is_worthless:",
        "if False:",
    ),
    Fault(
        "early-general-cause-never-confirmed",
        "a worker is not told that a signal or a timer is durable whose task it has begun",
        "clew.engine.funnel:Funnel.settle",
        "if not submission.early or self._early.note_durable(submission):",
        "if not submission.early:",
    ),
    Fault(
        "commit-over-at-once-is-never-noticed",
        "what a commit has done that is over before its call returns is never told",
        "clew.engine.pipeline:CommitPipeline._flush",
        "self._settle(heads, future)",
        "pass",
    ),
    # --- the worker's half
    Fault(
        "signals-after-the-end",
        "run does not stand back for signals that came with its task",
        "clew.replay.applying:ApplyingMachine._apply_messages",
        "self._holds_main = hold_through > 0",
        "self._holds_main = False",
    ),
    Fault(
        "recorded-step-runs-again",
        "a local step whose marker is there is run again",
        "clew.replay.following:FollowingMachine._feed",
        "if kinds[index] is e.MarkerRecorded:",
        "if False:",
    ),
    # --- what the simulation once found for real
    Fault(
        "once-asked-before-durable",
        "code that has answered its task is asked although the answer is not durable",
        "clew.engine.queries:_is_direct",
        "if entry.unsettled_count:",
        "if entry.early is not None:",
    ),
    Fault(
        "once-refused-out-of-turn",
        "an answer to an early task is refused when a later change of the run is heard of before its cause",
        "clew.engine.early:EarlyTasks.when_durable",
        "elif cause.early == EVICTED:",
        "elif True:",
    ),
    Fault(
        "once-versions-counted",
        "of two writes decided after a lost answer the second finds the version of another write",
        "clew.engine.ids:IdBlocks.version_after",
        "self._version = max(self._version, version) + 1",
        "self._version = version + 1",
    ),
    Fault(
        "once-child-left-behind",
        "a child that was started while its parent closed is held for ever",
        "clew.engine.outbox:Outbox._leave_behind",
        "await self._record(row, child, self._decision(decide_release_first_task))",
        "await self._remove(row)",
    ),
    Fault(
        "once-end-over-signals",
        "after a task that recorded steps and failed, run ends over signals that came meanwhile",
        "clew.replay.passages:brings_signals_next",
        "return True",
        "return False",
    ),
    Fault(
        "timers-not-told",
        "who asks why a run waits is not told of its timers",
        "clew.engine.describe:_waiting_for",
        "for timer in state.timers.values():",
        "for timer in ():",
    ),
    Fault(
        "poll-told-before-durable",
        "a poll for an update is answered from what is decided and not durable",
        "clew.engine.updates:UpdateDesk._durable",
        "await settled",
        "pass",
    ),
    Fault(
        "once-woken-before-durable",
        "who waits for an acceptance, and looks again, is told of one that is decided and not durable",
        "clew.engine.updates:UpdateDesk._accepted",
        "entry, _ = await self._durably(entry, admission, lambda known: known.accepted_event_id)",
        "pass",
    ),
    Fault(
        "once-abandoned-though-done",
        "an update that its run completed while it closed is told as abandoned",
        "clew.engine.updates:UpdateDesk._after_close",
        "if admission.completed_event_id:",
        "if False:",
    ),
    Fault(
        "once-repeat-tried-for-ever",
        "the repeat of a signal-with-start whose run has closed is made again and again",
        "clew.engine.starts:Starter._decide_on",
        "if extras.signal is not None and has_taken(state, request.request_id):",
        "if False:",
    ),
    Fault(
        "once-cancel-reaches-the-next-run",
        "a cancel request that is sent again reaches the run after the one that took it",
        "clew.core.messages:decide_cancel_request",
        "if request.request_id and request.request_id in state.earlier_request_ids:",
        "if False:",
    ),
    Fault(
        "once-close-believed-too-early",
        "a child is dealt with after a close of its parent that may yet be lost",
        "clew.engine.outbox:Outbox._is_over",
        "await self._apply(entry, look, None)",
        "return not entry.state.is_open",
    ),
    Fault(
        "once-lost-claim-by-the-wrong-clock",
        "a claim whose answer was lost is looked for by a clock that may run ahead",
        "clew.engine.matching:Matcher._drain",
        "self._clock.call_at(lease_ends_at, partial(self._note_lost_claim, queue, kind))",
        "loop.call_later(self._claim_lease.total_seconds() + CLAIM_RETRY_SECONDS, self._note_lost_claim, queue, kind)",
    ),
    Fault(
        "once-condition-over-handler",
        "run goes on for a condition that held before the signal it stands back for",
        "clew.replay.runtime:WorkflowRuntime.check_conditions",
        "if task is held_back and task is not None:",
        "if False:",
    ),
    Fault(
        "once-task-dropped-for-a-stale-memory",
        "a node whose memory of a run is behind removes the row of its task",
        "clew.engine.claims:Claims.start",
        "if isinstance(refused, Rejection):\n        if not await self._locator.is_current(entry):",
        "if isinstance(refused, Rejection):\n    if False:",
    ),
    Fault(
        "once-answered-when-decided",
        "a signal-with-start that came twice is answered when the other is decided, and not yet durable",
        "clew.engine.engine:Engine.signal_with_start",
        "if started.response.started:",
        "if started.response.started or start.request_id in started.entry.state.recent_request_ids:",
    ),
    Fault(
        "once-another-nodes-version",
        "two nodes give what follows a version the same one, and take each other's writes for their own",
        "clew.engine.ids:TimedIds.version_after",
        "self.next_run_key(version)",
        "version + 1",
    ),
    Fault(
        "once-start-fails-for-ever",
        "a commit that fails while the engine starts overflows a date",
        "clew.engine.attention:Attention._scan_at",
        "self._horizon_end - HORIZON / 2",
        "self._horizon_end - 2 * HORIZON",
    ),
    Fault(
        "once-reset-leaves-a-child-held",
        "a child that was started, but not let go, when its parent was reset waits for ever",
        "clew.engine.outbox:Outbox._report_child",
        "if child is not None and child.state.is_first_task_held:",
        "if False:",
    ),
    *LIFECYCLE_FAULTS,
    *FAR_FAULTS,
    *WAITING_FAULTS,
    *STORE_FAULTS,
    *TOLD_FAULTS,
    *LATE_FAULTS,
    *AGAIN_FAULTS,
    *NARROW_FAULTS,
)


@contextlib.contextmanager
def planted(fault: Fault) -> Generator[None]:
    """The engine with this fault."""
    function, module = _find(fault.target)
    source = textwrap.dedent(inspect.getsource(function))
    count = source.count(fault.old)
    assert count == 1, (
        f"{fault.name}: {fault.old!r} is met {count} times in {fault.target}; adapt the fault to its source"
    )
    line = source[: source.index(fault.old)].rpartition("\n")[2]
    indent = line[: len(line) - len(line.lstrip())]
    space: dict[str, Any] = dict(vars(module))
    exec(compile(source.replace(fault.old, fault.new.replace("\n", f"\n{indent}")), fault.target, "exec"), space)
    changed = space[function.__name__]
    if isinstance(changed, staticmethod):
        changed = changed.__func__
    assert isinstance(changed, FunctionType), f"{fault.target} is not a plain function"
    kept = function.__code__
    function.__code__ = changed.__code__
    try:
        yield
    finally:
        function.__code__ = kept


def _find(target: str) -> tuple[FunctionType, Any]:
    module_name, _, path = target.partition(":")
    module = importlib.import_module(module_name)
    found: Any = module
    for name in path.split("."):
        found = inspect.getattr_static(found, name)
    if isinstance(found, staticmethod):
        found = found.__func__
    assert isinstance(found, FunctionType), f"{target} is not a plain function"
    return found, module
