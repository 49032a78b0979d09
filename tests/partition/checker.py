"""The recorded calls of all clients against the histories, the order of calls, and the ledger of effects.

Owns: `check`, and `Outcome`, its figures. Never: makes calls itself, but for reading the store.

How it works: what a client was told ``ok`` must be there once; what it was told ``fail`` must not be there; the rest
may be there, once at most. For each register some order of the calls within their bounds must explain every answer
(``tests.simulation.linearize``); a call without an answer may have happened at any time after it began, or never.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from clew.model import events as e
from clew.ports.store import RunRow
from clew.stores import open_reader_by_address
from tests.crash.rounds import check_run
from tests.partition.programs import STEPS
from tests.simulation.clients import value_of
from tests.simulation.linearize import NEVER, Operation, is_linearizable

_PAGE = 100_000

Chain = list[tuple[RunRow, list[e.BaseEvent]]]


class Outcome(NamedTuple):
    """What there was to check.

    Args:
        calls: By what they did and what was told.
        registers: Whose calls were put in order.
        runs: In the store.
        events: In their histories.
        effects: Lines of the ledger; those beyond one a step are repeats under the same key.
    """

    calls: dict[str, int]
    registers: int
    runs: int
    events: int
    effects: int


def read_calls(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """All that the clients wrote down."""
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


async def check(address: str, calls: list[dict[str, Any]], ledger: Path) -> Outcome:
    """Check everything; all runs must have closed.

    Raises:
        AssertionError: Something is lost, done twice, or out of order.
    """
    chains = await read_chains(address)
    for call in calls:
        if call["do"] == "start":
            _check_start(call, chains)
        elif call["do"] == "cancel":
            _check_cancel(call, chains)
        elif call["do"] == "signal":
            count = _count_signals(chains[call["id"]], call["call"])
            _require_times(call, count)
        elif call["do"] != "read":
            _require_times(call, _count_updates(chains[call["id"]], call["call"]))
    registers = check_orders(calls)
    effects = _check_effects(chains, ledger)
    return Outcome(
        calls=dict(sorted(Counter(f"{call['do']} {call['told']}" for call in calls).items())),
        registers=registers,
        runs=sum(map(len, chains.values())),
        events=sum(len(events) for chain in chains.values() for _, events in chain),
        effects=effects,
    )


async def read_chains(address: str) -> dict[str, Chain]:
    """Every run with its history, which is whole and folds to its state."""
    store = await open_reader_by_address(address)
    try:
        chains: defaultdict[str, Chain] = defaultdict(list)
        for listed in reversed(await store.list_runs("default", None, _PAGE, None)):
            row = await store.load_run(listed.shard, listed.run_key)
            assert row is not None, f"run {listed.run_id} is listed and not there"
            chains[row.workflow_id].append((row, await check_run(store, row)))
        return chains
    finally:
        await store.close()


# --- order ------------------------------------------------------------------------------------------------------------


def check_orders(calls: list[dict[str, Any]]) -> int:
    """Some order explains the answers of each register; answers how many registers there were.

    Raises:
        AssertionError: None does, for the register that is named.
    """
    of_register: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for call in calls:
        if call["do"] in _APPLIED and not (call["told"] == "fail" or (call["do"] == "read" and call["told"] != "ok")):
            of_register[call["id"]].append(call)
    for register, some in sorted(of_register.items()):
        operations = [_operation(number, call) for number, call in enumerate(sorted(some, key=lambda c: c["from"]))]
        told = "\n".join(f"{op.began_at[0]:.3f} - {op.ended_at[0]:.3f} {op.name}" for op in operations)
        assert is_linearizable(operations, 0), f"no order explains the answers of {register}:\n{told}"
    return len(of_register)


def _operation(number: int, call: dict[str, Any]) -> Operation:
    is_known = call["told"] == "ok"
    ended_at = (call["to"], number) if is_known else NEVER
    apply = _APPLIED[call["do"]](call.get("arguments", []), call["value"], is_known)
    name = f"{call.get('call')} {call['do']} {call.get('arguments', '')}: {call['value'] if is_known else '?'}"
    return Operation(name, (call["from"], number), ended_at, apply)


def _read(_: list[int], told: int, is_known: bool) -> Callable[[int], int | None]:
    return lambda now: now if now == told or not is_known else None


def _write(arguments: list[int], told: int, is_known: bool) -> Callable[[int], int | None]:
    return lambda now: arguments[0] if now == told or not is_known else None


def _add(arguments: list[int], told: int, is_known: bool) -> Callable[[int], int | None]:
    return lambda now: now + arguments[0] if now + arguments[0] == told or not is_known else None


def _swap(arguments: list[int], told: bool, is_known: bool) -> Callable[[int], int | None]:
    def apply(now: int) -> int | None:
        is_done = now == arguments[0]
        if is_known and is_done is not told:
            return None
        return arguments[1] if is_done else now

    return apply


_APPLIED: dict[str, Callable[[list[int], Any, bool], Callable[[int], int | None]]] = {
    "read": _read,
    "write": _write,
    "add": _add,
    "swap": _swap,
}


# --- there, once ------------------------------------------------------------------------------------------------------


def _require_times(call: dict[str, Any], times: int) -> None:
    low, high = {"ok": (1, 1), "fail": (0, 0), "info": (0, 1)}[call["told"]]
    assert low <= times <= high, f"{call} is recorded {times} times"


def _check_start(call: dict[str, Any], chains: dict[str, Chain]) -> None:
    chain = chains.get(call["id"], [])
    assert len(chain) <= 1, f"{call}: {len(chain)} runs"
    assert chain or call["told"] != "ok", f"{call} was answered, and there is no run"


def _check_cancel(call: dict[str, Any], chains: dict[str, Chain]) -> None:
    requested = sum(
        isinstance(event, e.WorkflowExecutionCancelRequested) for _, events in chains[call["id"]] for event in events
    )
    assert requested >= (call["told"] == "ok"), f"{call} was answered, and is not recorded"


def _count_signals(chain: Chain, name: str) -> int:
    return sum(
        isinstance(event, e.WorkflowExecutionSignaled) and bool(event.input) and value_of(event.input) == name
        for _, events in chain
        for event in events
    )


def _count_updates(chain: Chain, update_id: str) -> int:
    accepted = [
        event.protocol_instance_id
        for _, events in chain
        for event in events
        if isinstance(event, e.WorkflowExecutionUpdateAccepted)
    ]
    completed = [
        event.update_id
        for _, events in chain
        for event in events
        if isinstance(event, e.WorkflowExecutionUpdateCompleted)
    ]
    assert accepted.count(update_id) == completed.count(update_id), f"update {update_id} was accepted, and has no end"
    return completed.count(update_id)


def _check_effects(chains: dict[str, Chain], ledger: Path) -> int:
    """Each step acted, under one key that no other step has; its outcome is recorded once."""
    keys: defaultdict[tuple[str, int], set[str]] = defaultdict(set)
    lines = ledger.read_text().splitlines() if ledger.exists() else []
    for line in lines:
        workflow_id, step, key = line.split()
        keys[workflow_id, int(step)].add(key)
    several = {step: found for step, found in keys.items() if len(found) > 1}
    assert not several, f"steps that acted under more than one key: {several}"
    shared = [key for key, count in Counter(key for found in keys.values() for key in found).items() if count > 1]
    assert not shared, f"keys of more than one step: {shared}"
    for workflow_id, chain in chains.items():
        kind = workflow_id.partition("-")[0]
        events = [event for _, of_run in chain for event in of_run]
        count = Counter(type(event).__name__ for event in events)
        assert count["ActivityTaskCompleted"] <= count["ActivityTaskScheduled"], f"{workflow_id}: an outcome twice"
        if kind == "job":
            wanted = [STEPS] if workflow_id.endswith("-part") else list(range(STEPS))
            assert count["WorkflowExecutionCompleted"] == 1, f"{workflow_id} did not complete: {events[-1]}"
            assert count["ActivityTaskCompleted"] == len(wanted), f"{workflow_id}: {count}"
            missing = [step for step in wanted if (workflow_id, step) not in keys]
            assert not missing, f"{workflow_id} completed, and steps {missing} had no effect"
    return len(lines)
