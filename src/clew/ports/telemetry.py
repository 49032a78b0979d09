"""What the engine tells of itself as it goes, for whoever measures.

Owns: the Protocol, and the one that listens to nothing. Never: names or formats of metrics (the server has them).

How it works: only what no wrapper around the service or the store can see is told here. The calls are made on the hot
path: an implementation counts, and does nothing that could wait or fail.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final, Protocol, final


class Telemetry(Protocol):
    """Told on the engine's loop."""

    def run_was_at_hand(self) -> None:
        """A call found its run in memory."""
        ...

    def deadline_was_due(self, lag: timedelta) -> None:
        """A deadline of a run was looked at, so long after it was due."""
        ...


@final
class Silence:
    """Listens to nothing."""

    def run_was_at_hand(self) -> None:
        """Nothing."""

    def deadline_was_due(self, lag: timedelta) -> None:
        """Nothing."""


SILENCE: Final = Silence()
