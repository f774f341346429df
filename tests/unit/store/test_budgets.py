"""When a budget refuses an ask, and which budgets can be."""

import math
from dataclasses import replace
from typing import Any

import pytest

from loopwarden.store.appends import ScopeSpent
from loopwarden.store.budgets import check_scope, refusal
from loopwarden.store.shared import Scope, ScopeUse

SCOPE = Scope(name="nightly", max_agents=10, max_tokens=1000, max_cost_usd=5.0, per="day", zone="Europe/Berlin")
FREES_AT = 1_796_000_000.0


def use(agents: int = 0, tokens: int = 0, cost_usd: float = 0.0, scope: Scope = SCOPE) -> ScopeUse:
    return ScopeUse(
        scope=scope, window="2026-11-30", frees_at=FREES_AT, agents=agents, tokens=tokens, cost_usd=cost_usd,
        unknown_usage=3,
    )  # fmt: skip


def spent(measure: Any, used: float, limit: float) -> ScopeSpent:
    return ScopeSpent(scope="nightly", measure=measure, used=used, limit=limit, frees_at=FREES_AT, wait=False)


def test_agents_are_exact() -> None:
    assert refusal(SCOPE, use(agents=9)) is None
    assert refusal(SCOPE, use(agents=10)) == spent("agents", 10, 10)
    assert refusal(SCOPE, use(agents=12)) == spent("agents", 12, 10)  # the budget was lowered meanwhile


def test_tokens_and_money_refuse_once_the_limit_is_reached() -> None:
    assert refusal(SCOPE, use(tokens=999, cost_usd=4.99)) is None
    assert refusal(SCOPE, use(tokens=1000)) == spent("tokens", 1000, 1000)
    assert refusal(SCOPE, use(cost_usd=5.0)) == spent("cost", 5.0, 5.0)


def test_what_is_unknown_refuses_nothing_and_frees_nothing() -> None:
    unlimited = Scope(name="nightly")
    assert refusal(unlimited, use(agents=10**9, tokens=10**12, cost_usd=1e9, scope=unlimited)) is None


def test_a_limit_of_zero_lets_nothing_begin() -> None:
    for name, measure in (("max_agents", "agents"), ("max_tokens", "tokens"), ("max_cost_usd", "cost")):
        scope = replace(Scope(name="nightly"), **{name: 0})
        assert refusal(scope, use(scope=scope)) == spent(measure, 0, 0)


def test_a_refusal_says_whether_to_wait() -> None:
    waiting = refusal(replace(SCOPE, on_budget="wait"), use(agents=10))
    assert waiting is not None
    assert waiting.wait


@pytest.mark.parametrize(
    "scope", [SCOPE, Scope(name="tenant:acme"), Scope(name="a/b.c_d-E9", max_agents=0, max_cost_usd=0), replace(
        SCOPE, name="x" * 200, max_tokens=2**53 - 1, per="forever", on_budget="wait")],
)  # fmt: skip
def test_scopes_that_can_be_are_taken(scope: Scope) -> None:
    check_scope(scope)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"name": ""}, "the name of a budget has 1 to 200 characters"),
        ({"name": "x" * 201}, "the name of a budget has 1 to 200 characters"),
        ({"name": "a b"}, "'a b' cannot name a budget; use letters (a to z), digits and : . _ - /"),
        ({"name": "ä"}, "'ä' cannot name a budget"),
        ({"name": "a\n"}, r"'a\n' cannot name a budget"),
        ({"max_agents": -1}, "max_agents of the budget nightly is a whole number from 0, or nothing for no limit"),
        ({"max_agents": True}, "max_agents of the budget nightly is a whole number"),
        ({"max_agents": 1.0}, "max_agents of the budget nightly is a whole number"),
        ({"max_tokens": -5}, "max_tokens of the budget nightly is a whole number"),
        ({"max_tokens": 2**53}, "max_tokens of the budget nightly is a whole number"),
        ({"max_cost_usd": -0.01}, "max_cost_usd of the budget nightly is an amount from 0, or nothing for no limit"),
        ({"max_cost_usd": math.inf}, "max_cost_usd of the budget nightly is an amount"),
        ({"max_cost_usd": math.nan}, "max_cost_usd of the budget nightly is an amount"),
        ({"max_cost_usd": "5"}, "max_cost_usd of the budget nightly is an amount"),
        ({"per": "year"}, "per of the budget nightly is one of forever, day, week, month"),
        ({"on_budget": "hold"}, 'on_budget of the budget nightly is "end" or "wait"'),
        ({"zone": "Mars/Olympus"}, "there is no time zone 'Mars/Olympus'"),
    ],
)
def test_a_scope_that_cannot_be_is_refused_with_a_sentence(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 -- the whole sentence is looked at
        check_scope(replace(SCOPE, **change))
    assert sentence in str(caught.value)
