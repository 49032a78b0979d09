"""Cron schedules: reading, the next instant, and what happens when clocks change (cases C078, C080, C081)."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clew.core.cron import check_cron, next_cron_time, read_cron


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def firings(schedule: str, after: str, count: int) -> list[str]:
    instant, found = at(after), []
    for _ in range(count):
        instant = next_cron_time(schedule, instant, instant)
        found.append(instant.strftime("%Y-%m-%d %H:%M"))
    return found


@pytest.mark.parametrize(
    ("schedule", "after", "expected"),
    [
        ("0 4 * * *", "2026-01-01 04:00:00", ["2026-01-02 04:00", "2026-01-03 04:00"]),
        ("*/20 8-9 * * *", "2026-01-01 09:10", ["2026-01-01 09:20", "2026-01-01 09:40", "2026-01-02 08:00"]),
        ("0 0 29 2 *", "2026-01-01", ["2028-02-29 00:00", "2032-02-29 00:00"]),
        ("0 0 L * *", "2026-01-31", ["2026-02-28 00:00", "2026-03-31 00:00"]),
        ("0 0 13 * fri", "2026-02-01", ["2026-02-06 00:00", "2026-02-13 00:00", "2026-02-20 00:00"]),
        ("0 0 * * 5L", "2026-01-01", ["2026-01-30 00:00", "2026-02-27 00:00"]),
        ("0 0 * * mon#2", "2026-01-01", ["2026-01-12 00:00", "2026-02-09 00:00"]),
        ("0 0 1 nov-feb *", "2026-01-15", ["2026-02-01 00:00", "2026-11-01 00:00", "2026-12-01 00:00"]),
        ("0 0 * * sat-mon", "2026-01-01", ["2026-01-03 00:00", "2026-01-04 00:00", "2026-01-05 00:00"]),
        ("0 0 * * 7", "2026-01-01", ["2026-01-04 00:00", "2026-01-11 00:00"]),
        ("@hourly", "2026-01-01 00:30", ["2026-01-01 01:00", "2026-01-01 02:00"]),
        ("@monthly", "2026-01-01 00:30", ["2026-02-01 00:00"]),
        ("CRON_TZ=Asia/Tokyo 0 9 * * *", "2026-01-01", ["2026-01-02 00:00"]),
        ("0 * 1 1 *", "2026-01-02", ["2027-01-01 00:00", "2027-01-01 01:00"]),
    ],
)
def test_next_instants(schedule: str, after: str, expected: list[str]) -> None:
    assert firings(schedule, after, len(expected)) == expected


def test_an_interval_counts_from_its_anchor() -> None:
    anchor = at("2026-01-01 00:00:10")
    assert next_cron_time("@every 1h30m", anchor, anchor) == at("2026-01-01 01:30:10")
    assert next_cron_time("@every 90m", at("2026-01-01 07:00"), anchor) == at("2026-01-01 07:30:10")


@pytest.mark.parametrize(
    ("schedule", "finding"),
    [
        ("", "0 fields; 5 are expected"),
        ("* * * *", "4 fields"),
        ("60 * * * *", "'60' is no minute"),
        ("* 24 * * *", "'24' is no hour"),
        ("* * * foo *", "'foo' is no month"),
        ("*/0 * * * *", "'0' is no minute"),
        ("0 0 31 2 *", "never due"),
        ("0 0 31 4,6 *", "never due"),
        ("TZ=Mars/Olympus 0 0 * * *", "'Mars/Olympus' is not known"),
        ("@every soon", "cannot be read"),
        ("@every 10ms", "shorter than a second"),
        ("0 0 * * 1#6", "count of weeks"),
        ("٣ * * * *", "is no minute"),
    ],
)
def test_what_is_wrong_is_said(schedule: str, finding: str) -> None:
    assert finding in check_cron(schedule)
    with pytest.raises(ValueError, match=r"."):
        next_cron_time(schedule, at("2026-01-01"), at("2026-01-01"))


# C078: times that do not exist, times that exist twice
@pytest.mark.parametrize(
    ("schedule", "after", "expected"),
    [
        ("TZ=America/New_York 30 2 * * *", "2026-03-07 12:00", ["2026-03-08 07:30", "2026-03-09 06:30"]),
        ("TZ=America/New_York 30 1 * * *", "2026-10-31 12:00", ["2026-11-01 05:30", "2026-11-02 06:30"]),
        ("TZ=Australia/Lord_Howe 45 1 * * *", "2026-04-04 12:00", ["2026-04-04 14:45", "2026-04-05 15:15"]),
        ("TZ=Australia/Lord_Howe 15 2 * * *", "2026-10-03 12:00", ["2026-10-03 15:45", "2026-10-04 15:15"]),
    ],
)
def test_one_run_a_local_date(schedule: str, after: str, expected: list[str]) -> None:
    assert firings(schedule, after, len(expected)) == expected


def test_a_restart_between_the_copies_of_a_minute_adds_none() -> None:
    assert firings("TZ=America/New_York 30 1 * * *", "2026-11-01 06:10", 1) == ["2026-11-02 06:30"]


# C080: schedules for every hour follow real time
@pytest.mark.parametrize("start", ["2026-11-01 04:30", "2026-03-08 05:30"])
def test_every_quarter_of_an_hour_has_no_hole(start: str) -> None:
    before = (at(start) - timedelta(seconds=1)).isoformat(sep=" ")[:19]
    found = [at(f"{text}:00") for text in firings("TZ=America/New_York */15 * * * *", before, 11)]
    assert found == [at(start) + n * timedelta(minutes=15) for n in range(11)]
    hours = [at(f"{text}:00") for text in firings("TZ=America/New_York 0 * * * *", before, 3)]
    assert [later - earlier for earlier, later in pairwise(hours)] == [timedelta(hours=1)] * 2


# C081: from just before the shift
def test_just_before_the_shift() -> None:
    found = firings("CRON_TZ=America/Toronto 10 0 * * *", "2023-03-12 05:10:02", 4)
    assert found == ["2023-03-13 04:10", "2023-03-14 04:10", "2023-03-15 04:10", "2023-03-16 04:10"]


ZONES = ["UTC", "America/New_York", "America/St_Johns", "Australia/Lord_Howe", "Europe/Berlin", "Europe/Dublin",
         "Asia/Kathmandu", "Asia/Tehran", "Africa/Casablanca", "Africa/Cairo", "America/Havana", "America/Santiago",
         "America/Asuncion", "Asia/Beirut", "Asia/Gaza", "Pacific/Chatham", "Pacific/Apia", "Pacific/Auckland",
         "Antarctica/Troll", "America/Nuuk"]  # fmt: skip
TEXTS = ["* * * * *", "*/7 * * * *", "0 * * * *", "30 2 * * *", "*/15 1-3 * * *", "0 0 * * *", "59 23 * * *",
         "5 0,12 * * 1-5", "0 0 1 * *", "15 1 * 3,10,11 0", "0 2 29 2 *", "30 0 L * *", "0 */2 * * *", "1 1 13 * 5",
         "0 0 * * 0#1", "45 23 * * 6L", "0 3 1-7 4 *", "10 * * * 0"]  # fmt: skip


def brute_force(schedule: str, after: datetime, until: datetime) -> datetime | None:
    """Minute by minute: what the module docstring says, put another way."""
    spec = read_cron(schedule)
    zone = spec.zone or UTC
    instant = after.replace(second=0, microsecond=0) + timedelta(minutes=1)
    while instant <= until:
        if is_due(schedule, instant, zone):
            return instant
        instant += timedelta(minutes=1)
    return None


def is_due(schedule: str, instant: datetime, zone: object) -> bool:
    spec = read_cron(schedule)
    assert isinstance(zone, ZoneInfo) or zone is UTC
    local = instant.astimezone(zone)  # type: ignore[arg-type]
    walls = [local]
    if len(spec.hours) < 24:
        # The wall times that this instant stands for: its own, if it is the first such, and those of a gap before it.
        naive = local.replace(tzinfo=None)
        walls = [naive - timedelta(minutes=n) for n in range(0, 121, 30)]
        walls = [w.replace(tzinfo=zone) for w in walls]  # type: ignore[arg-type]
        walls = [w for w in walls if w.astimezone(UTC) == instant]
    return any(w.hour in spec.hours and w.minute in spec.minutes and date_matches(spec, w.date()) for w in walls)


def date_matches(spec: object, day: date) -> bool:
    from clew.core.cron import CronSpec, _matches_date

    assert isinstance(spec, CronSpec)
    return _matches_date(spec, day)


SHIFTS = [at("2026-03-08 07:00"), at("2026-11-01 06:00"), at("2026-04-04 15:00"), at("2026-10-03 15:30"),
          at("2026-03-29 01:00"), at("2026-10-25 01:00"), at("2023-03-12 07:00"), at("2027-02-28 00:00")]  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    zone=st.sampled_from(ZONES),
    text=st.sampled_from(TEXTS),
    shift=st.sampled_from(SHIFTS),
    offset=st.integers(-200_000, 100_000),
)
def test_next_agrees_with_a_scan(zone: str, text: str, shift: datetime, offset: int) -> None:
    schedule = f"CRON_TZ={zone} {text}"
    after = shift + timedelta(seconds=offset)
    found = next_cron_time(schedule, after, after)
    assert found > after
    assert next_cron_time(schedule, after - timedelta(seconds=1), after) <= found
    horizon = after + timedelta(days=2)
    assert brute_force(schedule, after, horizon) == (found if found <= horizon else None)
