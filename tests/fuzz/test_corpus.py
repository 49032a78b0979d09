"""What fuzzing led by coverage has kept of its inputs: each is read or refused, every time."""

from __future__ import annotations

import pytest

from tests.fuzz.coverage import MODULES, read_corpus
from tests.fuzz.targets import TARGETS
from tests.fuzz.test_fuzz import check

CORPUS = read_corpus()


def test_every_reader_has_modules_and_inputs_to_start_from() -> None:
    assert set(MODULES) == set(TARGETS)
    assert set(CORPUS) == set(TARGETS)


@pytest.mark.parametrize("name", list(CORPUS))
def test_kept_inputs_are_read_or_refused(name: str) -> None:
    for data in CORPUS[name]:
        check(TARGETS[name], data)
