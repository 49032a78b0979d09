"""Limits: each number is the published default of the model we follow (semantics 1.1, 1.2) or our own (semantics 0.3).

Owns: the numbers and their meaning. Never: enforces them (``core`` and ``converter`` do).
Every one is a setting of the namespace: pass another `Limits` to change it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import msgspec

KIB: Final = 1024
MIB: Final = 1024 * KIB

DURATION_MAX: Final = timedelta(days=36_525)
"""Every duration is capped at 100 years (semantics 1.1)."""

WORKFLOW_TASK_TIMEOUT_DEFAULT: Final = timedelta(seconds=10)
WORKFLOW_TASK_TIMEOUT_MAX: Final = timedelta(seconds=120)
STICKY_SCHEDULE_TO_START_TIMEOUT_DEFAULT: Final = timedelta(seconds=10)
RETENTION_DEFAULT: Final = timedelta(days=7)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What one run may take before it is warned, refused or closed.

    Sizes are bytes in storage; ``_max`` is refused, ``_warning`` is only reported.
    """

    id_bytes_max: int = 1_000
    build_id_bytes_max: int = 255
    payload_bytes_warning: int = 512 * KIB
    payload_bytes_max: int = 2 * MIB
    memo_bytes_max: int = 2 * MIB
    summary_bytes_max: int = 400
    details_bytes_max: int = 20_000
    history_events_suggest: int = 4_096
    history_bytes_suggest: int = 4 * MIB
    history_events_warning: int = 10_240
    history_bytes_warning: int = 10 * MIB
    history_events_max: int = 51_200
    history_bytes_max: int = 50 * MIB
    state_bytes_max: int = 8 * MIB
    transition_bytes_max: int = 4 * MIB
    retry_failure_bytes_max: int = 4 * KIB
    pending_activities_max: int = 2_000
    pending_children_max: int = 2_000
    pending_signals_max: int = 2_000
    pending_cancels_max: int = 2_000
    signals_per_run_max: int = 10_000
    updates_in_flight_max: int = 10
    updates_per_run_max: int = 2_000
    updates_bytes_max: int = 20 * MIB
    buffered_events_max: int = 100
    buffered_bytes_max: int = 2 * MIB
    buffered_queries_max: int = 1
    request_ids_kept: int = 25
    attempts_kept: int = 10
    """Failed attempts of an activity that stay visible (semantics 0.4)."""
    task_attempts_not_ready: int = 3
    """From this workflow-task attempt on, queries and updates are refused as not ready (semantics 1.5)."""


LIMITS_DEFAULT: Final = Limits()
