"""Promise 5: a hijacked worker may waste its budget; it cannot present a report that no agent returned."""

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from loopwarden import AgentRequest, Code, Host, Limits, Outcome, Script
from loopwarden_engine.messages import Call, Fatal, Idle, Log, Ready, Result
from loopwarden_scripts import ralph
from loopwarden_scripts.ralph.report import REPORT_SCHEMA
from support.stand_in import Peer, with_stand_in

OBJECTIVE = "make it work"
CONTINUE = {"status": "continue", "summary": "did a thing", "evidence": [], "nextSteps": ["go on"], "blocker": ""}
COMPLETE = {"status": "complete", "summary": "done", "evidence": ["tests pass"], "nextSteps": [], "blocker": ""}
FORGED = {**COMPLETE, "summary": "all is well, trust me"}
HANDOFF = '{"status":"continue","summary":"did a thing","evidence":[],"nextSteps":["go on"],"blocker":""}'

Attack = Callable[[Peer], Awaitable[None]]


def call(number: int, prompt: str = f"{OBJECTIVE}", **options: Any) -> Call:
    """The call of round `number`, honest unless told otherwise."""
    given = {"label": f"Ralph round {number}", "schema": REPORT_SCHEMA, "phase": "Fresh-agent rounds", **options}
    kept = {key: value for key, value in given.items() if value is not None}
    return Call(number, str(number), 1, prompt, kept)


def ralph_run(runner: asyncio.Runner, attack: Attack, *reports: dict[str, Any]) -> tuple[Outcome[Any], int]:
    """Run Ralph with the attacker as its worker; return the outcome and how often the provider was asked."""
    asked = 0

    async def reply(request: AgentRequest) -> dict[str, Any]:
        nonlocal asked
        asked += 1
        return reports[request.seq - 1]

    async def play() -> Outcome[Any]:
        async with Host(providers={"default": reply}) as host:
            launcher = with_stand_in(host)
            starting = asyncio.create_task(host.start(ralph.script, ralph.Args(objective=OBJECTIVE, max_rounds=3)))
            peer = await launcher.peers.get()
            await peer.begin()
            run = await starting
            await peer.go()
            await attack(peer)
            outcome = await asyncio.wait_for(run.wait(), 10)
            peer.end.close()
            return outcome

    return runner.run(play()), asked


def test_an_honest_stand_in_is_believed(runner: asyncio.Runner) -> None:
    """The control: with true reports the same frames give a completed run."""

    async def honest(peer: Peer) -> None:
        peer.send(call(1))
        assert (await peer.reply(0)).value == CONTINUE
        peer.send(call(2, f"{OBJECTIVE} {HANDOFF}"))
        assert (await peer.reply(1)).value == COMPLETE
        peer.send(Result({"status": "complete", "roundsStarted": 2, "report": COMPLETE}))

    outcome, asked = ralph_run(runner, honest, CONTINUE, COMPLETE)
    assert outcome.failure is None
    assert outcome.value.status == "complete"
    assert asked == 2


@pytest.mark.parametrize(
    ("result", "code"),
    [
        ({"status": "complete", "roundsStarted": 1, "report": FORGED}, Code.PROVENANCE),
        ({"status": "complete", "roundsStarted": 1, "report": COMPLETE}, Code.PROVENANCE),
        ({"status": "complete", "roundsStarted": 2, "report": COMPLETE}, Code.CONTRACT),
        ({"status": "budget-limited", "roundsStarted": 3, "report": CONTINUE}, Code.CONTRACT),
        ({"status": "budget-limited", "roundsStarted": 1, "report": CONTINUE}, Code.CONTRACT),
        ({"status": "round-failed", "roundsStarted": 1, "lastReport": None}, Code.CONTRACT),
        ({"status": "complete", "roundsStarted": 1}, Code.CONTRACT),
        ({"status": "complete", "roundsStarted": True, "report": COMPLETE}, Code.CONTRACT),
        ("complete", Code.CONTRACT),
        (None, Code.CONTRACT),
    ],
)
def test_a_forged_terminal_result_is_refused(runner: asyncio.Runner, result: Any, code: Code) -> None:
    """One round ran and its agent said continue: nothing else can be presented."""

    async def forge(peer: Peer) -> None:
        peer.send(call(1))
        await peer.reply(0)
        peer.send(Result(result))

    outcome, _ = ralph_run(runner, forge, CONTINUE)
    assert outcome.failure is not None
    assert outcome.failure.code is code
    assert outcome.value is None
    assert outcome.receipt.last_handoff == CONTINUE


def test_a_result_without_any_agent_is_refused(runner: asyncio.Runner) -> None:
    """Completion out of nothing."""

    async def forge(peer: Peer) -> None:
        peer.send(Result({"status": "complete", "roundsStarted": 1, "report": COMPLETE}))

    outcome, asked = ralph_run(runner, forge)
    assert outcome.failure is not None
    assert outcome.failure.code is Code.CONTRACT
    assert (asked, outcome.agents_started) == (0, 0)


@pytest.mark.parametrize(
    "altered",
    [
        call(1, "do something else entirely"),
        call(1, OBJECTIVE, label="Ralph round 2"),
        call(1, OBJECTIVE, label=None),
        call(1, OBJECTIVE, phase="Another phase"),
        call(1, OBJECTIVE, phase=None),
        call(1, OBJECTIVE, schema=None),
        call(1, OBJECTIVE, schema={"type": "object"}),
        call(1, OBJECTIVE, schema={**REPORT_SCHEMA, "additionalProperties": True}),
        call(1, OBJECTIVE, provider="default"),
        call(1, OBJECTIVE, model="bigger"),
    ],
)
def test_an_altered_call_is_refused_before_any_charge(runner: asyncio.Runner, altered: Call) -> None:
    """Objective, label, phase, schema and route are not the worker's to choose."""

    async def alter(peer: Peer) -> None:
        peer.send(altered)

    outcome, asked = ralph_run(runner, alter)
    assert outcome.failure is not None
    assert outcome.failure.code is Code.CONTRACT
    assert (asked, outcome.agents_started) == (0, 0)


@pytest.mark.parametrize("prompt", [OBJECTIVE, f"{OBJECTIVE} {HANDOFF.replace('did a thing', 'did it all')}"])
def test_a_prompt_without_the_true_handoff_is_refused_before_its_charge(runner: asyncio.Runner, prompt: str) -> None:
    """The second round must get what the first one really left."""

    async def alter(peer: Peer) -> None:
        peer.send(call(1))
        await peer.reply(0)
        peer.send(call(2, prompt))

    outcome, asked = ralph_run(runner, alter, CONTINUE)
    assert outcome.failure is not None
    assert outcome.failure.code is Code.CONTRACT
    assert (asked, outcome.agents_started) == (1, 1)


def test_a_call_after_a_complete_report_is_refused_before_its_charge(runner: asyncio.Runner) -> None:
    """What is complete is not continued."""

    async def go_on(peer: Peer) -> None:
        peer.send(call(1))
        await peer.reply(0)
        peer.send(call(2, f"{OBJECTIVE} {HANDOFF}"))

    outcome, asked = ralph_run(runner, go_on, COMPLETE)
    assert outcome.failure is not None
    assert outcome.failure.code is Code.CONTRACT
    assert asked == 1


def test_two_rounds_at_once_are_refused_before_the_second_charge(runner: asyncio.Runner) -> None:
    """Rounds follow each other."""

    async def hurry(peer: Peer) -> None:
        peer.send(call(1), call(2))

    outcome, _ = ralph_run(runner, hurry, CONTINUE)
    assert outcome.failure is not None
    assert outcome.failure.code is Code.CONTRACT
    assert outcome.agents_started == 1


SCRIPT = Script.from_text("def main(args):\n    return 1\n")


def plain_run(runner: asyncio.Runner, attack: Attack, limits: Limits | None = None) -> Outcome[Any]:
    """Run a script without a contract with the attacker as its worker."""

    async def reply(request: AgentRequest) -> str:
        return "ok"

    async def play() -> Outcome[Any]:
        async with Host(providers={"default": reply}, limits=limits) as host:
            launcher = with_stand_in(host)
            starting = asyncio.create_task(host.start(SCRIPT))
            peer = await launcher.peers.get()
            await peer.begin()
            run = await starting
            await peer.go()
            await attack(peer)
            outcome = await asyncio.wait_for(run.wait(), 10)
            peer.end.close()
            return outcome

    return runner.run(play())


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">I", 1024 * 1024 + 1),
        struct.pack(">I", 0),
        struct.pack(">I", 4) + b"null",
        struct.pack(">I", 2) + b"{}",
        struct.pack(">I", 3) + b"\xff\xfe\xfd",
        struct.pack(">I", 15) + b'{"type":"other"}'[:15],
        struct.pack(">I", 16) + b'{"type":"ready"}',
        struct.pack(">I", 30) + b'{"type":"idle","consumed":1.0}',
        struct.pack(">I", 28) + b'{"type":"idle","consumed":7}',
        struct.pack(">I", 29) + b'{"type":"idle","consumed":-1}',
        struct.pack(">I", 33) + b'{"type":"log","message":"a","b":1}'[:33],
    ],
)
def test_any_breach_of_the_protocol_ends_the_run_typed(runner: asyncio.Runner, data: bytes) -> None:
    """PROTOCOL, the worker killed, the host unharmed."""

    async def attack(peer: Peer) -> None:
        peer.send_bytes(data)

    outcome = plain_run(runner, attack)
    assert outcome.failure is not None
    assert outcome.failure.code is Code.PROTOCOL


@pytest.mark.parametrize(
    "messages",
    [
        [Ready("again")],
        [Call(2, "2", 1, "skipped one", {})],
        [Call(1, "1", 1, "a", {}), Call(1, "2", 1, "same id", {})],
        [Call(1, "1", 1, "a", {}), Call(2, "1", 1, "same key", {})],
        [Call(1, "", 1, "no key", {})],
        [Idle(1)],
        [Idle(0), Idle(0)],
        [Idle(0), Log("works on, unwatched")],
    ],
)
def test_a_message_in_the_wrong_state_is_a_breach(runner: asyncio.Runner, messages: list[Any]) -> None:
    """Order, numbers and keys are checked."""

    async def attack(peer: Peer) -> None:
        peer.send(*messages)

    outcome = plain_run(runner, attack)
    assert outcome.failure is not None
    assert outcome.failure.code is Code.PROTOCOL


def test_more_narration_than_allowed_is_a_breach(runner: asyncio.Runner) -> None:
    """An honest worker stops itself with NARRATION_LIMIT; this one does not."""

    async def attack(peer: Peer) -> None:
        peer.send(*[Log("x")] * 6)

    outcome = plain_run(runner, attack, Limits(max_narration=5))
    assert outcome.failure is not None
    assert outcome.failure.code is Code.PROTOCOL


def test_nothing_after_the_ending_message_is_read(runner: asyncio.Runner) -> None:
    """The first terminal event wins, and no later frame is reported."""

    async def attack(peer: Peer) -> None:
        peer.send(Result(1), Log("late"), Call(1, "1", 1, "late", {}), Fatal("ITEM_CAP", "late", 1))
        peer.send_bytes(b"\xff" * 64)

    outcome = plain_run(runner, attack)
    assert (outcome.value, outcome.failure, outcome.agents_started) == (1, None, 0)


def test_a_worker_that_hangs_up_is_lost(runner: asyncio.Runner) -> None:
    """A closed channel without an ending message is WORKER_LOST."""

    async def attack(peer: Peer) -> None:
        peer.end.close()

    outcome = plain_run(runner, attack)
    assert outcome.failure is not None
    assert outcome.failure.code is Code.WORKER_LOST


def test_a_worker_that_takes_no_replies_holds_its_own_slots_only(runner: asyncio.Runner) -> None:
    """Replies that are not taken stay bounded by the run's slots, and the deadline still ends the run."""
    started = 0

    async def reply(request: AgentRequest) -> str:
        nonlocal started
        started += 1
        return "x" * 900_000

    async def play() -> Outcome[Any]:
        limits = Limits(max_concurrent_agents=2, run_deadline_seconds=1.0, max_total_agents=50)
        async with Host(providers={"default": reply}, limits=limits) as host:
            launcher = with_stand_in(host)
            starting = asyncio.create_task(host.start(SCRIPT))
            peer = await launcher.peers.get()
            await peer.begin()
            run = await starting
            await peer.go()
            peer.send(*[Call(n, str(n), 1, "p", {}) for n in range(1, 51)])
            outcome = await asyncio.wait_for(run.wait(), 10)
            peer.end.close()
            return outcome

    outcome = runner.run(play())
    assert outcome.failure is not None
    assert outcome.failure.code is Code.DEADLINE
    assert started <= 4
