"""Histories of one shape, and the machine that replays them: what a resumed run costs before it goes on.

Owns: how such a history looks and how it is replayed. Never: measures (``opcodes`` and ``growth`` do), or has a store.

``--guard`` compares whole processes, turn by turn: one whose machine is guarded, and one in which the guard was never
set up. Within one process it cannot be taken back, since an audit hook stays.

How it works: the events are what the engine records for a run of `benchmarks.workflows`, in their stored form; decoded
from it once, as a worker gets them. They end where the run waits, with a workflow task under way.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from benchmarks import workflows
from clew.converter import DataConverter
from clew.model import events as e
from clew.replay import MachineOptions, WorkflowMachine
from clew.replay.commands import LOCAL_ACTIVITY_MARKER
from clew.replay.local_activities import MarkerData
from clew.workflow._definition import Definition

TIME: Final = datetime(2030, 1, 1, tzinfo=UTC)
_STEP: Final = timedelta(milliseconds=1)
_TIMEOUT: Final = timedelta(seconds=10)

History = list[e.Event]


def _begin(workflow_type: str, count: int) -> History:
    return [
        e.WorkflowExecutionStarted(
            event_id=1,
            event_time=TIME,
            workflow_id="w",
            workflow_type=workflow_type,
            task_queue="bench",
            input=(_json(count),),
            original_execution_run_id="run",
            first_execution_run_id="run",
            workflow_task_timeout=timedelta(seconds=10),
        ),
        e.WorkflowTaskScheduled(event_id=2, event_time=TIME, task_queue="bench", start_to_close_timeout=_TIMEOUT),
        e.WorkflowTaskStarted(event_id=3, event_time=TIME, scheduled_event_id=2),
    ]


def local_steps(count: int) -> History:
    """So many finished local steps, in one workflow task that goes on."""
    events = _begin("LocalSequence", count + 1)
    for number in range(count):
        data = MarkerData(activity_id=f"no_op-local-{number + 1}", activity_type="no_op")
        events.append(
            e.MarkerRecorded(
                event_id=len(events) + 1,
                event_time=TIME + number * _STEP,
                marker_name=LOCAL_ACTIVITY_MARKER,
                details={"data": (msgspec.Raw(msgspec.json.encode(data)),), "result": (_json(number),)},
            )
        )
    return _stored(events)


def activities(count: int) -> History:
    """So many finished activities, one after the other: six events each."""
    events = _begin("Sequence", count + 1)
    for number in range(count):
        at, time_then = len(events), TIME + number * _STEP
        events += [
            e.WorkflowTaskCompleted(
                event_id=at + 1, event_time=time_then, scheduled_event_id=at - 1, started_event_id=at
            ),
            e.ActivityTaskScheduled(
                event_id=at + 2,
                event_time=time_then,
                activity_id=f"no_op-{number + 1}",
                activity_type="no_op",
                task_queue="bench",
                input=(_json(number),),
                start_to_close_timeout=timedelta(minutes=5),
                workflow_task_completed_event_id=at + 1,
            ),
            e.ActivityTaskStarted(event_id=at + 3, event_time=time_then, scheduled_event_id=at + 2),
            e.ActivityTaskCompleted(
                event_id=at + 4,
                event_time=time_then,
                scheduled_event_id=at + 2,
                started_event_id=at + 3,
                result=(_json(number),),
            ),
            e.WorkflowTaskScheduled(
                event_id=at + 5, event_time=time_then, task_queue="bench", start_to_close_timeout=_TIMEOUT
            ),
            e.WorkflowTaskStarted(event_id=at + 6, event_time=time_then, scheduled_event_id=at + 5),
        ]
    return _stored(events)


def replay(
    history: Sequence[e.Event], workflow_class: type = workflows.LocalSequence, *, is_guarded: bool = True
) -> WorkflowMachine:
    """Replay a history on a new machine."""
    definition = Definition.must_from_class(workflow_class)
    converter = DataConverter.default
    machine = WorkflowMachine(
        definition=definition,
        namespace="default",
        task_queue="bench",
        workflow_id="w",
        run_id="run",
        workflow_type=definition.name or "",
        payload_converter=converter.payload_converter,
        failure_converter=converter.failure_converter,
        options=MachineOptions(runs_local_activities=True, is_guarded=is_guarded),
    )
    machine.replay(history)
    return machine


def _json(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(list[e.Event]).decode


def _stored(events: History) -> History:
    return _decode(_encode(events))


SHAPES: Final[dict[str, tuple[Callable[[int], History], type, int]]] = {
    "local steps": (local_steps, workflows.LocalSequence, 1),
    "activities": (activities, workflows.Sequence, 6),
}
"""How the history is made, what replays it, and the events of one step."""


def _measure(shape: str, size: int, runs: int, *, is_guarded: bool) -> tuple[list[float], list[float]]:
    """The milliseconds of processor time of replays and of decodings."""
    make, workflow_class, events_a_step = SHAPES[shape]
    history = make(size // events_a_step)
    data = _encode(history)
    replayed, decoded = list[float](), list[float]()
    for _ in range(runs):
        clock = time.process_time()
        _decode(data)
        decoded.append(1e3 * (time.process_time() - clock))
        clock = time.process_time()
        machine = replay(history, workflow_class, is_guarded=is_guarded)
        replayed.append(1e3 * (time.process_time() - clock))
        machine.evict()
    return replayed, decoded


def _compare_guard(size: int, rounds: int) -> None:
    for shape in SHAPES:
        found: dict[str, list[float]] = {"--guarded": [], "--bare": []}
        for _ in range(rounds):
            for kind, figures in found.items():
                command = [sys.executable, "-m", "benchmarks.replaying", kind, shape, "--events", str(size)]
                figures.append(float(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        guarded, bare = (statistics.median(figures) for figures in found.values())
        print(
            f"{shape}, {size} events, medians of {rounds} processes each: guarded {guarded:.2f} ms, without the guard "
            f"{bare:.2f} ms, share {100 * (guarded - bare) / bare:+.1f} %"
        )


def main() -> None:
    """Print the processor time of a replay of 5,000 and of 50,000 events."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replaying", description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--events", type=int, nargs="*", default=[5_000, 50_000])
    parser.add_argument("--guard", type=int, metavar="ROUNDS", help="compare with processes that have no guard")
    parser.add_argument("--guarded", choices=SHAPES, help="print the least time alone, of one shape")
    parser.add_argument("--bare", choices=SHAPES, help="the same in a process without the guard")
    options = parser.parse_args()
    if shape := options.guarded or options.bare:
        print(min(_measure(shape, options.events[0], options.runs, is_guarded=options.bare is None)[0]))
        return
    for size in options.events:
        if options.guard:
            _compare_guard(size, options.guard)
            continue
        for shape in SHAPES:
            replayed, decoded = _measure(shape, size, options.runs, is_guarded=True)
            print(
                f"{shape}, {size} events: replay {statistics.median(replayed):.1f} ms "
                f"(least {min(replayed):.1f}), decoding {statistics.median(decoded):.1f} ms"
            )


if __name__ == "__main__":
    main()
