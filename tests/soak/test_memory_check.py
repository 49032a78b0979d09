"""The soak's check of memory tells a process that keeps something of each run from one that is only warming up."""

from __future__ import annotations

from typing import Any

import pytest

from tests.soak.__main__ import KEPT_BLOCKS_MAX, KEPT_BYTES_MAX, compare, wrong_of_leaks

SECONDS = 1_800


def reports(*, bytes_a_run: float, blocks_a_run: float = 0.0, given_out_a_run: float = 0.0) -> list[dict[str, Any]]:
    """Half an hour at ten runs a second: caches fill up in the first five minutes; the rest is as asked for."""
    told: list[dict[str, Any]] = []
    for second in range(SECONDS):
        done, warm = second * 10, min(second / 300, 1.0)
        noise = (second * 7919) % 400
        rss_kib = 60_000 + 8_000 * warm + noise + done * bytes_a_run / 1024
        malloc_kib = 9_000 + 9_000 * warm + noise + done * given_out_a_run / 1024
        blocks = 200_000 + 10_000 * warm + 10 * noise + done * blocks_a_run
        sizes = {"rss_kib": int(rss_kib), "malloc_kib": int(malloc_kib)}
        told.append({"done": done, **sizes, "blocks": int(blocks), "files": 24})
    return told


def test_a_process_that_keeps_nothing_passes() -> None:
    told = compare(reports(bytes_a_run=0))
    assert abs(told["kept_bytes"]) < KEPT_BYTES_MAX / 8
    assert abs(told["kept_blocks"]) < KEPT_BLOCKS_MAX / 8


def test_a_kilobyte_of_each_run_is_noticed() -> None:
    with pytest.raises(AssertionError, match="bytes of memory stay of each run"):
        compare(reports(bytes_a_run=1_000))


def test_six_hundred_bytes_of_each_run_are_noticed() -> None:
    with pytest.raises(AssertionError, match="bytes of memory stay of each run"):
        compare(reports(bytes_a_run=600))
    with pytest.raises(AssertionError, match="that the C library gave out stay of each run"):
        compare(reports(bytes_a_run=0, given_out_a_run=600))


def test_a_check_that_says_nothing_of_a_leak_or_something_of_none_is_wrong() -> None:
    fine = {"leak_bytes": 0, "runs_compared": 4_000, "said": ""}
    noticed = {"leak_bytes": 600, "runs_compared": 4_000, "said": "612.0 bytes of memory stay of each run"}
    assert wrong_of_leaks([fine, noticed]) == []
    assert len(wrong_of_leaks([{**fine, "said": noticed["said"]}, {**noticed, "said": ""}])) == 2
    assert "too few" in wrong_of_leaks([{**noticed, "runs_compared": 900}])[0]


def test_two_small_objects_of_each_of_the_three_runs_are_noticed() -> None:
    with pytest.raises(AssertionError, match="Python objects stay of each run"):
        compare(reports(bytes_a_run=360, blocks_a_run=6))
