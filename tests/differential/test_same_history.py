"""Every program of the comparison gives the recorded history here too, event by event.

``recorded/`` was written by the peer (`make differential` writes it anew). A difference that has a reason is listed in
``differences.toml``, with it; any other fails here, and so does a listed one that is not there any more.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.differential import on_clew, page
from tests.differential.comparison import Difference, Reason, compare, load_reasons

RECORDED_DIR = Path(__file__).parent / "recorded"
PROGRAMS = on_clew.programs()
REASONS = load_reasons()
USED: dict[str, set[Reason]] = {}
"""By program, which of the reasons explained a difference."""


@pytest.fixture(autouse=True)
def _modules() -> Iterator[None]:
    """Programs find their own module by name while they run."""
    for module, _ in PROGRAMS.values():
        sys.modules[module.__name__] = module
    yield
    for module, _ in PROGRAMS.values():
        sys.modules.pop(module.__name__, None)


def recorded(name: str) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = json.loads((RECORDED_DIR / f"{name}.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("name", sorted(PROGRAMS))
async def test_a_program_leaves_the_same_history(name: str, tmp_path: Path) -> None:
    ours = await on_clew.run(name, PROGRAMS[name][1], f"sqlite:{tmp_path / 'store.db'}")
    unexplained, used = REASONS.split(name, compare(recorded(name), json.loads(json.dumps(ours))))
    assert not unexplained, "\n" + "\n".join(map(str, unexplained))
    USED[name] = used
    gone = [reason for reason in REASONS.listed if name in reason.programs and reason not in used]
    assert not gone, f"differences that are listed, and not there any more: {gone}"


def test_what_is_listed_for_all_programs_is_there_in_one() -> None:
    if USED.keys() != PROGRAMS.keys():
        pytest.skip("not every program ran in this process")
    gone = [
        reason for reason in REASONS.listed if not reason.programs and not any(reason in used for used in USED.values())
    ]
    assert not gone, f"differences that are listed, and not there any more: {gone}"


def test_there_are_enough_programs() -> None:
    assert len(PROGRAMS) >= 40
    assert {path.stem for path in RECORDED_DIR.glob("*.json")} == set(PROGRAMS)


def test_every_reason_names_programs_that_there_are() -> None:
    assert {name for reason in REASONS.listed for name in reason.programs} <= set(PROGRAMS)


def test_the_page_is_current() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.render(), "run python -m tests.differential.page"


def test_a_difference_is_found() -> None:
    theirs = recorded("activity_completes")
    label = next(iter(theirs))
    ours = json.loads(json.dumps(theirs))
    ours[label][4]["activity_type"] = "another"
    assert compare(theirs, ours) == [Difference(label, "ActivityTaskScheduled", "activity_type", "greet", "another")]
    del ours[label][4]
    assert compare(theirs, ours)[0].field == "events"
