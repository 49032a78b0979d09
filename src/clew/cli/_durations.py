"""Durations on the command line: ``90d``, ``24h``, ``30m``, ``15s``, or together as ``1d12h``.

Owns: reading one. Never: what it is for.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any, Final

import click

_UNITS: Final = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
_SHAPE: Final = re.compile(r"(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s)?", re.ASCII)


class Duration(click.ParamType[timedelta]):
    """A duration; gives a `timedelta`."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        """Read it."""
        if isinstance(value, timedelta):
            return value
        found = _SHAPE.fullmatch(str(value).strip())
        if not found or not any(found.groups()):
            self.fail(f"{str(value)[:40]!r} is no duration; write it like 90d, 24h, 30m, 15s or 1d12h.", param, ctx)
        numbers = {unit: int(number) for unit, number in zip(_UNITS.values(), found.groups(), strict=True) if number}
        try:
            return timedelta(**numbers)
        except OverflowError:
            self.fail(f"{str(value)[:40]!r} is too long.", param, ctx)
