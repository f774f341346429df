"""Budgets that span runs: charged exactly, to the window of the ask."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from loopwarden.journal.entries import Asked
from loopwarden.store.api import Store
from loopwarden.store.appends import Appended, ScopeSpent, Spent
from loopwarden.store.errors import StoreError
from loopwarden.store.shared import Scope, ScopeUse
from loopwarden.usage import Usage
from support.store_lab import (
    ALICE,
    CALL,
    StoreLab,
    append,
    ask,
    asked,
    end,
    hand_over,
    journal,
    new_run,
    row_of,
    started,
)

MANY = {"max_total_agents": 1000, "max_extra_attempts": 1000}


async def use_of(store: Store, name: str) -> ScopeUse:
    [use] = [use for use in await store.scopes() if use.scope.name == name]
    return use


async def windows_of(store: Store, run_id: str, seq: int) -> dict[str, str]:
    result = await ask(store, run_id, seq)
    assert isinstance(result, Appended)
    return dict(result.windows)


async def test_an_ask_is_charged_to_every_scope_of_its_run_and_says_so_in_the_journal(store: Store) -> None:
    await store.set_scope(Scope(name="b", max_agents=5), "ops")
    await store.set_scope(Scope(name="a", per="day"), "ops")
    await started(store, "r1", scopes=["b", "a"])
    today = datetime.fromtimestamp(await store.now(), UTC).date().isoformat()
    windows = await windows_of(store, "r1", 1)
    assert windows == {"a": today, "b": "forever"}
    last = (await journal(store, "r1"))[-1].entry
    assert isinstance(last, Asked)
    assert last == asked(1, windows=windows)
    assert [(use.scope.name, use.window, use.agents) for use in await store.scopes()] == [
        ("a", today, 1),
        ("b", "forever", 1),
    ]


async def test_repeats_count_as_agents_too(store: Store) -> None:
    await store.set_scope(Scope(name="a", max_agents=2), "ops")
    await started(store, "r1", scopes=["a"])
    await ask(store, "r1", 1)
    await ask(store, "r1", 1, attempt=2)
    assert await ask(store, "r1", 2) == ScopeSpent(
        scope="a", measure="agents", used=2, limit=2, frees_at=None, wait=False
    )


async def test_a_refused_ask_charges_nothing_anywhere(store: Store) -> None:
    await store.set_scope(Scope(name="a"), "ops")
    await store.set_scope(Scope(name="b", max_agents=0, on_budget="wait"), "ops")
    await started(store, "r1", scopes=["a", "b"])
    before = await row_of(store, "r1")
    spent = await ask(store, "r1", 1)
    assert isinstance(spent, ScopeSpent)
    assert (spent.scope, spent.wait) == ("b", True)
    assert [use.agents for use in await store.scopes()] == [0, 0]
    assert await row_of(store, "r1") == before


async def test_the_cap_of_a_scope_is_exact_over_runs_and_batches(store: Store) -> None:
    await store.set_scope(Scope(name="a", max_agents=50), "ops")
    for n in range(8):
        await started(store, f"r{n}", scopes=["a"], limits=MANY)
    results = await asyncio.gather(
        *(hand_over(store, f"r{n}", 1, asked(seq), charge=CALL) for seq in range(1, 21) for n in range(8))
    )
    assert sum(isinstance(result, Appended) for result in results) == 50
    assert sum(isinstance(result, ScopeSpent) for result in results) == 110
    assert (await use_of(store, "a")).agents == 50
    assert sum([(await row_of(store, f"r{n}")).calls for n in range(8)]) == 50


async def test_usage_belongs_to_the_window_of_the_ask(lab: StoreLab) -> None:
    await lab.store.set_scope(Scope(name="a", per="day", max_tokens=100), "ops")
    await started(lab.store, "r1", scopes=["a"], limits=MANY)
    windows = await windows_of(lab.store, "r1", 1)
    await lab.pass_seconds(86_400)
    await lab.store.renew(ALICE, {"r1": 1})
    await end(lab.store, "r1", 1, windows=windows, usage=Usage(input_tokens=400, output_tokens=100, cost_usd=1.5))
    use = await use_of(lab.store, "a")
    assert (use.window != windows["a"], use.agents, use.tokens, use.cost_usd) == (True, 0, 0, 0.0)
    assert await windows_of(lab.store, "r1", 2) == {"a": use.window}


async def test_tokens_and_cost_are_checked_before_each_ask(store: Store) -> None:
    await store.set_scope(Scope(name="t", max_tokens=500), "ops")
    await store.set_scope(Scope(name="c", max_cost_usd=1.0), "ops")
    await started(store, "r1", scopes=["t"])
    await started(store, "r2", scopes=["c"])
    for run_id in ("r1", "r2"):
        windows = await windows_of(store, run_id, 1)
        await end(store, run_id, 1, windows=windows, usage=Usage(input_tokens=400, output_tokens=100, cost_usd=1.25))
    assert await ask(store, "r1", 2) == ScopeSpent(
        scope="t", measure="tokens", used=500, limit=500, frees_at=None, wait=False
    )
    assert await ask(store, "r2", 2) == ScopeSpent(
        scope="c", measure="cost", used=1.25, limit=1.0, frees_at=None, wait=False
    )


@pytest.mark.parametrize(
    ("usage", "tokens", "cost", "unknown"),
    [
        (None, 0, 0.0, 1),
        (Usage(), 0, 0.0, 1),
        (Usage(input_tokens=3, output_tokens=4), 7, 0.0, 0),
        (Usage(output_tokens=4), 4, 0.0, 0),
        (Usage(input_tokens=0), 0, 0.0, 0),
        (Usage(cost_usd=0.5), 0, 0.5, 0),
    ],
)
async def test_usage_that_is_missing_is_unknown_not_zero(
    store: Store, usage: Usage | None, tokens: int, cost: float, unknown: int
) -> None:
    await store.set_scope(Scope(name="a"), "ops")
    await started(store, "r1", scopes=["a"])
    windows = await windows_of(store, "r1", 1)
    await end(store, "r1", 1, windows=windows, usage=usage)
    use = await use_of(store, "a")
    assert (use.tokens, use.cost_usd, use.unknown_usage) == (tokens, cost, unknown)


async def test_a_budget_that_is_raised_lets_the_next_ask_through(store: Store) -> None:
    await store.set_scope(Scope(name="a", max_agents=0), "ops")
    await started(store, "r1", scopes=["a"])
    assert isinstance(await ask(store, "r1", 1), ScopeSpent)
    await store.set_scope(Scope(name="a", max_agents=1), "boss")
    assert isinstance(await ask(store, "r1", 1), Appended)
    log = await store.scope_log("a")
    assert [(change.by, change.scope.max_agents) for change in log] == [("ops", 0), ("boss", 1)]
    assert log[1].at == pytest.approx(await store.now(), abs=5)
    assert await store.scope_log("none") == []


async def test_a_new_window_frees_the_budget(lab: StoreLab) -> None:
    await lab.store.set_scope(Scope(name="a", max_agents=1, per="day", zone="Europe/Berlin"), "ops")
    await started(lab.store, "r1", scopes=["a"])
    await ask(lab.store, "r1", 1)
    spent = await ask(lab.store, "r1", 2)
    assert isinstance(spent, ScopeSpent)
    assert spent.frees_at is not None
    assert 0 < spent.frees_at - await lab.store.now() <= 86_400
    await lab.pass_seconds(spent.frees_at - await lab.store.now() + 1)
    await lab.store.renew(ALICE, {"r1": 1})
    assert isinstance(await ask(lab.store, "r1", 2), Appended)


async def test_a_scope_that_nobody_set_has_no_limit_but_is_counted(store: Store) -> None:
    await started(store, "r1", scopes=["a"])
    assert await windows_of(store, "r1", 1) == {"a": "forever"}
    await store.set_scope(Scope(name="a", max_agents=1), "ops")
    assert isinstance(await ask(store, "r1", 2), ScopeSpent)


async def test_a_scope_that_cannot_be_is_refused(store: Store) -> None:
    with pytest.raises(StoreError, match="there is no time zone 'Mars/Olympus'"):
        await store.set_scope(Scope(name="a", zone="Mars/Olympus"), "ops")
    with pytest.raises(StoreError, match="max_agents"):
        await store.set_scope(Scope(name="a", max_agents=-1), "ops")
    assert await store.scopes() == []


async def test_an_ask_that_the_run_may_not_make_charges_no_scope(store: Store) -> None:
    await store.set_scope(Scope(name="a"), "ops")
    await store.create([new_run("r1", scopes=["a"])])
    await append(store, "r1", 1, asked(1), charge=CALL)
    assert (await use_of(store, "a")).agents == 0


@pytest.mark.parametrize(
    ("limits", "usage", "unknown"),
    [
        ({"max_cost_usd": 5.0}, Usage(input_tokens=3, output_tokens=4), 1),
        ({"max_cost_usd": 5.0}, Usage(cost_usd=0.0), 0),
        ({"max_tokens": 5}, Usage(cost_usd=0.5), 1),
        ({"max_tokens": 5}, Usage(output_tokens=4), 0),
        ({"max_agents": 5}, Usage(cost_usd=0.5), 0),
    ],
)
async def test_what_a_budget_bounds_and_is_not_told_is_unknown_not_zero(
    store: Store, limits: dict[str, Any], usage: Usage, unknown: int
) -> None:
    await store.set_scope(Scope(name="a", **limits), "ops")
    await started(store, "r1", scopes=["a"])
    windows = await windows_of(store, "r1", 1)
    await end(store, "r1", 1, windows=windows, usage=usage)
    assert (await use_of(store, "a")).unknown_usage == unknown


async def test_no_provider_can_bring_a_sum_to_where_the_budget_cannot_be_read_any_more(store: Store) -> None:
    most = 2**53 - 1
    await store.set_scope(Scope(name="a"), "ops")
    await started(store, "r1", scopes=["a"], limits=MANY)
    for seq in (1, 2):
        windows = await windows_of(store, "r1", seq)
        usage = Usage(input_tokens=most, output_tokens=most, cost_usd=1e12)
        for _ in range(600):
            last = hand_over(store, "r1", 1, spent=Spent(windows=windows, usage=usage))
        assert isinstance(await last, Appended)
    use = await use_of(store, "a")
    assert (use.agents, use.tokens, use.cost_usd) == (2, most, 1e15)
    assert isinstance(await ask(store, "r1", 3), Appended)


async def test_whoever_changes_a_budget_may_have_any_name(store: Store) -> None:
    await store.set_scope(Scope(name="a"), "j\udce4r\0g")
    [change] = await store.scope_log("a")
    assert change.by == "j?r\N{REPLACEMENT CHARACTER}g"
