"""Cron schedules: when the next run is due (semantics 1.1).

Owns: the reading of a schedule text, and the next instant after a given one. Never: a clock; nothing here asks what
time it is. (Time zone rules come from ``zoneinfo``, which is data, not time.)

How it works: five fields (minute, hour, day of month, month, day of week) with ``*``, lists, ranges, steps and names;
``L`` (last day of the month, and ``5L``: the last Friday) and ``5#2`` (the second Friday); the usual ``@daily`` texts;
``@every 90s``; a zone in front (``CRON_TZ=Europe/Berlin 0 4 * * *``), else UTC. When day of month and day of week are
both restricted, either is enough.

When clocks change: a schedule for *every hour* follows real time, so it neither pauses in a repeated hour nor fires
twice. One for *given hours* fires once for each wall-clock time: the first time of two when the hour is repeated, and
later by the width of the gap when the time does not exist.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

SEARCH_DAYS: Final = 366 * 100
"""How far ahead a match is looked for; a schedule that `check_cron` accepts has one long before."""

_SHORTHANDS: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_MONTHS: Final = {name.lower(): number for number, name in enumerate(calendar.month_abbr) if name}
_WEEKDAYS: Final = {"sun": 0, "mon": 1, "tue": 2, "wed": 3, "thu": 4, "fri": 5, "sat": 6}
_UNITS: Final = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_INTERVAL: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|[dhms])")
_MINUTE: Final = timedelta(minutes=1)
_QUARTER: Final = timedelta(minutes=15)
_LONGEST_MONTHS: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


class _Days(NamedTuple):
    """Days of the month, or of the week, that match. `nth` holds ``(weekday, n)``, with n = 0 for the last."""

    values: frozenset[int]
    has_last: bool = False
    nth: frozenset[tuple[int, int]] = frozenset()
    is_any: bool = False


class CronSpec(NamedTuple):
    """A schedule as read: an interval, or the fields of a calendar."""

    interval: timedelta | None
    zone: ZoneInfo | None
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: _Days
    months: frozenset[int]
    weekdays: _Days


def check_cron(schedule: str) -> str:
    """What is wrong with a schedule, in words; empty when nothing is."""
    try:
        read_cron(schedule)
    except ValueError as error:
        return str(error)
    return ""


def next_cron_time(schedule: str, after: datetime, anchor: datetime) -> datetime:
    """The first instant after `after` at which the schedule is due.

    Args:
        schedule: One that `check_cron` accepts.
        after: Aware; the answer is later.
        anchor: Where an ``@every`` interval counts from.

    Raises:
        ValueError: The schedule is not one, or never due.
    """
    spec = read_cron(schedule)
    if spec.interval is not None:
        passed = max((after - anchor) // spec.interval, 0)
        return anchor + (passed + 1) * spec.interval
    after = after.astimezone(UTC)
    found = _next_in_real_time(spec, after) if len(spec.hours) == 24 else _next_on_the_clock(spec, after)
    if found is None:
        raise ValueError(f"the cron schedule {schedule!r} is never due")
    return found


# --- reading ---------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def read_cron(schedule: str) -> CronSpec:
    """Read a schedule.

    Raises:
        ValueError: What is wrong with it, and what was expected.
    """
    text = schedule.strip()
    zone = None
    if text.startswith(("CRON_TZ=", "TZ=")):
        name, _, text = text.partition(" ")
        zone = _zone(name.partition("=")[2])
        text = text.strip()
    if text.startswith("@every "):
        return CronSpec(_interval(text[7:].strip()), zone, (), (), _Days(frozenset()), frozenset(), _Days(frozenset()))
    fields = _SHORTHANDS.get(text, text).split()
    if len(fields) != 5:
        raise ValueError(
            f"the cron schedule {schedule!r} has {len(fields)} fields; 5 are expected: minute, hour, day of month, "
            "month, day of week"
        )
    spec = CronSpec(
        interval=None,
        zone=zone,
        minutes=tuple(sorted(_field("minute", fields[0], 0, 59))),
        hours=tuple(sorted(_field("hour", fields[1], 0, 23))),
        days=_days_of_month(fields[2]),
        months=frozenset(_field("month", fields[3], 1, 12, _MONTHS)),
        weekdays=_days_of_week(fields[4]),
    )
    if spec.weekdays.is_any and not spec.days.is_any and not spec.days.has_last:
        longest = max(_LONGEST_MONTHS[month - 1] for month in spec.months)
        if min(spec.days.values) > longest:
            raise ValueError(f"the cron schedule {schedule!r} names only dates that do not exist, so it is never due")
    return spec


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise ValueError(f"the time zone {name!r} is not known; use a name such as Europe/Berlin") from error


def _interval(text: str) -> timedelta:
    parts = _INTERVAL.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"the interval {text!r} cannot be read; write it like 90s, 15m or 1h30m")
    interval = timedelta(seconds=sum(float(number) * _UNITS[unit] for number, unit in parts))
    if interval < timedelta(seconds=1):
        raise ValueError(f"the interval {text!r} is shorter than a second")
    return interval


def _field(what: str, text: str, low: int, high: int, names: dict[str, int] | None = None) -> set[int]:
    values: set[int] = set()
    for part in text.split(","):
        values.update(_part(what, part, low, high, names or {}))
    return values


def _part(what: str, part: str, low: int, high: int, names: dict[str, int]) -> range | list[int]:
    body, slash, step_text = part.partition("/")
    step = _number(what, step_text, 1, high, {}) if slash else 1
    if body in ("*", "?"):
        return range(low, high + 1, step)
    first_text, dash, last_text = body.partition("-")
    first = _number(what, first_text, low, high, names)
    if not dash:
        return range(first, (high if slash else first) + 1, step)
    last = _number(what, last_text, low, high, names)
    if last >= first:
        return range(first, last + 1, step)
    # A range over the end: November to February, Friday to Monday.
    width = high - low + 1
    return [low + (value - low) % width for value in range(first, last + width + 1, step)]


def _number(what: str, text: str, low: int, high: int, names: dict[str, int]) -> int:
    value = names.get(text.lower())
    if value is None and text.isascii() and text.isdigit():
        value = int(text)
    if value is None or not low <= value <= high:
        raise ValueError(f"{text!r} is no {what} of a cron schedule; {low} to {high} are expected")
    return value


def _days_of_month(text: str) -> _Days:
    parts = text.split(",")
    plain = [part for part in parts if part.upper() != "L"]
    values = frozenset(_field("day of month", ",".join(plain), 1, 31)) if plain else frozenset[int]()
    return _Days(values, has_last=len(plain) != len(parts), is_any=text in ("*", "?"))


def _days_of_week(text: str) -> _Days:
    values: set[int] = set()
    nth: set[tuple[int, int]] = set()
    for part in text.split(","):
        if "#" in part:
            day, _, count = part.partition("#")
            weekday = _number("day of week", day, 0, 7, _WEEKDAYS) % 7
            nth.add((weekday, _number("count of weeks", count, 1, 5, {})))
        elif len(part) > 1 and part.upper().endswith("L"):
            nth.add((_number("day of week", part[:-1], 0, 7, _WEEKDAYS) % 7, 0))
        elif part in ("*", "?"):
            values.update(range(7))
        elif part.startswith(("*/", "?/")):
            values.update(_part("day of week", part, 0, 6, _WEEKDAYS))
        elif "-" in part:
            values.update(_weekday_range(part))
        else:
            values.update(value % 7 for value in _part("day of week", part, 0, 7, _WEEKDAYS))
    return _Days(frozenset(values), nth=frozenset(nth), is_any=text in ("*", "?"))


def _weekday_range(part: str) -> Iterator[int]:
    body, slash, step_text = part.partition("/")
    first_text, _, last_text = body.partition("-")
    first = _number("day of week", first_text, 0, 7, _WEEKDAYS)
    last = _number("day of week", last_text, 0, 7, _WEEKDAYS)
    step = _number("day of week", step_text, 1, 7, {}) if slash else 1
    if last < first:
        last += 7
    return (value % 7 for value in range(first, last + 1, step))


# --- matching --------------------------------------------------------------------------------------------------------


def _matches_date(spec: CronSpec, day: date) -> bool:
    if day.month not in spec.months:
        return False
    if spec.days.is_any and spec.weekdays.is_any:
        return True
    if spec.weekdays.is_any:
        return _matches_day(spec.days, day)
    if spec.days.is_any:
        return _matches_weekday(spec.weekdays, day)
    return _matches_day(spec.days, day) or _matches_weekday(spec.weekdays, day)


def _matches_day(days: _Days, day: date) -> bool:
    return day.day in days.values or (days.has_last and day.day == calendar.monthrange(day.year, day.month)[1])


def _matches_weekday(weekdays: _Days, day: date) -> bool:
    weekday = (day.weekday() + 1) % 7
    if weekday in weekdays.values:
        return True
    if not weekdays.nth:
        return False
    is_last = day.day + 7 > calendar.monthrange(day.year, day.month)[1]
    return (weekday, (day.day - 1) // 7 + 1) in weekdays.nth or (is_last and (weekday, 0) in weekdays.nth)


def _dates_from(spec: CronSpec, first: date) -> Iterator[date]:
    day = first
    for _ in range(SEARCH_DAYS):
        if _matches_date(spec, day):
            yield day
        if day == date.max:
            return
        day += timedelta(days=1)


def _next_on_the_clock(spec: CronSpec, after: datetime) -> datetime | None:
    """For given hours: each wall-clock time of a matching date, once."""
    zone = spec.zone or UTC
    first = after.astimezone(zone).date() - timedelta(days=1)
    for day in _dates_from(spec, first):
        instants = (
            datetime.combine(day, time(hour, minute), zone).astimezone(UTC)
            for hour in spec.hours
            for minute in spec.minutes
        )
        found = min((instant for instant in instants if instant > after), default=None)
        if found is not None:
            return found
    return None


def _next_in_real_time(spec: CronSpec, after: datetime) -> datetime | None:
    """For every hour: each real minute that the wall clock shows as a matching one."""
    zone = spec.zone or UTC
    instant = after.replace(second=0, microsecond=0) + _MINUTE
    while True:
        local = instant.astimezone(zone)
        if not _matches_date(spec, local.date()):
            day = next(_dates_from(spec, local.date() + timedelta(days=1)), None)
            if day is None:
                return None
            # A little before its midnight, wherever the shift lies; the scan goes on from there.
            midnight = datetime.combine(day, time(), zone).astimezone(UTC)
            instant = max(midnight - timedelta(hours=3), instant + _QUARTER - _past_quarter(instant))
            continue
        if local.minute in spec.minutes:
            return instant
        instant = _next_candidate(spec, instant, local.minute)


def _next_candidate(spec: CronSpec, instant: datetime, minute: int) -> datetime:
    """The next matching minute, but no further than the next quarter of an hour, where a shift may lie."""
    quarter = instant + _QUARTER - _past_quarter(instant)
    later = next((value for value in spec.minutes if value > minute), None)
    return quarter if later is None else min(quarter, instant + (later - minute) * _MINUTE)


def _past_quarter(instant: datetime) -> timedelta:
    return timedelta(minutes=instant.minute % 15)
