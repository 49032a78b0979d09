"""Names for the identifiers that travel through Clew.

Owns: the NewTypes below. Never: validation (``model.limits`` has the bounds, ``core`` the checks).

A user sees ``(namespace, workflow_id, run_id)``. Storage keys everything by ``(shard, run_key)``, where the run key is
a number that only grows, because random keys cost a B-tree most of its speed.
"""

from __future__ import annotations

from typing import NewType

Namespace = NewType("Namespace", str)
WorkflowId = NewType("WorkflowId", str)
RunId = NewType("RunId", str)
"""A UUIDv7 in text form: grows with time, so that its index grows at one end."""

RunKey = NewType("RunKey", int)
"""The store's own number for a run, allocated in ascending order."""

Shard = NewType("Shard", int)
EventId = NewType("EventId", int)
ActivityId = NewType("ActivityId", str)
TimerId = NewType("TimerId", str)
UpdateId = NewType("UpdateId", str)
RequestId = NewType("RequestId", str)
TaskQueue = NewType("TaskQueue", str)
