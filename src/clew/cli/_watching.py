"""Doing the same again and again: ``--watch``.

Owns: the option and the repetition. Never: what is repeated.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import click

WATCH_SECONDS: Final = 2.0

F = TypeVar("F", bound=Callable[..., Any])


def watch_option(function: F) -> F:
    """Add ``--watch``."""
    return click.option(
        "--watch",
        "-w",
        type=click.FloatRange(min=0.1),
        is_flag=False,
        flag_value=WATCH_SECONDS,
        metavar="[SECONDS]",
        help=f"Print it again and again, so many seconds apart, until Ctrl-C; {WATCH_SECONDS:g} when not given.",
    )(function)


async def repeat(seconds: float | None, act: Callable[[], Awaitable[None]]) -> None:
    """Do `act`, and again every so many seconds; once, if there are none. A terminal is cleared before each time."""
    while True:
        if seconds is not None and sys.stdout.isatty():
            click.clear()
        await act()
        if seconds is None:
            return
        sys.stdout.flush()
        await asyncio.sleep(seconds)
