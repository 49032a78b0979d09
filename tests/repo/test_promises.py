"""Pages that name the tests behind a promise name tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("SECURITY.md", "docs/explanation/guarantees.md")


@pytest.mark.parametrize("page", PAGES)
def test_every_test_that_is_named_is_there(page: str) -> None:
    named = set(re.findall(r"`(tests/[\w./]+)`", (ROOT / page).read_text(encoding="utf-8")))
    assert len(named) > 10
    assert not [name for name in sorted(named) if not (ROOT / name).exists()]


def test_every_promise_says_what_would_notice() -> None:
    text = (ROOT / "docs/explanation/guarantees.md").read_text(encoding="utf-8")
    promises = re.split(r"^### \d+\. ", text.partition("## What is not promised")[0], flags=re.MULTILINE)[1:]
    assert len(promises) == 15
    assert all("*Tested by*: `tests/" in promise or "*Tested by*: every law" in promise for promise in promises)
