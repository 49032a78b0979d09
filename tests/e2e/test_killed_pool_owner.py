"""The children of a process pool end with the worker that owned it, even when that was killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.cases.harness import ROOT, eventually, within

PROGRAM = Path(__file__).with_name("killed_pool_owner.py")


@pytest.mark.parametrize("how_busy", ["idle", "busy"])
@pytest.mark.parametrize("method", ["fork", "forkserver"])
async def test_children_end_with_a_killed_worker(method: str, how_busy: str) -> None:
    # The children inherit standard error, which must not be a pipe that this test waits on.
    owner = await asyncio.create_subprocess_exec(
        sys.executable, str(PROGRAM), method, how_busy,
        stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    assert owner.stdout is not None
    child = int(await within(owner.stdout.readline(), 30))
    if how_busy == "busy":
        owner.send_signal(signal.SIGKILL)
    try:
        assert await within(owner.wait(), 30) == -signal.SIGKILL
        await eventually(lambda: not _is_running(child), f"the end of child {child}", seconds_max=15)
    finally:
        if _is_running(child):
            os.kill(child, signal.SIGKILL)


def _is_running(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{process_id}/stat")  # Where there is one, it tells those apart that nobody has waited for yet.
    return not (stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z")
