"""The filter language: what it gives, and how it says no."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clew.engine import visibility
from clew.engine.visibility import FilterError, parse_filter
from clew.model.rejection import RejectionCode
from clew.ports.store import VisibilityCondition, VisibilityFilter
from clew.storage.sqlite.visibility import SYSTEM_COLUMNS

ATTRIBUTES = {
    "Color": "Keyword",
    "Tags": "KeywordList",
    "Note": "Text",
    "Age": "Int",
    "Share": "Double",
    "Paid": "Bool",
    "Due": "Datetime",
    "Two Words": "Keyword",
}


def one(text: str) -> tuple[str, str, tuple[object, ...]]:
    parsed = parse_filter(text, ATTRIBUTES)
    (condition,) = parsed.conditions
    assert isinstance(condition, VisibilityCondition)
    return condition.attribute, condition.operator, condition.values


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("WorkflowId = 'a'", ("WorkflowId", "=", ("a",))),
        ('WorkflowId="a"', ("WorkflowId", "=", ("a",))),
        ("WorkflowId = 'it''s'", ("WorkflowId", "=", ("it's",))),
        (r"WorkflowId = 'it\'s \\ '", ("WorkflowId", "=", ("it's \\ ",))),
        ("WorkflowId = 'a \"\" b'", ("WorkflowId", "=", ('a "" b',))),
        ("WorkflowId <> 'a'", ("WorkflowId", "!=", ("a",))),
        ("WorkflowType in ('a','b')", ("WorkflowType", "IN", ("a", "b"))),
        ("WorkflowType Not In ('a')", ("WorkflowType", "NOT IN", ("a",))),
        ("WorkflowId STARTS_WITH 'or'", ("WorkflowId", "STARTS_WITH", ("or",))),
        ("WorkflowId not starts_with 'or'", ("WorkflowId", "NOT STARTS_WITH", ("or",))),
        ("CloseTime IS NULL", ("CloseTime", "IS NULL", ())),
        ("CloseTime is not null", ("CloseTime", "IS NOT NULL", ())),
        ("HistoryLength BETWEEN 1 AND 20", ("HistoryLength", "BETWEEN", (1, 20))),
        ("HistoryLength>=-5", ("HistoryLength", ">=", (-5,))),
        ("Share < 1.5e3", ("Share", "<", (1500.0,))),
        ("Share > .5", ("Share", ">", (0.5,))),
        ("Paid = TRUE", ("Paid", "=", (True,))),
        ("Paid != false", ("Paid", "!=", (False,))),
        ("ExecutionStatus = 'timedout'", ("ExecutionStatus", "=", ("TimedOut",))),
        ("StartTime > '2026-03-01T10:00:00+02:00'", ("StartTime", ">", (datetime(2026, 3, 1, 8, tzinfo=UTC),))),
        ("Due = '2026-03-01T08:00:00.5Z'", ("Due", "=", (datetime(2026, 3, 1, 8, 0, 0, 500_000, tzinfo=UTC),))),
        ("ExecutionDuration > '1h30m'", ("ExecutionDuration", ">", (5_400_000_000,))),
        ("ExecutionDuration > '1.5s'", ("ExecutionDuration", ">", (1_500_000,))),
        ("ExecutionDuration > '-2ms'", ("ExecutionDuration", ">", (-2_000,))),
        ("ExecutionDuration > '01:30:00'", ("ExecutionDuration", ">", (5_400_000_000,))),
        ("ExecutionDuration > 5000000", ("ExecutionDuration", ">", (5_000,))),
        ("`Two Words` = 'x'", ("Two Words", "=", ("x",))),
        ("Tags = 'a'", ("Tags", "=", ("a",))),
        ("((Color = 'x'))", ("Color", "=", ("x",))),
    ],
)
def test_one_comparison(text: str, expected: tuple[str, str, tuple[object, ...]]) -> None:
    assert one(text) == expected


def test_and_binds_more_tightly_than_or() -> None:
    a, b, c = (VisibilityCondition(attribute="Color", operator="=", values=(v,)) for v in "abc")
    parsed = parse_filter("Color='a' OR Color='b' AND Color='c'", ATTRIBUTES)
    assert parsed == VisibilityFilter(any_of=True, conditions=(a, VisibilityFilter(conditions=(b, c))))
    parsed = parse_filter("(Color='a' OR Color='b') AND Color='c'", ATTRIBUTES)
    assert parsed == VisibilityFilter(conditions=(VisibilityFilter(any_of=True, conditions=(a, b)), c))


@pytest.mark.parametrize("text", ["", "  \n\t "])
def test_an_empty_filter_has_no_condition(text: str) -> None:
    assert parse_filter(text) == VisibilityFilter()


@pytest.mark.parametrize(
    ("text", "position", "says"),
    [
        ("Workflowtype = 'a'", 1, "Did you mean WorkflowType"),
        ("workflow_type = 'a'", 1, "Did you mean WorkflowType"),
        ("Colour = 'a'", 1, "Did you mean Color"),
        ("Status = 'Running'", 1, "Did you mean ExecutionStatus?"),
        ("Staus = 1", 1, "Did you mean ExecutionStatus?"),
        ("type = 'a'", 1, "Did you mean WorkflowType?"),
        ("ID = 'a'", 1, "Did you mean WorkflowId?"),
        ("Nothing = 'a'", 1, "ParentRunId, RootWorkflowId, RootRunId, TemporalReportedProblems"),
        ("Nothing = 'a'", 1, "from the first run"),
        ("Nothing = 'a'", 1, "search attributes in use: Age, Color"),
        ("Color 'a'", 7, "an operator after Color"),
        ("Color LIKE 'a'", 7, "use STARTS_WITH"),
        ("Color = a", 9, "needs quotes: 'a'"),
        ("Color = 'a", 9, "never closed"),
        ("Color = ", 9, "the end of the filter"),
        ("Color = 'a' Color = 'b'", 13, "AND, OR or the end"),
        ("Color = 'a' ORDER BY StartTime", 13, "leave ORDER BY out"),
        ("Color = 'a' GROUP BY ExecutionStatus", 13, "leave GROUP BY out"),
        ("SELECT x WHERE Color = 'a'", 1, "only the condition"),
        ("NOT (Color = 'a')", 1, "Use !=, NOT IN"),
        ("Color NOT = 'a'", 11, "IN or STARTS_WITH after NOT"),
        ("Color IS 'a'", 10, "expected NULL"),
        ("(Color = 'a'", 13, "')'"),
        ("Color = 'a')", 12, "AND, OR or the end"),
        ("Color IN 'a'", 10, "'('"),
        ("Color IN ()", 11, "a value for Color"),
        ("Age IN (1, 2", 13, "')'"),
        ("Color = 5", 9, "a text in quotes"),
        ("Age = '5'", 7, "has no quotes"),
        ("Age = true", 7, "of type Int"),
        ("Age = 1x", 7, "no number"),
        ("Age = 99999999999999999999", 7, "too large"),
        ("Share = 1e999", 9, "too large"),
        ("Age STARTS_WITH 1", 5, "cannot be compared with STARTS_WITH"),
        ("Paid > true", 6, "cannot be compared with >"),
        ("ExecutionStatus > 'Running'", 17, "cannot be compared"),
        ("ExecutionStatus = 'Cancelled'", 19, "Did you mean Canceled"),
        ("StartTime > '2026-03-01'", 13, "RFC 3339"),
        ("StartTime > '2026-03-01T08:00:00'", 13, "RFC 3339"),
        ("StartTime > 'soon'", 13, "RFC 3339"),
        ("StartTime > 5", 13, "RFC 3339"),
        ("ExecutionDuration > 'long'", 21, "'1h30m'"),
        ("HistoryLength BETWEEN 1, 2", 24, "AND between"),
        ("Color = 'a' & Age = 1", 13, "not part of the language"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(text: str, position: int, says: str) -> None:
    with pytest.raises(FilterError) as caught:
        parse_filter(text, ATTRIBUTES)
    assert says in caught.value.message
    assert f"at character {position}:" in caught.value.message
    assert caught.value.rejection.details["position"] == str(position)
    assert caught.value.code is RejectionCode.INVALID_ARGUMENT


def test_without_known_attributes_any_name_goes_but_a_misspelt_one() -> None:
    parsed = parse_filter("Customer = 'x' AND Age > 5")
    assert len(parsed.conditions) == 2
    with pytest.raises(FilterError, match="Did you mean StartTime"):
        parse_filter("starttime IS NULL")
    with pytest.raises(FilterError, match="different types"):
        parse_filter("Customer IN ('x', 5)")
    with pytest.raises(FilterError, match="text in quotes"):
        parse_filter("Customer STARTS_WITH 5")


def test_a_search_attribute_may_have_the_name_that_people_give_to_another() -> None:
    (condition,) = parse_filter("Status = 'mine'", {"Status": visibility.ANY_TYPE}).conditions
    assert condition == VisibilityCondition(attribute="Status", operator="=", values=("mine",))


def test_bounds() -> None:
    deep = visibility.DEPTH_MAX
    parse_filter("(" * deep + "Color = 'a'" + ")" * deep, ATTRIBUTES)
    for text, says in (
        ("(" * (deep + 1) + "Color = 'a'" + ")" * (deep + 1), "parentheses"),
        (" OR ".join(["Age=1"] * (visibility.COMPARISONS_MAX + 1)), "comparisons"),
        ("Age IN (" + ",".join(["1"] * (visibility.VALUES_MAX + 1)) + ")", "values"),
        ("x" * (visibility.LENGTH_MAX + 1), "characters"),
    ):
        with pytest.raises(FilterError, match=says):
            parse_filter(text, ATTRIBUTES)


def test_the_store_answers_for_every_system_attribute() -> None:
    assert set(visibility.SYSTEM_ATTRIBUTES) == set(SYSTEM_COLUMNS)


WORDS = st.sampled_from(
    [
        *ATTRIBUTES,
        *visibility.SYSTEM_ATTRIBUTES,
        "AND", "OR", "NOT", "IN", "BETWEEN", "STARTS_WITH", "IS", "NULL", "TRUE", "ORDER", "LIKE",
        "(", ")", ",", "=", "!=", "<", ">=", "<>", "'x'", "''", "'Running'", "'2026-03-01T08:00:00Z'", "'1h'", "'5'",
        "1", "-1.5", "1e400", "9" * 30, "'", '"', "`", "`a`", "\\", "--", "\x00", "é", "\ud800", "'\ud800'",
    ]
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.one_of(st.text(max_size=60), st.lists(WORDS, max_size=14).map(" ".join)), st.booleans())
def test_any_text_is_a_filter_or_a_filter_error(text: str, knows_attributes: bool) -> None:
    try:
        parsed = parse_filter(text, ATTRIBUTES if knows_attributes else None)
    except FilterError:
        return
    assert isinstance(parsed, VisibilityFilter)
