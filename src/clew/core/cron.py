"""Cron schedules: when the next run is due (semantics 1.1)."""

from __future__ import annotations

from datetime import datetime


def next_cron_time(schedule: str, after: datetime, anchor: datetime) -> datetime:
    raise NotImplementedError


def check_cron(schedule: str) -> str:
    raise NotImplementedError
