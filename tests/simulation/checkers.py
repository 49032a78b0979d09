"""The laws of the design, checked when a simulation is over.

Owns: one function a law, over what was committed and what clients saw. Never: asks the engine.

How it works: `check_all` calls every function whose name begins with ``check_``, and the first that is not content
raises `LawBroken`; those about time, attempts and what follows a run stand in ``lifecycle_checks`` and ``lag_checks``,
those about what runs do to each other and about keys in ``chain_checks``, those about money in ``bank_check``, those
about refusals in ``refusals``, those about lists in ``listing``, and what has to be seen while it happens in
``record``, ``answers``, ``told``, ``leases`` and ``parked``. The mutations of ``planted`` show that each of them can
fail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from clew.converter import DataConverter
from clew.core.evolve import fold
from clew.core.facts import durable_facts
from clew.model import events as e
from clew.model.failure import TimeoutType
from clew.model.policies import WorkflowExecutionStatus
from clew.replay import MachineOptions, WorkflowMachine
from tests.simulation.bank_check import check_bank
from tests.simulation.chain_checks import CHAIN_CHECKS
from tests.simulation.clients import Call, value_of
from tests.simulation.deploys import DEFINITIONS, check_deploys
from tests.simulation.lag_checks import check_lags
from tests.simulation.lifecycle_checks import LIFE_CHECKS
from tests.simulation.linearize import NEVER, Operation, is_linearizable
from tests.simulation.listing import check_listing
from tests.simulation.programs import QUEUE, expected
from tests.simulation.record import ACTIVITY_ENDS, LawBroken, RunLog
from tests.simulation.refusals import check_refusals
from tests.simulation.start_checks import check_starts_again
from tests.simulation.world import World

COMPLETED = WorkflowExecutionStatus.COMPLETED
RETRY, CRON = e.ContinueAsNewInitiator.RETRY, e.ContinueAsNewInitiator.CRON_SCHEDULE
CHILD_ENDS = (
    e.ChildWorkflowExecutionCompleted,
    e.ChildWorkflowExecutionFailed,
    e.ChildWorkflowExecutionCanceled,
    e.ChildWorkflowExecutionTimedOut,
    e.ChildWorkflowExecutionTerminated,
)
OUTLIVING_STEPS = frozenset({"child", "failing_child", "leave", "renew"})
"""Steps that leave behind what a reset does not take back: a child that runs on, a run with keys of its own."""

DISTURBING_CALLS = frozenset({"cancel", "terminate"})
DISTURBING_VALUES = frozenset({"run_timeout", "execution_timeout", "cron"})
DISTURBING_STEPS = frozenset({"stop", "fail"})


def check_all(world: World) -> None:
    """All laws."""
    for check in CHECKS:
        check(world)


# --- law 1, 2: what is stored is what was committed -------------------------------------------------------------------


def check_disk_holds_the_record(world: World) -> None:
    """No committed event has changed, and every snapshot is the one that was committed last."""
    stored = {row.run_key: (row, batches) for row, batches in world.disk.contents()}
    kept = {key for key, run in world.record.runs.items() if not run.is_deleted}
    _require(stored.keys() == kept, "law 1", "runs on the disk are not those that were committed")
    for run in world.record.runs.values():
        if run.is_deleted:
            continue
        row, batches = stored[run.run_key]
        events = [event for batch in batches for event in e.decode_events(batch.events)]
        _require(events == run.events, "law 1", f"stored events of {run.workflow_id} are not those that were committed")
        _require(row.state == run.state_bytes, "law 2", f"the snapshot of {run.workflow_id} is not the last committed")
        _require(row.status == run.status, "law 2", f"the status of {run.workflow_id} is not the last committed")
        _require(row.history_length == len(events), "law 2", f"{run.workflow_id} counts its events wrongly")


def check_state_is_fold_of_history(world: World) -> None:
    """``state == fold(history)``, for every fact that history holds."""
    for run in world.record.runs.values():
        state = run.state()
        folded = fold(run.events, namespace=state.namespace, run_id=run.run_id)
        stated, told = durable_facts(state), durable_facts(folded)
        differing = {name: (told[name], stated[name]) for name in stated if stated[name] != told[name]}
        _require(not differing, "law 2", f"{run.workflow_id}: fold(history) and the state differ in {differing}")


# --- law 3: acknowledged is recorded, once ----------------------------------------------------------------------------


def check_acknowledged_calls(world: World) -> None:
    """Starts, signals and updates that were acknowledged are recorded once in their chain."""
    record = world.record
    for call in _calls(world):
        values = call.action.values
        if not call.is_ok:
            continue
        if call.action.kind in ("start", "start_register", "reset"):
            _require(
                call.answer.run_id in record.by_run_id, "law 3", f"{call} was answered with a run that is not there"
            )
        if call.action.kind in ("signal", "stop_register", "signal_with_start"):
            _require(
                record.signals_of(values["id"], call.request_id) >= 1,
                "law 3",
                f"{call} was answered, and is not recorded",
            )
        if call.action.kind in ("update", "write", "swap", "update_with_start") and call.answer.outcome.failure is None:
            _require(
                len(record.updates_of(values["id"], call.request_id)) >= 1,
                "law 3",
                f"{call} was answered, not recorded",
            )


def check_nothing_recorded_twice(world: World) -> None:
    """One request is one event in its chain, however often it was sent."""
    for chain in _chains(world).values():
        requests: Counter[str] = Counter()
        for run in chain:
            for event in run.events:
                if (
                    isinstance(event, e.WorkflowExecutionSignaled | e.WorkflowExecutionCancelRequested)
                    and event.request_id
                ):
                    requests[f"{type(event).__name__} {event.request_id}"] += 1
                if isinstance(event, e.WorkflowExecutionUpdateAccepted):
                    requests[f"update {event.protocol_instance_id}"] += 1
        twice = [request for request, count in requests.items() if count > 1]
        _require(not twice, "law 3", f"{chain[0].workflow_id}: recorded more than once: {twice}")


# --- law 5: replay ----------------------------------------------------------------------------------------------------


def check_replay(world: World) -> None:
    """Every history replays, whole, in a fresh machine, with each version of the code that it may meet."""
    meetings = [(run, one) for run in world.record.runs.values() for one in world.deploys.versions_for(run)]
    for run, version in meetings:
        started = _started(run)
        converter = DataConverter.default
        machine = WorkflowMachine(
            definition=DEFINITIONS[version][started.workflow_type],
            namespace=run.namespace,
            task_queue=QUEUE,
            workflow_id=started.workflow_id,
            run_id=run.run_id,
            workflow_type=started.workflow_type,
            payload_converter=converter.payload_converter,
            failure_converter=converter.failure_converter,
            options=MachineOptions(runs_local_activities=True, reports_waiting=False),
        )
        try:
            machine.replay(run.events, is_whole=True)
        except Exception as error:
            name = f"the history of {run.workflow_id} with version {version}"
            raise LawBroken(f"law 5: {name} does not replay: {error}") from error
        finally:
            machine.evict()


# --- law 6, 7: activities ---------------------------------------------------------------------------------------------


def check_activities(world: World) -> None:
    """An outcome is recorded at most once, after the start of its attempt; a key stands for one intention."""
    for run in world.record.runs.values():
        ends: Counter[int] = Counter()
        starts: Counter[int] = Counter()
        for event in run.events:
            if isinstance(event, e.ActivityTaskStarted):
                starts[event.scheduled_event_id] += 1
                taken = world.outside.taken.get((run.run_id, event.scheduled_event_id), event.attempt)
                _require(taken == event.attempt, "law 6", f"{run.workflow_id}: taken from attempt {taken}: {event}")
            if isinstance(event, ACTIVITY_ENDS):
                ends[event.scheduled_event_id] += 1
                if isinstance(event, e.ActivityTaskCompleted):
                    _require(
                        starts[event.scheduled_event_id] == 1, "law 6", f"{run.workflow_id}: completed, not started"
                    )
        _require(all(n == 1 for n in ends.values()), "law 6", f"{run.workflow_id}: an activity has two outcomes")
        _require(all(n == 1 for n in starts.values()), "law 6", f"{run.workflow_id}: an activity started twice")
    for owner, keys in world.outside.keys.items():
        _require(len(keys) == 1, "law 7", f"activity {owner} had {len(keys)} idempotency keys")


def check_results_took_effect(world: World) -> None:
    """A recorded result is one that an attempt really gave."""
    given = {value for _, value in world.outside.done.values()}
    for run in world.record.runs.values():
        for event in run.events:
            if isinstance(event, e.ActivityTaskCompleted):
                _require(value_of(event.result) in given, "law 6", f"{run.workflow_id}: nobody gave {event.result}")


# --- law 8: timers ----------------------------------------------------------------------------------------------------


def check_timers(world: World) -> None:
    """Never early, once, and not after they were cancelled."""
    for run in world.record.runs.values():
        running: dict[int, e.TimerStarted] = {}
        for event in run.events:
            match event:
                case e.TimerStarted():
                    running[event.event_id] = event
                case e.TimerFired():
                    started = running.pop(event.started_event_id, None)
                    _require(started is not None, "law 8", f"{run.workflow_id}: a timer fired that was not running")
                    assert started is not None
                    due = started.event_time + started.start_to_fire_timeout
                    _require(
                        event.event_time >= due, "law 8", f"{run.workflow_id}: a timer fired early: {event} {started}"
                    )
                case e.TimerCanceled():
                    known = running.pop(event.started_event_id, None)
                    _require(
                        known is not None, "law 8", f"{run.workflow_id}: a timer was cancelled that was not running"
                    )
                case _:
                    pass


# --- messages between runs --------------------------------------------------------------------------------------------


def check_children(world: World) -> None:
    """A child is started once and its end is told once, as it was."""
    for run in world.record.runs.values():
        begun: Counter[int] = Counter()
        ended: Counter[int] = Counter()
        for event in run.events:
            if isinstance(event, e.ChildWorkflowExecutionStarted | e.StartChildWorkflowExecutionFailed):
                begun[event.initiated_event_id] += 1
            if isinstance(event, CHILD_ENDS):
                ended[event.initiated_event_id] += 1
        _require(all(n == 1 for n in begun.values()), "law 2", f"{run.workflow_id}: a child started twice")
        _require(all(n == 1 for n in ended.values()), "law 2", f"{run.workflow_id}: a child ended twice")


def check_chains_go_on(world: World) -> None:
    """A run that closed for another to follow is followed by it, and by no other."""
    for run in world.record.runs.values():
        new_run_id = getattr(run.events[-1], "new_execution_run_id", "")
        if new_run_id:
            _require(new_run_id in world.record.by_run_id, "law 2", f"{run.workflow_id}: no run {new_run_id} follows")
    before = Counter(
        _started(run).continued_execution_run_id for run in world.record.runs.values() if _seam(run) is None
    )
    twice = [run_id for run_id, count in before.items() if run_id and count > 1]
    _require(not twice, "law 2", f"followed by more than one run: {twice}")


def check_once_is_once(world: World) -> None:
    """An activity that may be tried once never begins again (semantics 0.4)."""
    if _has_resets(world):  # Done again behind the point, under the same key, as the step is.
        return
    for (key, _), times in world.outside.begun.items():
        if world.outside.inputs[key].get("do") == "once":
            _require(times <= 1, "law 6", f"an activity for one attempt began {times} times")


def check_nothing_is_left(world: World) -> None:
    """When everything is closed, no task waits for a worker and no message for its delivery."""
    tasks, messages = world.disk.leftovers()
    _require(not messages, "law 2", f"messages are left: {messages}")
    _require(not tasks, "law 10", f"tasks of closed runs are left: {tasks}")


# --- resets -----------------------------------------------------------------------------------------------------------


def check_resets(world: World) -> None:
    """A reset keeps what was before its point, brings what came from outside after it, once, and changes no key."""
    for run in world.record.runs.values():
        seam = _seam(run)
        if seam is None:
            continue
        base, state = world.record.by_run_id[seam.base_run_id], run.state()
        point = next(one.until_event_id for one in state.origins if one.run_id == base.run_id)
        name = f"{run.workflow_id}, reset at event {point}"
        _require(run.events[: point - 1] == base.events[: point - 1], "law 1", f"{name}: copied events were changed")
        _require(not base.is_open, "law 4", f"{name}: the run that was reset is open")
        _require(state.key_generation == base.state().key_generation, "law 7", f"{name}: another key generation")
        signals = Counter(ev.request_id for ev in run.events if isinstance(ev, e.WorkflowExecutionSignaled))
        twice = [request_id for request_id, count in signals.items() if count > 1 and request_id]
        _require(not twice, "law 3", f"{name}: signals came twice: {twice}")
        call = _call_of_reset(world, run.run_id)
        left_out = call.action.values["without"] if call is not None else ("Signal", "Update")
        after = [event for one in _went_on(world, base, run) for event in one[point - 1 if one is base.events else 0 :]]
        for event in after:
            if isinstance(event, e.WorkflowExecutionSignaled) and "Signal" not in left_out:
                _require(signals[event.request_id] == 1, "law 3", f"{name}: {event} was lost")
            if isinstance(event, e.WorkflowExecutionUpdateAccepted) and "Update" not in left_out:
                _require(_knows_update(run, event.protocol_instance_id), "law 3", f"{name}: {event} was lost")


def _call_of_reset(world: World, run_id: str) -> Call | None:
    """The call that made this run; None when its answer never came."""
    made = (call for call in _calls(world) if call.action.kind == "reset" and call.is_ok)
    return next((call for call in made if call.answer.run_id == run_id), None)


def _went_on(world: World, base: RunLog, run: RunLog) -> Iterable[list[e.Event]]:
    """The histories of a run and of those that had followed it when it was reset."""
    following: RunLog | None = base
    while following is not None and following.run_key < run.run_key:
        yield following.events
        following = world.record.by_run_id.get(getattr(following.events[-1], "new_execution_run_id", ""))


def _knows_update(run: RunLog, update_id: str) -> bool:
    for event in run.events:
        if isinstance(event, e.WorkflowExecutionUpdateAdmitted) and event.request.update_id == update_id:
            return True
        if isinstance(event, e.WorkflowExecutionUpdateAccepted) and event.protocol_instance_id == update_id:
            return True
    return False


# --- results ----------------------------------------------------------------------------------------------------------


def check_results(world: World) -> None:
    """A completed run counted each of its steps, and took in each of its signals and updates, once."""
    for chain in map(_since_it_began_anew, _chains(world).values()):
        last = chain[-1]
        if last.status is not COMPLETED or _started(last).workflow_type != "Program":
            continue
        closed = last.events[-1]
        assert isinstance(closed, e.WorkflowExecutionCompleted)
        result = value_of(closed.result)
        program = value_of(_started(chain[0]).input)
        bounds = expected(program["steps"])
        _require(bounds is not None, "law 5", f"{last.workflow_id} completed, although its program fails")
        assert bounds is not None
        low, high = bounds
        _require(low <= result["total"] <= high, "law 6", f"{last.workflow_id} counted {result['total']}, not {bounds}")
        signals = [
            value_of(ev.input) for run in chain for ev in run.events if isinstance(ev, e.WorkflowExecutionSignaled)
        ]
        _require(
            sorted(result["signals"]) == sorted(signals),
            "law 3",
            f"{last.workflow_id} took {result['signals']} of {signals}",
        )
        _require(result["order"] == signals, "law 2", f"{last.workflow_id} was told {result['order']}; sent: {signals}")
        # An update that comes with the last task may be handled after `run` has returned, and so miss the result.
        done = Counter(
            value_of(ev.outcome.result)
            for run in chain
            for ev in run.events
            if isinstance(ev, e.WorkflowExecutionUpdateCompleted) and ev.outcome.failure is None
        )
        taken = Counter(result["updates"])
        _require(taken <= done, "law 3", f"{last.workflow_id} took updates {taken} of {done}")


def check_undisturbed_runs_complete(world: World) -> None:
    """Where nobody cancels, terminates or fails, every run completes."""
    if _is_disturbed(world):
        return
    for chain in _chains(world).values():
        if _started(chain[-1]).cron_schedule:
            continue
        status = chain[-1].status
        _require(
            status is COMPLETED, "law 6", f"{chain[-1].workflow_id} ended as {status.value}: {chain[-1].events[-1]}"
        )


def check_tasks_in_calm(world: World) -> None:
    """Where nothing goes wrong, no workflow task is left without an answer until its time is over."""
    if not world.plan.is_calm:
        return
    for run in world.record.runs.values():
        for event in run.events:
            if isinstance(event, e.WorkflowTaskTimedOut) and event.timeout_type is TimeoutType.START_TO_CLOSE:
                raise LawBroken(f"law 11: {run.workflow_id}: nobody answered a workflow task: {event}")


# --- linearizability --------------------------------------------------------------------------------------------------


def check_register(world: World) -> None:
    """Reads, writes and swaps of a register look as if each had happened at one moment."""
    for name in {call.action.values["id"]: None for call in _calls(world) if call.action.kind == "start_register"}:
        if len(world.record.runs_of(name)) != 1:
            continue
        calls = [call for call in _calls(world) if call.action.values["id"] == name]
        operations = [op for call in calls if (op := _operation(world, call)) is not None]
        names = [op.name for op in operations]
        _require(is_linearizable(operations, 0), "linearizability", f"{name}: no order explains {names}")


def _operation(world: World, call: Call) -> Operation | None:
    kind, values = call.action.kind, call.action.values
    if kind not in ("read", "write", "swap") or call.ended_at is None:
        return None
    if kind == "read":
        if not call.is_ok:
            return None
        seen = value_of(call.answer.result)
        return Operation(f"read {seen}", call.began_at, call.ended_at, lambda now: now if now == seen else None)
    found = world.record.updates_of(values["id"], call.request_id)
    if not found or found[0].outcome.failure is not None:
        return None
    told = value_of(found[0].outcome.result)
    ended_at = call.ended_at if call.is_ok else NEVER
    number, wanted = values["number"], values["wanted"]
    if kind == "write":
        name = f"write {number}, was {told}"
        return Operation(name, call.began_at, ended_at, lambda now: number if now == told else None)
    name = f"swap {wanted} to {number}: {told}"
    if told:
        return Operation(name, call.began_at, ended_at, lambda now: number if now == wanted else None)
    return Operation(name, call.began_at, ended_at, lambda now: now if now != wanted else None)


# --- small parts ------------------------------------------------------------------------------------------------------


def _require(holds: bool, law: str, text: str) -> None:
    if not holds:
        raise LawBroken(f"{law}: {text}")


def _calls(world: World) -> Iterable[Call]:
    return (call for client in world.clients for call in client.calls)


def _started(run: RunLog) -> e.WorkflowExecutionStarted:
    first = run.events[0]
    assert isinstance(first, e.WorkflowExecutionStarted), "event 1 starts the run"
    return first


def _chains(world: World) -> dict[str, list[RunLog]]:
    """The runs of each chain that count: a run that was reset counts as the one that goes on with it."""
    lasts: dict[str, RunLog] = {}
    for _, run in sorted(world.record.runs.items()):
        lasts[_started(run).first_execution_run_id] = run
    chains: dict[str, list[RunLog]] = {}
    for first_run_id, last in lasts.items():
        chain = [last]
        while before := _started(chain[0]).continued_execution_run_id:
            chain.insert(0, world.record.by_run_id[before])
        chains[first_run_id] = chain
    return chains


def _since_it_began_anew(chain: list[RunLog]) -> list[RunLog]:
    """The runs of a chain from its last retry, or return by a schedule, on: what was before counts there no more."""
    first = max((index for index, run in enumerate(chain) if _started(run).initiator in (RETRY, CRON)), default=0)
    return chain[first:]


def _seam(run: RunLog) -> e.WorkflowTaskFailed | None:
    """The event by which a reset made this very run; None when it was not made so."""
    for event in run.events:
        if isinstance(event, e.WorkflowTaskFailed) and event.new_run_id == run.run_id:
            return event
    return None


def _has_resets(world: World) -> bool:
    return any(call.action.kind == "reset" for call in _calls(world))


def _is_disturbed(world: World) -> bool:
    kinds = {call.action.kind for call in _calls(world)}
    policies = {call.action.values.get("policy") for call in _calls(world)}
    if kinds & DISTURBING_CALLS or "replace" in policies:
        return True
    if any(DISTURBING_VALUES & call.action.values.keys() for call in _calls(world)):
        return True
    steps = DISTURBING_STEPS | {"leave"} | (OUTLIVING_STEPS if "reset" in kinds else frozenset())
    return any(_has_step(call.action.values.get("program"), steps) for call in _calls(world))


def _has_step(program: dict[str, Any] | None, kinds: frozenset[str] | set[str]) -> bool:
    if program is None:
        return False
    return any(
        step["do"] in kinds
        or _has_step(step.get("program"), kinds)
        or _has_step({"steps": step.get("steps", ())}, kinds)
        for step in program["steps"]
    )


APART = frozenset(
    {"check_all", "check_bank", "check_lags", "check_listing", "check_refusals", "check_starts_again", "check_deploys"}
)
CHECKS: tuple[Callable[[World], None], ...] = (
    *(value for name, value in sorted(globals().items()) if name.startswith("check_") and name not in APART),
    *LIFE_CHECKS,
    *CHAIN_CHECKS,
    check_bank,
    check_lags,
    check_listing,
    check_refusals,
    check_starts_again,
    check_deploys,
)
