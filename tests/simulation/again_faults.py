"""Faults in what a start does when its workflow id has a run already, planted like those of ``planted``.

Owns: `AGAIN_FAULTS`. Never: plants them.
"""

from __future__ import annotations

from typing import Final

from tests.simulation.fault import Fault

AGAIN_FAULTS: Final = (
    Fault(
        "fail-policy-uses-existing",
        "a start that is to fail beside an open run is answered with that run",
        "clew.core.start:_open_verdict",
        'return _already_started(request, existing, "is running; wait for it, use its handle, or choose another id")',
        "return UseExisting(run_id=existing.run_id, first_execution_run_id=existing.first_execution_run_id)",
    ),
    Fault(
        "replace-policy-uses-existing",
        "a start that is to replace the open run is answered with that run",
        "clew.core.start:_open_verdict",
        "return TerminateThenStart(run_id=existing.run_id, reason=TERMINATED_BY_START)",
        "return UseExisting(run_id=existing.run_id, first_execution_run_id=existing.first_execution_run_id)",
    ),
    Fault(
        "use-policy-replaces",
        "a start that is to use the open run replaces it",
        "clew.core.start:_open_verdict",
        "return UseExisting(run_id=existing.run_id, first_execution_run_id=existing.first_execution_run_id)",
        "return TerminateThenStart(run_id=existing.run_id, reason=TERMINATED_BY_START)",
    ),
    Fault(
        "reuse-policy-ignored",
        "a start follows a run of its id that has completed, though it may follow failed ones only",
        "clew.core.start:_closed_verdict",
        "if existing.status in _FAILED_STATUSES:",
        "if True:",
    ),
)
