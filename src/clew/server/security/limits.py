"""How many calls a second each caller may make.

Owns: token buckets, one a caller, and the refusal. Never: who calls, or which calls count (``calls``).

How it works: a bucket holds up to `burst` calls and fills at `rate` a second; a call takes one out, and finds the
bucket empty when the caller goes on for too long too fast. There are at most `CALLERS_MAX` buckets; the one that was
used least lately makes room, and whoever comes back gets a full one.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from datetime import datetime
from typing import Final

from clew.model.rejection import Rejection, RejectionCode
from clew.service.errors import RPCError

CALLERS_MAX: Final = 10_000

BURST_SECONDS: Final = 2.0
"""A bucket holds what this much time fills, when no burst is given."""


class _Bucket:
    __slots__ = ("at", "left", "rate")

    def __init__(self, rate: float, left: float, at: datetime) -> None:
        self.rate = rate
        self.left = left
        self.at = at


class RateLimiter:
    """See the module docstring. Belongs to the service loop.

    Args:
        rate: Calls a second of a caller that has no limit of its own; None for no limit.
        burst: Calls at once; `BURST_SECONDS` of the rate when not given.
    """

    def __init__(self, rate: float | None = None, burst: float | None = None) -> None:
        if rate is not None and not rate > 0:
            raise ValueError(f"the rate limit is {rate} calls a second; it must be above 0, or left out")
        if burst is not None and not burst >= 1:
            raise ValueError(f"the burst of the rate limit is {burst} calls; it must be at least 1, or left out")
        self._rate = rate
        self._burst = burst
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def take(self, caller: str, now: datetime, rate: float | None = None) -> RPCError | None:
        """Count one call; the refusal when there have been too many.

        Args:
            caller: Who calls.
            now: The present instant.
            rate: The caller's own limit.
        """
        rate = rate if rate is not None else self._rate
        if rate is None:
            return None
        capacity = max(1.0, self._burst if self._burst is not None else rate * BURST_SECONDS)
        bucket = self._buckets.get(caller)
        if bucket is None or bucket.rate != rate:
            bucket = self._buckets[caller] = _Bucket(rate, capacity, now)
            if len(self._buckets) > CALLERS_MAX:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(caller)
        bucket.left = min(capacity, bucket.left + max(0.0, (now - bucket.at).total_seconds()) * rate)
        bucket.at = now
        if bucket.left >= 1:
            bucket.left -= 1
            return None
        return rate_limited(rate, (1 - bucket.left) / rate)


def rate_limited(rate: float, wait_seconds: float) -> RPCError:
    """The refusal of one call too many."""
    shown = f"{math.ceil(wait_seconds * 1000) / 1000:g}"
    return RPCError(
        Rejection(
            code=RejectionCode.RATE_LIMITED,
            message=f"this caller may make {rate:g} calls a second and makes more; the call was not done; "
            f"wait {shown} s, then try again",
            details={"retry_after_seconds": shown},
        )
    )
