"""What policies, breakers and the cap on money mean for a run in progress. Time is virtual, order is controlled."""

import asyncio
import math
import re
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from loopwarden import (
    AgentFailed,
    AgentReply,
    AgentRequest,
    BreakerRule,
    Capabilities,
    FailureClass,
    Limits,
    Policy,
    Retry,
    Usage,
    Wait,
)
from loopwarden.attempt import Failed
from loopwarden.policy import check_policies
from loopwarden.slots import AgentSlots
from support.broker_lab import EPOCH, BrokerLab, ScriptedProvider, VirtualClock, failure

STREAMS = Capabilities(structured_output=True, fresh_context=True, streams=True)
CONVERSES = Capabilities(structured_output=True, fresh_context=True, streams=True, converses=True)
PRICED = Capabilities(structured_output=True, fresh_context=True, cost_known=True)
PLAN_LIMIT = {"failure_class": FailureClass.RATE_LIMITED, "resets_at": EPOCH + 7200}


def run(case: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(case())


def retry_of(*classes: FailureClass, times: int = 3) -> Policy:
    return Policy(retry=Retry(classes=frozenset(classes), times=times, first_seconds=10))


def test_a_call_that_waits_holds_no_slot_and_says_until_when() -> None:
    async def case() -> None:
        provider = ScriptedProvider([failure(**PLAN_LIMIT)])
        limits = Limits(max_extra_attempts=1, max_concurrent_agents=1)
        lab = BrokerLab(providers={"main": provider}, policies={"main": Policy(wait=Wait())}, limits=limits)
        first, second = lab.call("first"), lab.call("second")
        await lab.settle()
        assert lab.replies == {second: "ok"}
        assert lab.remarks[0].startswith("attempt 1 of main failed (rateLimited)")
        assert lab.remarks[1].startswith("waiting until ")
        assert lab.remarks[1].endswith(", 2 h left")
        lab.clock.advance(600)
        assert lab.remarks[2].endswith(", 1 h 50 min left")
        await lab.run_out()
        assert lab.replies == {second: "ok", first: "ok"}
        assert [request.prompt for request in provider.requests] == ["first", "second", "first"]
        assert lab.clock.time == 7205

    run(case)


def test_cancelling_the_run_ends_a_wait_at_once() -> None:
    async def case() -> None:
        lab = BrokerLab(
            providers={"main": ScriptedProvider([failure(**PLAN_LIMIT)])}, policies={"main": Policy(wait=Wait())}
        )
        lab.call()
        await lab.settle()
        lab.broker.stop()
        await lab.broker.ended()
        assert lab.clock.time == 0
        assert [(end.outcome.value, end.attempts) for end in lab.ends] == [("cancelled", 1)]
        assert not lab.clock.jump(), "no timer is left"

    run(case)


def test_a_machine_that_slept_goes_on_at_the_time_that_was_meant() -> None:
    class SleptClock(VirtualClock):
        slept = 0.0

        def wall(self) -> float:
            return EPOCH + self.time + self.slept

    async def case() -> None:
        clock = SleptClock()
        lab = BrokerLab(
            providers={"main": ScriptedProvider([failure(**PLAN_LIMIT)])},
            policies={"main": Policy(wait=Wait())},
            clock=clock,
        )
        lab.call()
        await lab.settle()
        clock.slept = 8 * 3600
        await lab.run_out()
        assert lab.replies == {1: "ok"}
        assert clock.time == 600

    run(case)


def test_an_attempt_that_takes_too_long_is_asked_again_and_its_late_end_changes_nothing() -> None:
    async def case() -> None:
        late = asyncio.Event()

        class Stubborn(ScriptedProvider):
            async def reply(self, request: AgentRequest) -> str:
                self.requests.append(request)
                if request.attempt == 1:
                    while not late.is_set():
                        try:
                            await late.wait()
                        except asyncio.CancelledError:
                            continue
                    return "too late"
                return "in time"

        limits = Limits(max_extra_attempts=1, agent_timeout_seconds=100, agent_grace_seconds=5)
        lab = BrokerLab(
            providers={"main": Stubborn([])}, policies={"main": retry_of(FailureClass.TIMEOUT)}, limits=limits
        )
        lab.call()
        await lab.run_out()
        late.set()
        await lab.settle()
        assert lab.replies == {1: "in time"}
        assert [end.outcome.value for end in lab.ends] == ["completed"]
        assert lab.asks() == [("main", "first", 0), ("main", "retry", 5)]
        assert lab.clock.time == 100 + 5 + 10 + 5  # its time, the grace, until it is given up, the pause

    run(case)


def test_the_time_of_an_attempt_begins_with_the_attempt() -> None:
    async def case() -> None:
        provider = ScriptedProvider([failure(**PLAN_LIMIT), "silence"])
        limits = Limits(max_extra_attempts=1, agent_timeout_seconds=100)
        lab = BrokerLab(providers={"main": provider}, policies={"main": Policy(wait=Wait())}, limits=limits)
        lab.call()
        await lab.run_out()
        [end] = lab.ends
        assert end.failure_class is FailureClass.TIMEOUT
        assert end.seconds == 7205 + 100

    run(case)


@pytest.mark.parametrize("sign", ["progress", "alive", "remark"])
def test_what_counts_as_a_sign_of_life(sign: str) -> None:
    async def case() -> None:
        provider = ScriptedProvider(["silence"], capabilities=STREAMS)
        lab = BrokerLab(providers={"main": provider}, limits=Limits(agent_timeout_seconds=1000, agent_idle_seconds=50))
        lab.call()
        await lab.settle()
        lab.clock.advance(40)
        request = provider.requests[0]
        request.alive() if sign == "alive" else getattr(request, sign)("words")
        await lab.run_out()
        [end] = lab.ends
        assert end.failure_class is FailureClass.IDLE
        assert end.seconds == (50 if sign == "remark" else 90)
        assert lab.remarks == ([] if sign == "alive" else ["words"])

    run(case)


def test_what_a_stopped_program_could_still_say_is_the_class() -> None:
    class Retrying(ScriptedProvider):
        async def reply(self, request: AgentRequest) -> str:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise failure(
                    FailureClass.RATE_LIMITED, evidence="429, attempt 7", usage=Usage(input_tokens=5)
                ) from None
            return ""

    async def case() -> None:
        lab = BrokerLab(providers={"main": Retrying([])}, limits=Limits(agent_timeout_seconds=10))
        lab.call()
        await lab.run_out()
        [end] = lab.ends
        assert end.failure_class is FailureClass.RATE_LIMITED
        assert end.reason == "it took longer than agentTimeoutSeconds allows, 10 s; before that: it failed"
        assert lab.broker.spending.usage == Usage(input_tokens=5)

    run(case)


@pytest.mark.parametrize(("wrap_up_seconds", "asked_at"), [(30, 70), (80, 50), (0, 100)])
def test_an_agent_that_can_be_spoken_to_is_asked_to_hand_over(wrap_up_seconds: float, asked_at: float) -> None:
    async def case() -> None:
        provider = ScriptedProvider(["silence"], capabilities=CONVERSES)
        limits = Limits(agent_timeout_seconds=100, agent_idle_seconds=500, wrap_up_seconds=wrap_up_seconds)
        lab = BrokerLab(providers={"main": provider}, limits=limits)
        lab.call()
        await lab.settle()
        wrap_up = provider.requests[0].wrap_up
        assert wrap_up is not None
        lab.clock.advance(asked_at - 1)
        assert not wrap_up.is_set()
        lab.clock.advance(1)
        assert wrap_up.is_set() == (wrap_up_seconds > 0)
        lab.broker.stop()
        await lab.broker.ended()

    run(case)


def test_a_run_that_ends_while_a_slot_changes_hands_leaves_no_wait_behind() -> None:
    """The slot of the call that will wait goes to the next one, which may not be asked: the money is spent."""

    async def case() -> None:
        clock, slots = VirtualClock(), AgentSlots(1)
        limited = failure(**PLAN_LIMIT, usage=Usage(cost_usd=2.0))
        lab = BrokerLab(
            providers={"main": ScriptedProvider([limited], capabilities=PRICED)},
            policies={"main": Policy(wait=Wait())},
            limits=Limits(max_extra_attempts=5, max_cost_usd=1.0),
            clock=clock,
            slots=slots,
        )
        lab.call()
        lab.call()
        await lab.settle()
        assert [stopped.code.value for stopped in lab.failures] == ["COST_CAP"]
        await lab.broker.ended()
        assert [end.outcome.value for end in lab.ends] == ["cancelled"]
        assert clock.next_due is None, "no timer is left"

    run(case)


def test_a_long_reason_does_not_hide_what_is_done_about_it() -> None:
    async def case() -> None:
        long = AgentFailed("x" * 5000, failure_class=FailureClass.CRASHED)
        lab = BrokerLab(providers={"main": ScriptedProvider([long])}, policies={"main": retry_of(FailureClass.CRASHED)})
        lab.call()
        await lab.run_out()
        assert lab.remarks[0].endswith("…; asking again in 5 s")

    run(case)


def test_the_cost_of_an_attempt_that_was_stopped_is_unknown() -> None:
    async def case() -> None:
        lab = BrokerLab(
            providers={"main": ScriptedProvider(["silence", "silence"])}, limits=Limits(agent_timeout_seconds=10)
        )
        lab.call()
        await lab.run_out()
        assert lab.broker.spending.unknown_attempts == 1
        lab.call()
        await lab.settle()
        lab.broker.stop()
        await lab.broker.ended()
        assert lab.broker.spending.unknown_attempts == 2

    run(case)


def test_the_cap_on_money_is_looked_at_before_each_ask() -> None:
    async def case() -> None:
        provider = ScriptedProvider(
            [
                AgentReply(text="one", usage=Usage(cost_usd=0.6)),
                failure(FailureClass.CRASHED, usage=Usage(cost_usd=0.5)),
            ],
            capabilities=PRICED,
        )
        limits = Limits(max_cost_usd=1.0, max_extra_attempts=5, max_concurrent_agents=1)
        lab = BrokerLab(providers={"main": provider}, policies={"main": retry_of(FailureClass.CRASHED)}, limits=limits)
        lab.call()
        lab.call()
        await lab.run_out()
        assert [request.max_cost_usd for request in provider.requests] == [1.0, pytest.approx(0.4)]
        [stopped] = lab.failures
        assert stopped.code.value == "COST_CAP"
        assert "$1.10" in stopped.message
        assert "$1.00" in stopped.message

    run(case)


def test_a_provider_that_does_not_say_what_it_costs_is_not_asked_under_a_cap_on_money() -> None:
    async def case() -> None:
        cheap, blind = ScriptedProvider([], capabilities=PRICED), ScriptedProvider([])
        lab = BrokerLab(providers={"cheap": cheap, "blind": blind}, limits=Limits(max_cost_usd=1.0))
        lab.call(provider="blind")
        await lab.settle()
        assert [stopped.code.value for stopped in lab.failures] == ["AGENT_START"]
        assert blind.requests == []

    run(case)


def test_unknown_usage_stays_unknown() -> None:
    async def case() -> None:
        provider = ScriptedProvider(
            ["no word of it", AgentReply(text="x", usage=Usage(input_tokens=7)), AgentReply(text="y", usage="nonsense")]  # type: ignore[arg-type]
        )
        lab = BrokerLab(providers={"main": provider})
        for _ in range(3):
            lab.call()
        await lab.run_out()
        assert lab.broker.spending.usage == Usage(input_tokens=7)
        assert lab.broker.spending.unknown_attempts == 3

    run(case)


@pytest.mark.parametrize(
    ("policies", "complaint"),
    [
        ({"other": Policy()}, "which does not exist"),
        ({"main": Policy(fallback="other")}, "does not exist"),
        ({"main": Policy(fallback="main")}, "its own fallback"),
    ],
)
def test_a_policy_names_providers_that_exist(policies: dict[str, Policy], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        check_policies(policies, {"main": object()})


@pytest.mark.parametrize(
    "make",
    [
        lambda: Retry(classes=frozenset()),
        lambda: Retry(classes=frozenset({FailureClass.CANCELLED})),
        lambda: Retry(classes=frozenset({FailureClass.CRASHED}), times=0),
        lambda: Retry(classes=frozenset({FailureClass.CRASHED}), factor=0.5),
        lambda: Retry(classes=frozenset({FailureClass.CRASHED}), first_seconds=-1),
        lambda: Wait(max_seconds=0),
        lambda: BreakerRule(failures=0),
        lambda: BreakerRule(reopen_seconds=0),
        lambda: BreakerRule(reopen_seconds=math.inf),
        lambda: BreakerRule(reopen_seconds=math.nan),
        lambda: Wait(max_seconds=math.nan),
        lambda: Retry(classes=frozenset({FailureClass.CRASHED}), first_seconds=math.nan),
        lambda: Retry(classes=frozenset({FailureClass.CRASHED}), max_seconds=math.inf),
        lambda: Retry(classes=frozenset({FailureClass.CRASHED}), max_server_delay_seconds=math.nan),
        lambda: Retry(classes=frozenset({FailureClass.CRASHED}), factor=math.nan),
    ],
)
def test_a_grant_that_makes_no_sense_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"."):
        make()


def test_what_agents_printed_is_not_kept_in_memory() -> None:
    async def case() -> None:
        schema = {"type": "object"}
        provider = ScriptedProvider(
            [AgentReply(text="long", value={"a": 1}), AgentReply(text="long")], capabilities=STREAMS
        )
        lab = BrokerLab(providers={"main": provider})
        lab.call(schema=schema)
        lab.call(schema=schema)
        await lab.run_out()
        assert lab.replies == {1: {"a": 1}, 2: None}
        ends = [agent.attempts[0].end for agent in lab.broker.agents]
        assert [getattr(end, "text", None) for end in ends] == ["", ""]

    run(case)


def test_repeats_of_a_call_do_not_take_the_provider_from_the_others() -> None:
    async def case() -> None:
        policy = Policy(
            retry=Retry(classes=frozenset({FailureClass.OVERLOADED}), times=5, first_seconds=10),
            breaker=BreakerRule(failures=2),
        )
        provider = ScriptedProvider([failure(FailureClass.OVERLOADED)] * 5)
        lab = BrokerLab(providers={"main": provider}, policies={"main": policy})
        lab.call()
        await lab.run_out()
        assert lab.replies == {1: "ok"}
        assert lab.failures == []

    run(case)


@pytest.mark.parametrize(
    ("wait", "left_seconds", "note"),
    [
        (Wait(), 7100.0, "the limit ends at .*, in 2 h, and the run's deadline comes before"),
        (Wait(max_seconds=3600), 90000.0, "the limit ends at .*, in 2 h; max_seconds of the wait policy allows 1 h"),
        (None, 90000.0, "the limit ends at .*, in 2 h; a wait policy would wait for it"),
    ],
)
def test_a_limit_that_is_not_waited_for_is_explained(wait: Wait | None, left_seconds: float, note: str) -> None:
    async def case() -> None:
        lab = BrokerLab(
            providers={"main": ScriptedProvider([failure(**PLAN_LIMIT)])}, policies={"main": Policy(wait=wait)}
        )
        lab.broker.set_deadline(left_seconds)
        lab.call()
        await lab.run_out()
        assert lab.clock.time == 0
        [found] = lab.broker.agents[0].notes
        assert re.fullmatch(note, found)

    run(case)


def test_a_call_that_waits_says_until_when_to_those_who_read_the_receipt() -> None:
    async def case() -> None:
        lab = BrokerLab(
            providers={"main": ScriptedProvider([failure(**PLAN_LIMIT)])}, policies={"main": Policy(wait=Wait())}
        )
        lab.call()
        await lab.settle()
        agent = lab.broker.agents[0]
        assert lab.broker.waiting_until(agent) == EPOCH + 7205
        await lab.run_out()
        assert lab.broker.waiting_until(agent) is None

    run(case)


def test_an_agent_that_kept_the_cap_on_money_itself_ends_the_run_by_that_cap() -> None:
    async def case() -> None:
        spent = failure(FailureClass.LIMIT, usage=Usage(cost_usd=1.0))
        lab = BrokerLab(
            providers={"main": ScriptedProvider([spent], capabilities=PRICED)}, limits=Limits(max_cost_usd=1.0)
        )
        lab.call()
        await lab.run_out()
        assert [stopped.code.value for stopped in lab.failures] == ["COST_CAP"]
        assert [end.failure_class for end in lab.ends] == [FailureClass.LIMIT]

    run(case)


def test_an_agent_that_is_ended_for_its_silence_leaves_what_was_last_heard_of_it() -> None:
    async def case() -> None:
        provider = ScriptedProvider(["silence"], capabilities=STREAMS)
        lab = BrokerLab(providers={"main": provider}, limits=Limits(agent_idle_seconds=50))
        lab.call()
        await lab.settle()
        provider.requests[0].progress("Bash: npm test")
        await lab.run_out()
        end = lab.broker.agents[0].attempts[0].end
        assert isinstance(end, Failed)
        assert end.evidence == "last heard: Bash: npm test"

    run(case)
