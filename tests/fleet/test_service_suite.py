"""The service suite on a fleet: client calls go to one node after the other, workers are attached to different ones.

Tests that need a store in a file are left out: nodes that share one are a matter of PostgreSQL.
"""

from __future__ import annotations

import inspect

from tests.conformance.service import (
    test_operations,
    test_recorded_markers,
    test_runs,
    test_update_with_start,
    test_versions,
)

NOT_OF_A_FLEET = {
    "test_a_queue_tells_what_waits_since_when_and_who_polls": "only a worker's own node knows its credits",
    "test_lists_and_counts": "runs that start within one millisecond are listed by node",
    "test_signals_updates_and_queries_ask_for_the_end_of_the_task": "a query reaches the other node a moment later",
    "test_a_lost_row_is_queued_again": "takes the run to be in shard 0",
    "test_old_versions_make_room_and_needed_ones_do_not": "a worker that left is seen to be gone a moment later",
    "test_no_run_ever_meets_a_worker_that_must_not_have_it": "other nodes follow a change of routes a moment later",
}

for _module in (test_operations, test_recorded_markers, test_runs, test_update_with_start, test_versions):
    for _name, _test in vars(_module).items():
        if not _name.startswith("test_") or _name in NOT_OF_A_FLEET:
            continue
        if "file_shop" not in inspect.signature(_test).parameters:
            assert _name not in globals(), f"two tests of the service suite are named {_name}"
            globals()[_name] = _test
