"""Mistakes in workflow classes are reported at decoration, with class, method and remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from clew import workflow
from clew.workflow._definition import Definition, QueryDefinition, SignalDefinition, UpdateDefinition


def no_run() -> None:
    @workflow.defn
    class Broken:
        pass


def two_runs() -> None:
    @workflow.defn
    class Broken:
        @workflow.run
        async def run(self) -> None: ...

        @workflow.run
        async def walk(self) -> None: ...


def sync_run() -> None:
    @workflow.run
    def run(self: Any) -> None: ...  # type: ignore[type-var]


def inherited_run() -> None:
    class Base:
        @workflow.run
        async def run(self) -> None: ...

    @workflow.defn
    class Broken(Base):
        pass


def undecorated_override() -> None:
    class Base:
        @workflow.signal
        def poke(self) -> None: ...

    @workflow.defn
    class Broken(Base):
        @workflow.run
        async def run(self) -> None: ...

        def poke(self) -> None: ...


def same_signal() -> None:
    @workflow.defn
    class Broken:
        @workflow.run
        async def run(self) -> None: ...

        @workflow.signal(name="x")
        def one(self) -> None: ...

        @workflow.signal(name="x")
        def two(self) -> None: ...


def async_query() -> None:
    @workflow.query
    async def ask(self: Any) -> None: ...


def init_without_decorator() -> None:
    @workflow.defn
    class Broken:
        def __init__(self, name: str) -> None: ...

        @workflow.run
        async def run(self, name: str) -> None: ...


def init_that_differs() -> None:
    @workflow.defn
    class Broken:
        @workflow.init
        def __init__(self, name: str) -> None: ...

        @workflow.run
        async def run(self, name: str, age: int) -> None: ...


def validator_that_differs() -> None:
    class Broken:
        @workflow.update
        def change(self, n: int) -> None: ...

        @change.validator  # type: ignore[arg-type]
        def check(self) -> None: ...


def reserved() -> None:
    @workflow.query(name="__stack_trace")
    def mine(self: Any) -> None: ...


def name_and_dynamic() -> None:
    workflow.defn(name="x", dynamic=True)


def dynamic_signal_without_arguments() -> None:
    @workflow.signal(dynamic=True)
    def mine(self: Any) -> None: ...


def not_a_method() -> None:
    @workflow.signal
    def mine(what: str) -> None: ...


@pytest.mark.parametrize(
    ("define", "words"),
    [
        (no_run, ["Broken", "@workflow.run"]),
        (two_runs, ["Broken", "walk and run", "keep one"]),
        (sync_run, ["sync_run", "async def"]),
        (inherited_run, ["Broken", "inherited"]),
        (undecorated_override, ["poke overrides", "Base", "decorate it too"]),
        (same_signal, ["two", "one", "'x'"]),
        (async_query, ["ask", "async", "Use `def`"]),
        (init_without_decorator, ["Broken", "__init__ requires name", "@workflow.init"]),
        (init_that_differs, ["Broken", "__init__", "make them alike"]),
        (validator_that_differs, ["check", "same parameters"]),
        (reserved, ["__stack_trace", "reserved"]),
        (name_and_dynamic, ["name", "dynamic"]),
        (dynamic_signal_without_arguments, ["mine", "Sequence[RawValue]"]),
        (not_a_method, ["mine", "self"]),
    ],
)
def test_mistakes_are_named(define: Callable[[], None], words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the words are checked below)
        define()
    for word in words:
        assert word in str(caught.value)


@workflow.defn(name="Other", failure_exception_types=[KeyError], sandboxed=False)
class Fine:
    @workflow.init
    def __init__(self, n: int) -> None: ...

    @workflow.run
    async def run(self, n: int) -> str:
        return ""

    @workflow.signal
    def s(self, a: int) -> None: ...

    @workflow.query(name="q", description="asks")
    def ask(self) -> list[int]:
        return []

    @workflow.update
    async def u(self, a: int) -> bytes:
        return b""


def test_what_a_definition_knows() -> None:
    definition = Definition.must_from_run_fn(Fine.run)
    assert definition is Definition.must_from_class(Fine)
    assert (definition.name, definition.arg_types, definition.ret_type) == ("Other", (int,), str)
    assert definition.has_init
    assert set(definition.signals) == {"s"}
    assert definition.queries["q"].ret_type == list[int]
    assert definition.updates["u"].ret_type is bytes
    assert Definition.get_name_and_result_type(Fine.run) == ("Other", str)
    assert SignalDefinition.must_name_from_fn_or_str(Fine.s) == "s"
    assert QueryDefinition.must_name_from_fn_or_str(Fine.ask) == "q"
    assert UpdateDefinition.must_name_from_fn_or_str(Fine.u) == "u"
    with pytest.raises(TypeError, match="not a signal handler"):
        SignalDefinition.must_name_from_fn_or_str(Fine.ask)
    with pytest.raises(ValueError, match="not the run method"):
        Definition.must_from_run_fn(Fine.ask)


def test_outside_of_workflows() -> None:
    assert not workflow.in_workflow()
    with pytest.raises(workflow.NotInWorkflowError, match="outside of a running workflow"):
        workflow.now()
    workflow.logger.debug("works")
