"""Breakers: when a provider is out of use, what its runs do then, and how it comes back. Time is virtual."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from loopwarden import BreakerRule, FailureClass, Limits, Policy, Wait
from loopwarden.breaker import BreakerBoard, read_breakers, write_breaker
from loopwarden.slots import AgentSlots
from support.broker_lab import EPOCH, BrokerLab, ScriptedProvider, VirtualClock, failure

PLAN_LIMIT = {"failure_class": FailureClass.RATE_LIMITED, "resets_at": EPOCH + 7200}


def test_a_breaker_that_opens_stops_a_fan_out_at_once_and_names_the_class() -> None:
    async def case() -> None:
        provider = ScriptedProvider([failure(FailureClass.AUTH, evidence="401 Unauthorized")], hold=asyncio.Event())
        limits = Limits(max_concurrent_agents=4)
        lab = BrokerLab(providers={"main": provider}, policies={"main": Policy(breaker=BreakerRule())}, limits=limits)
        for _ in range(20):
            lab.call()
        await lab.settle()
        assert provider.hold is not None
        provider.hold.set()
        await lab.run_out()
        await lab.broker.ended()
        assert len(provider.requests) == 4, "nobody was asked after the first failure"
        [stopped] = lab.failures
        assert stopped.code.value == "AGENT_START"
        assert stopped.details == {
            "provider": "main", "class": "auth", "evidence": "401 Unauthorized", "reopensAt": EPOCH + 900
        }  # fmt: skip
        assert "is out of use: auth (401 Unauthorized)" in stopped.message

    asyncio.run(case())


def test_half_open_lets_one_agent_try_and_the_others_wait_for_what_it_finds() -> None:
    async def case(second: Any, asked: int, failures: int) -> None:
        clock = VirtualClock()
        policy = Policy(breaker=BreakerRule(failures=1, reopen_seconds=900))
        board = BreakerBoard({"main": policy.breaker or BreakerRule()}, None, clock.wall)
        assert board.failed("main", None, FailureClass.OVERLOADED, None) is not None
        clock.advance(899)
        assert board.out_of_use("main") is not None
        clock.advance(1)
        provider = ScriptedProvider([second], hold=asyncio.Event())
        lab = BrokerLab(providers={"main": provider}, policies={"main": policy}, clock=clock, board=board)
        for _ in range(3):
            lab.call()
        await lab.settle()
        assert len(provider.requests) == 1
        assert provider.hold is not None
        provider.hold.set()
        await lab.run_out()
        assert len(provider.requests) == asked
        assert len(lab.failures) == failures

    asyncio.run(case("ok", asked=3, failures=0))
    asyncio.run(case(failure(FailureClass.CRASHED), asked=1, failures=1))


def half_open(clock: VirtualClock) -> BreakerBoard:
    """A board on which one agent may try `main`."""
    board = BreakerBoard({"main": BreakerRule(failures=1, reopen_seconds=900)}, None, clock.wall)
    board.failed("main", None, FailureClass.OVERLOADED, None)
    clock.advance(900)
    return board


def test_only_the_agent_that_tries_a_provider_out_decides_when_the_next_one_may() -> None:
    clock, told = VirtualClock(), list[str]()
    board = half_open(clock)
    board.starts("main", "prober")
    board.undecided("main", "began before")
    assert board.failed("main", "began before", FailureClass.AUTH, None) is None
    assert board.is_tried_out("main", told.append)
    assert told == []
    board.undecided("main", "prober")
    assert told == ["main"]
    assert not board.is_tried_out("main", told.append)


def test_a_failure_of_an_agent_that_began_before_does_not_put_off_the_next_try() -> None:
    clock = VirtualClock()
    board = BreakerBoard({"main": BreakerRule(failures=2, reopen_seconds=900)}, None, clock.wall)
    board.failed("main", "one", FailureClass.BILLING, "402")
    clock.advance(800)
    state = board.failed("main", "two", FailureClass.TIMEOUT, None)
    assert state is not None
    assert (state.failure_class, state.evidence, state.reopens_at) == (FailureClass.BILLING, "402", EPOCH + 900)


def test_an_answer_of_an_agent_that_began_before_closes_a_breaker() -> None:
    clock, told = VirtualClock(), list[str]()
    board = half_open(clock)
    board.starts("main", "prober")
    assert board.is_tried_out("main", told.append)
    board.succeeded("main")
    assert told == ["main"]
    assert not board.is_tried_out("main", told.append)


def test_calls_that_wait_for_what_is_found_out_do_not_hold_up_other_providers() -> None:
    async def case() -> None:
        clock = VirtualClock()
        main, other = ScriptedProvider([], hold=asyncio.Event()), ScriptedProvider([])
        lab = BrokerLab(providers={"main": main, "other": other}, clock=clock, board=half_open(clock))
        calls = [lab.call(), lab.call(), lab.call(), lab.call(provider="other")]
        await lab.settle()
        assert lab.replies == {calls[3]: "ok"}
        assert len(main.requests) == 1
        assert main.hold is not None
        main.hold.set()
        await lab.run_out()
        assert [request.seq for request in main.requests] == calls[:3]

    asyncio.run(case())


def test_a_rate_limit_that_no_repeat_is_left_for_counts_for_the_breaker() -> None:
    async def case() -> None:
        provider = ScriptedProvider([failure(**PLAN_LIMIT)] * 20)
        policy = Policy(wait=Wait(), breaker=BreakerRule(failures=2))
        limits = Limits(max_extra_attempts=3, max_concurrent_agents=1)
        lab = BrokerLab(providers={"main": provider}, policies={"main": policy}, limits=limits)
        for _ in range(20):
            lab.call()
        await lab.settle()
        assert len(provider.requests) == 3 + 2, "three wait, two show that it is no use"
        [stopped] = lab.failures
        assert stopped.details["class"] == "rateLimited"
        await lab.broker.ended()
        assert not lab.clock.jump(), "no timer is left"

    asyncio.run(case())


def test_a_fallback_that_is_out_of_use_does_not_take_over() -> None:
    async def case() -> None:
        clock = VirtualClock()
        rules = {"main": BreakerRule(), "other": BreakerRule()}
        board = BreakerBoard(rules, None, clock.wall)
        board.failed("other", None, FailureClass.BILLING, None)
        lab = BrokerLab(
            providers={"main": ScriptedProvider([failure(FailureClass.AUTH)]), "other": ScriptedProvider([])},
            policies={"main": Policy(fallback="other")},
            clock=clock,
            board=board,
        )
        lab.call()
        await lab.settle()
        [stopped] = lab.failures
        assert (stopped.details["provider"], stopped.details["class"]) == ("main", "auth")
        assert lab.remarks == []

    asyncio.run(case())


@pytest.mark.parametrize("foreign", [17, b"\x80", "\udc80", "x" * 10_000_000])
def test_foreign_evidence_opens_a_breaker_all_the_same(foreign: Any, tmp_path: Path) -> None:
    async def case() -> None:
        clock = VirtualClock()
        board = BreakerBoard({"main": BreakerRule()}, tmp_path, clock.wall)
        lab = BrokerLab(
            providers={"main": ScriptedProvider([failure(FailureClass.AUTH, evidence=foreign)])},
            clock=clock,
            board=board,
        )
        lab.call()
        await lab.run_out()
        [stopped] = lab.failures
        assert len(stopped.message.encode()) < 1000
        assert read_breakers(tmp_path)["main"].failure_class is FailureClass.AUTH

    asyncio.run(case())


def test_a_breaker_outlives_its_host(tmp_path: Path) -> None:
    clock = VirtualClock()
    rule = BreakerRule(failures=2, reopen_seconds=900)
    board = BreakerBoard({"main": rule}, tmp_path, clock.wall)
    board.failed("main", None, FailureClass.OVERLOADED, "529")
    assert read_breakers(tmp_path) == {}
    board.failed("main", None, FailureClass.OVERLOADED, "529")
    [(name, state)] = read_breakers(tmp_path).items()
    assert (name, state.failure_class, state.failures, state.reopens_at) == ("main", "overloaded", 2, EPOCH + 900)
    assert BreakerBoard({"main": rule}, tmp_path, clock.wall).out_of_use("main") == state
    board.succeeded("main")
    assert read_breakers(tmp_path) == {}
    (tmp_path / "breakers.json").write_text('{"main": {"failureClass": "nonsense"}}')
    assert BreakerBoard({"main": rule}, tmp_path, clock.wall).out_of_use("main") is None


def test_a_run_that_ends_while_its_calls_wait_for_what_is_found_out_is_not_called_back() -> None:
    async def case() -> None:
        clock = VirtualClock()
        board = half_open(clock)
        board.starts("main", "an agent of another run")
        provider = ScriptedProvider([])
        lab = BrokerLab(providers={"main": provider}, clock=clock, board=board)
        lab.call()
        await lab.settle()
        assert len(board._breakers["main"].waiting) == 1
        lab.broker.stop()
        await lab.broker.ended()
        assert board._breakers["main"].waiting == []
        board.undecided("main", "an agent of another run")
        await lab.settle()
        assert provider.requests == []

    asyncio.run(case())


def test_a_run_that_ends_while_it_waits_for_a_slot_of_the_host_is_not_called_back() -> None:
    async def case() -> None:
        slots = AgentSlots(1)
        assert slots.take(lambda: None)
        lab = BrokerLab(providers={"main": ScriptedProvider([])}, slots=slots)
        lab.call()
        await lab.settle()
        assert len(slots._waiting) == 1
        lab.broker.stop()
        await lab.broker.ended()
        assert not slots._waiting

    asyncio.run(case())


def test_a_breaker_that_a_probe_has_closed_is_closed_for_a_host_that_runs(tmp_path: Path) -> None:
    clock = VirtualClock()
    board = BreakerBoard({"main": BreakerRule()}, tmp_path, clock.wall)
    assert board.failed("main", "agent", FailureClass.AUTH, None) is not None
    assert board.out_of_use("main") is not None
    write_breaker(tmp_path, "main", None)
    assert board.out_of_use("main") is None
