"""Which code a long proof ran on, for the records that it leaves.

Owns: `commit_now`, `commits_since`, `is_cut_off`. Never: counts the records themselves, which such a run writes one
after the other, as a change.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
RECORDS: Final = (
    "tests/**/record.json",
    "tests/fuzz/corpus.json",
    "tests/proof_share.json",
    "tests/postgres_record.json",
    "tests/simulation/soaked.jsonl",
    "tests/simulation/planted.json",
    "tests/differential/recorded/**",
    "docs/**",
)


def commit_now() -> str:
    """The commit in 12 digits, with ``-dirty`` behind it when the code is not quite that; empty without Git."""
    left_out = [f":(exclude,glob){path}" for path in RECORDS]
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", *left_out)
    commit = _git("rev-parse", "--short=12", "HEAD")
    return f"{commit}-dirty" if commit and changed else commit


def commits_since(commit: str) -> int | None:
    """How many commits came behind this one; None when it is none of this history, or there is no Git."""
    if not commit or _git("merge-base", commit, "HEAD")[: len(commit)] != commit:
        return None
    return int(_git("rev-list", "--count", f"{commit}..HEAD"))


def is_cut_off() -> bool:
    """Whether older commits are not here to be looked up: no Git, or a clone that begins late."""
    return _git("rev-parse", "--is-shallow-repository") != "false"


def _git(*arguments: str) -> str:
    try:
        told = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False, cwd=ROOT)
    except OSError:
        return ""
    return told.stdout.strip()
