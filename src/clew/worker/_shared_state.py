"""A name of the published SDK for activities in processes; accepted, and without effect.

Owns: `SharedStateManager`. Never: shares anything: heartbeats and cancellation of activities in processes go through
pipes of the worker's own (``_processes``).
"""

from __future__ import annotations

import concurrent.futures
from multiprocessing.managers import SyncManager
from typing import final


@final
class SharedStateManager:
    """Accepted by a worker as ``shared_state_manager``, so that programs run as they are."""

    @staticmethod
    def create_from_multiprocessing(
        manager: SyncManager, queue_poller_executor: concurrent.futures.Executor | None = None
    ) -> SharedStateManager:
        """Accept a manager of multiprocessing; it is not used."""
        return SharedStateManager()
