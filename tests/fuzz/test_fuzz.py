"""Whatever bytes come, every reader reads them or says no in its own words, and soon.

CI takes a share that is the same each time; `make fuzz` takes many more, and others each time (`FUZZ_EXAMPLES`).
"""

from __future__ import annotations

import os
import time
import tracemalloc

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.fuzz.json_changes import changed
from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "0"))
SHARE = 60
SECONDS_MAX = 10.0
"""Of one input; none needs a hundredth of it, and a busy machine may take long breaks."""


def inputs_of(target: Target) -> st.SearchStrategy[bytes]:
    """Anything; good inputs with parts cut, doubled, changed and put in; and what the pieces of good ones make.

    Of those that are JSON also such as still are.
    """
    piece = st.sampled_from([*target.words, *target.examples, b"\x00", b"\xff", b"9" * 400]) | st.binary(max_size=12)
    composed = st.lists(piece, max_size=12).map(b"".join)
    mutated = st.builds(_mutate, st.sampled_from(target.examples), st.lists(st.tuples(_AT, _AT, piece), max_size=4))
    changes = st.lists(st.tuples(st.integers(0, 999), st.integers(0, 999)), min_size=1, max_size=3)
    still_json = st.builds(changed, st.sampled_from(target.examples), changes)
    return st.binary(max_size=200) | composed | mutated | still_json


_AT = st.floats(0, 1)


def _mutate(data: bytes, changes: list[tuple[float, float, bytes]]) -> bytes:
    for start, end, put in changes:
        first, last = sorted((int(start * len(data)), int(end * len(data))))
        data = data[:first] + put + data[last:]
    return data


def check(target: Target, data: bytes) -> None:
    """The one rule."""
    began = time.monotonic()
    refusal = ""
    try:
        target.read(data)
    except target.refusals as error:
        refusal = str(error)
    assert len(refusal) < 20_000 + len(data), "a refusal does not grow with what it refuses"
    assert time.monotonic() - began < SECONDS_MAX


@pytest.mark.parametrize("name", list(TARGETS))
def test_anything_is_read_or_refused(name: str) -> None:
    target = TARGETS[name]

    @settings(
        max_examples=EXAMPLES or SHARE,
        derandomize=not EXAMPLES,
        deadline=None,
        database=None,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(inputs_of(target))
    def run(data: bytes) -> None:
        check(target, data)

    run()


@pytest.mark.parametrize("name", list(TARGETS))
def test_good_inputs_are_read(name: str) -> None:
    target = TARGETS[name]
    if name in ("callback_token", "sealed_token", "identity_token"):
        with pytest.raises(target.refusals):  # well made, but nobody signed them
            target.read(target.examples[0])
        return
    for example in target.examples:
        target.read(example)


DEEP = 100_000


@pytest.mark.parametrize("name", list(TARGETS))
@pytest.mark.parametrize(
    "data",
    [
        b"[" * DEEP,
        b"[" * DEEP + b"]" * DEEP,
        b'{"a":' * DEEP,
        b"(" * DEEP,
        b'{"events":' + b"[" * DEEP,
        b"\x91" * DEEP,
        b"9" * DEEP,
        b"1," * DEEP,
        b"-1e" + b"9" * 400,
        b"/".join([b"*"] * DEEP),
        b"a." * DEEP,
        b"\n" * 1_000_000,
        b"\x00" * 1_000_000,
        "\U0001f600".encode() * 100_000,
    ],
    ids=["open", "lists", "objects", "parentheses", "history", "msgpack", "digits", "many", "exponent", "stars", "dots",
         "lines", "zeros", "wide"],
)  # fmt: skip
def test_deep_long_and_many_is_refused_in_bounded_memory(name: str, data: bytes) -> None:
    target = TARGETS[name]
    tracemalloc.start()
    try:
        check(target, data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 60 * len(data) + 20_000_000, f"{peak} bytes for {len(data)}"
