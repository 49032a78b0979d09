"""Names bound before the guard is installed, in the ways user modules bind them."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from datetime import datetime
from random import choice, random
from time import sleep
from time import time as now_seconds


@dataclass
class Note:
    made_at: float = field(default_factory=time.time)
    id: uuid.UUID = field(default_factory=uuid.uuid4)
    when: datetime = field(default_factory=datetime.now)


class Tool:
    clock = staticmethod(time.monotonic)

    def read(self, clock=time.perf_counter):  # type: ignore[no-untyped-def]
        return clock()

    def read_keyword(self, *, clock=time.time_ns):  # type: ignore[no-untyped-def]
        return clock()


__all__ = ["Note", "Tool", "choice", "now_seconds", "random", "sleep"]
