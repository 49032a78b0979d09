"""Ids that nodes make of the time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from clew.engine.ids import NODE_NUMBERS, TIME_SHIFT, TimedIds
from clew.testing import ManualClock

T0 = datetime(2026, 5, 1, tzinfo=UTC)


def made_by(clock: ManualClock, number: int) -> TimedIds:
    ids = TimedIds(clock)  # type: ignore[arg-type]
    ids.renumber(number)
    return ids


def test_nodes_that_make_ids_in_turn_make_them_in_order() -> None:
    clock = ManualClock(T0)
    nodes = [made_by(clock, number) for number in (NODE_NUMBERS - 1, 0, 7)]
    made: list[int] = []
    for turn in range(300):
        made.append(nodes[turn % 3].next_run_key())
        clock.advance(timedelta(milliseconds=1))
    assert made == sorted(made)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.booleans()), max_size=300))
def test_no_two_are_the_same_and_each_node_only_goes_up(steps: list[tuple[int, int, bool]]) -> None:
    clock = ManualClock(T0)
    nodes = [made_by(clock, number) for number in (0, 1, 2)]
    seen: set[int] = set()
    last = [0, 0, 0]
    for node, milliseconds, follows in steps:
        above = max(seen, default=0) if follows else 0
        made = nodes[node].next_run_key(above)
        assert made not in seen
        assert made > max(last[node], above)
        seen.add(made)
        last[node] = made
        clock.advance(timedelta(milliseconds=milliseconds))


def test_a_millisecond_that_is_used_up_borrows_from_the_next() -> None:
    ids, other = made_by(clock := ManualClock(T0), 5), made_by(clock, 6)
    made = [ids.next_run_key() for _ in range(2_000)]
    others = {other.next_run_key() for _ in range(2_000)}
    assert made == sorted(set(made))
    assert not others & set(made)


def test_a_new_number_never_repeats_an_id() -> None:
    ids = made_by(ManualClock(T0), 5)
    before = [ids.next_run_key() for _ in range(10)]
    ids.renumber(4)
    after = [ids.next_run_key() for _ in range(10)]
    assert len({*before, *after}) == 20
    assert min(after) > max(before)


def test_ids_fit_what_stores_keep_until_2094() -> None:
    ids = made_by(ManualClock(datetime(2094, 1, 1, tzinfo=UTC)), NODE_NUMBERS - 1)
    assert ids.next_run_key() < 1 << 63
    assert TIME_SHIFT == 22
