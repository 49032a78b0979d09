"""Chaos: a workflow test run again and again, each time with one fault at one exact place.

Owns: which faults there are, where they strike, and what counts as harm. Never: an engine of its own making.

How it works: a first, undisturbed go of the test is put on tape: each commit with its events, each report of a worker.
From the tape follow the faults: the worker gone after this commit, the engine gone after that one, the worker gone with
the outcome of an activity in hand, everything delivered twice, every task on a cold cache. Then the test is run once
for each (`pytest_runner`). Faults enter between the ports: around the store (`_tape`) and around the service
(`_service`). What the test itself asserts must hold each time; beyond that the tapes are compared (`_verdict`): no
mismatch of code and history, no step lost, no activity that answers differently to the same idempotency key.
"""

from __future__ import annotations

from clew.testing.chaos._environment import ChaosRun, start_chaos_environment
from clew.testing.chaos._faults import NO_FAULT, Fault, FaultKind, faults_for
from clew.testing.chaos._verdict import harm_of, hints_for

__all__ = [
    "NO_FAULT",
    "ChaosRun",
    "Fault",
    "FaultKind",
    "faults_for",
    "harm_of",
    "hints_for",
    "start_chaos_environment",
]
