"""The workflow machine: runs workflow code against its history, without I/O.

`WorkflowMachine` takes workflow tasks and gives their answers; the worker lends it a thread.
"""

from __future__ import annotations

from clew.replay.local_activities import step_marker
from clew.replay.machine import WorkflowMachine
from clew.replay.options import (
    ActivationResult,
    LocalActivityOutcome,
    LocalActivityRequest,
    MachineOptions,
    NondeterminismPolicy,
)

__all__ = [
    "ActivationResult",
    "LocalActivityOutcome",
    "LocalActivityRequest",
    "MachineOptions",
    "NondeterminismPolicy",
    "WorkflowMachine",
    "step_marker",
]
