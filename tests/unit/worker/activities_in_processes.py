"""Activities that run in children; they must be importable there."""

from __future__ import annotations

import os
import time
from pathlib import Path

from clew import activity
from clew.exceptions import CancelledError


@activity.defn
def double(value: int) -> int:
    return value * 2


@activity.defn
def who_am_i(text: str) -> str:
    info = activity.info()
    return f"{text} {info.activity_type} {info.attempt} {info.idempotency_key} {os.getpid()}"


@activity.defn
def die(marker: str) -> str:
    path = Path(marker)
    if not path.exists():
        path.write_text("died")
        os._exit(9)
    return "survived"


@activity.defn
def note_and_double(value: int, directory: str) -> int:
    Path(directory, f"{value}-{os.getpid()}-{time.monotonic_ns()}").touch()
    return value * 2


@activity.defn
def beat_until_cancelled(text: str) -> str:
    try:
        for n in range(10_000):
            activity.heartbeat(text, n)
            time.sleep(0.01)
    except CancelledError:
        details = activity.cancellation_details()
        assert details is not None
        assert activity.is_cancelled()
        raise
    return "never"


@activity.defn(no_thread_cancel_exception=True)
def stubborn(seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(0.05)


class Unpicklable(Exception):
    def __init__(self, one: str, two: str) -> None:
        super().__init__(one)
        self.two = two


@activity.defn
def raise_unpicklable() -> None:
    raise Unpicklable("one", "two")


@activity.defn
def return_unpicklable() -> object:
    return lambda: None
