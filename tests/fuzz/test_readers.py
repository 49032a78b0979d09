"""No reader of outside bytes is forgotten."""

from __future__ import annotations

from tests.fuzz.readers import READERS, found
from tests.fuzz.targets import TARGETS


def test_every_module_that_reads_bytes_has_targets_or_a_reason() -> None:
    modules = found()
    new, gone = modules - set(READERS), set(READERS) - modules
    assert not new, f"These read bytes: {sorted(new)}. Name their fuzz targets, or why they need none, in readers.py."
    assert not gone, f"These read no bytes any more: {sorted(gone)}. Take them out of readers.py."


def test_the_targets_that_are_named_exist() -> None:
    named = {target for targets in READERS.values() if not isinstance(targets, str) for target in targets}
    assert named <= set(TARGETS)
