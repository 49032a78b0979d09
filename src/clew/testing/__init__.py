"""What tests of workflows and activities import: ``from clew.testing import WorkflowEnvironment``.

Owns: the environments, the clocks and the faults below. Never: an engine, store or worker of its own.
"""

from __future__ import annotations

from clew.testing._activity import ActivityEnvironment
from clew.testing._clocks import ManualClock, SkippingClock
from clew.testing._environment import WorkflowEnvironment
from clew.testing.faults import Faults, Hold

__all__ = ["ActivityEnvironment", "Faults", "Hold", "ManualClock", "SkippingClock", "WorkflowEnvironment"]
