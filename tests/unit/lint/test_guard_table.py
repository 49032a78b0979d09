"""What the guard refuses at run time, `clew lint` knows by name: the two share one table."""

from __future__ import annotations

import ast

import pytest

from clew.lint._calls import rule_of
from clew.lint._rules import BY_GUARD_RULE, RULES
from clew.replay import _guard_rules as guard

PATCHES = (*guard.CLOCK_PATCHES, *guard.PATCHES, *guard.LATE_PATCHES)


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: f"{patch.owner}.{patch.name}")
def test_every_wrapped_function_has_a_rule(patch: guard.Patch) -> None:
    rule = rule_of(f"{patch.owner.replace(':', '.')}.{patch.name}", None)
    assert rule is BY_GUARD_RULE[id(patch.rule)]


@pytest.mark.parametrize("event", sorted(guard.AUDITED))
def test_every_audited_event_has_a_rule(event: str) -> None:
    assert rule_of(event, None) is not None


def test_reason_and_remedy_are_those_of_the_guard() -> None:
    for rule in RULES.values():
        assert (rule.guard_rule is not None) == rule.code.startswith("CLW1")
        if rule.guard_rule is not None:
            assert (rule.reason, rule.remedy) == (rule.guard_rule.reason, rule.guard_rule.remedy)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("time.strftime('%Y')", "CLW101"),
        ("time.strftime('%Y', moment)", None),
        ("time.localtime(None)", "CLW101"),
        ("time.localtime(5)", None),
        ("time.localtime(*given)", None),
        ("random.Random()", "CLW103"),
        ("random.Random(5)", None),
    ],
)
def test_conditions_of_the_guard_hold_for_the_text_too(text: str, code: str | None) -> None:
    call = ast.parse(text, mode="eval").body
    assert isinstance(call, ast.Call)
    found = rule_of(ast.unparse(call.func), call)
    assert (found.code if found is not None else None) == code
