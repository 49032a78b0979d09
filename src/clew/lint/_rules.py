"""The table of what `clew lint` finds.

Owns: codes, names and texts. Never: how a finding is made.

How it works: a code is for ever; a rule that goes leaves its code unused. The hundreds say what kind it is: 0 the file
itself, 1 calls that no replay can repeat (texts shared with the guard, which refuses the same calls at run time), 2
code whose outcome depends on more than history, 3 definitions and uses of the API that cannot work as meant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final

from clew.replay import _guard_rules as guard


@final
@dataclass(frozen=True, slots=True)
class LintRule:
    """One kind of finding.

    Args:
        code: Stable, as ``CLW101``.
        name: For people, in words with hyphens.
        finds: What is reported, a noun phrase.
        reason: Why that is wrong, a clause.
        remedy: What to do, a sentence.
        example: A line that is reported.
        guard_rule: The rule of the determinism guard that refuses the same at run time.
    """

    code: str
    name: str
    finds: str
    reason: str
    remedy: str
    example: str = ""
    guard_rule: guard.Rule | None = None


def _of_guard(code: str, name: str, finds: str, example: str, rule: guard.Rule) -> LintRule:
    return LintRule(code, name, finds, rule.reason, rule.remedy, example, rule)


UNREADABLE: Final = LintRule(
    "CLW001",
    "unreadable-file",
    "a file that is no Python of this version",
    "nothing in it can be checked",
    "Correct the syntax, or leave the file out.",
    "def run(self:",
)
CLOCK: Final = _of_guard("CLW101", "clock", "reading the clock", "datetime.now()", guard.CLOCK)
SLEEP: Final = _of_guard("CLW102", "blocking-sleep", "putting the thread to sleep", "time.sleep(5)", guard.SLEEP)
CHANCE: Final = _of_guard("CLW103", "chance", "random numbers and random ids", "uuid.uuid4()", guard.CHANCE)
ENVIRONMENT: Final = _of_guard(
    "CLW104", "environment", "reading or changing the environment", 'os.environ["REGION"]', guard.ENVIRONMENT
)
OUTSIDE: Final = _of_guard(
    "CLW105",
    "outside-world",
    "files, network, subprocesses, databases",
    'requests.get("https://example.org")',
    guard.OUTSIDE,
)
THREADS: Final = _of_guard(
    "CLW106", "threads", "threads, processes and executors", "asyncio.to_thread(work)", guard.THREADS
)
WAITS: Final = _of_guard("CLW107", "blocking-wait", "waits that block the thread", "future.result()", guard.WAITS)
LOCKS: Final = _of_guard("CLW108", "thread-lock", "locks of threads", "threading.Lock()", guard.LOCKS)
SET_ORDER: Final = LintRule(
    "CLW201",
    "set-order",
    "going through a set",
    "the order of a set differs from one process to the next",
    "Use a list or a dict, which keep their order, or go through sorted(…).",
    "for task in {a, b}: await task",
)
SHARED_STATE: Final = LintRule(
    "CLW202",
    "shared-state",
    "changing what runs share: a variable of the module or an attribute of a class",
    "it is no part of any history: a replay, and every other run in the process, sees another value",
    "Keep it in an attribute that __init__ sets, or pass it as an argument.",
    "SEEN.append(claim_id)",
)
IDENTITY: Final = LintRule(
    "CLW203",
    "address",
    "id(…), and hash(…) of anything",
    "addresses and hashes differ from one process to the next",
    "Number things yourself, or use workflow.uuid4(); for a stable hash use hashlib.",
    "names[id(claim)] = claim",
)
ASYNC_QUERY: Final = LintRule(
    "CLW301",
    "async-handler",
    "a query handler or update validator that is async",
    "it answers at once and can not wait for anything",
    "Write `def`; what has to wait belongs into an update.",
    "@workflow.query\nasync def status(self) -> str: ...",
)
READ_ONLY: Final = LintRule(
    "CLW302",
    "changing-query",
    "a query handler or update validator that changes the workflow or asks for something",
    "it runs apart from history, so a replay would not know of the change",
    "Only read in it; make the change in a signal or update handler.",
    "self.count += 1  # in a query",
)
NO_TIMEOUT: Final = LintRule(
    "CLW303",
    "no-activity-timeout",
    "an activity without a timeout",
    "an attempt whose worker died would never be known to be lost, so the call is refused",
    "Pass start_to_close_timeout=… (for each attempt) or schedule_to_close_timeout=… (for all of them).",
    "await workflow.execute_activity(pay, claim)",
)
NOT_DATA: Final = LintRule(
    "CLW304",
    "no-data",
    "a parameter of a workflow, handler or activity that cannot be stored: its type or its default",
    "arguments are kept in history as data",
    "Use plain values, dataclasses, pydantic models, enums or datetimes; make the rest where it is used.",
    "async def run(self, notify: Callable[[], None]) -> None: ...",
)
DIRECT_ACTIVITY: Final = LintRule(
    "CLW305",
    "direct-activity",
    "an activity that is called as a function",
    "it would run inside the workflow, at every replay again, without timeout, retry or record",
    "Call it by `await workflow.execute_activity(…)`.",
    "await pay(claim)",
)
NOT_AWAITED: Final = LintRule(
    "CLW306",
    "not-awaited",
    "a call whose result has to be awaited, and is not",
    "without `await` nothing happens at all",
    "Write `await` before it, or hand it to asyncio.create_task(…).",
    "workflow.sleep(60)",
)
PRINTS: Final = LintRule(
    "CLW307",
    "unreplayed-output",
    "print and loggers of your own",
    "every replay prints and logs again",
    "Use workflow.logger, which is silent while replaying.",
    'print("paid")',
)
SWALLOWS: Final = LintRule(
    "CLW308",
    "swallowed-cancellation",
    "an `except` that catches cancellation and does not raise",
    "the run can no longer be cancelled there",
    "Catch Exception, or end the block with `raise`.",
    "except BaseException: pass",
)

RULES: Final[Mapping[str, LintRule]] = {
    rule.code: rule
    for rule in (
        UNREADABLE, CLOCK, SLEEP, CHANCE, ENVIRONMENT, OUTSIDE, THREADS, WAITS, LOCKS, SET_ORDER, SHARED_STATE,
        IDENTITY, ASYNC_QUERY, READ_ONLY, NO_TIMEOUT, NOT_DATA, DIRECT_ACTIVITY, NOT_AWAITED, PRINTS, SWALLOWS,
    )
}  # fmt: skip
"""Every rule, by its code."""

BY_GUARD_RULE: Final[Mapping[int, LintRule]] = {
    id(rule.guard_rule): rule for rule in RULES.values() if rule.guard_rule is not None
}
"""By identity of the guard's rule."""
