"""Promises 4 and 6: whatever a worker says, its run ends once, and the host goes on as if nothing had been.

The cases of frames.jsonl and attacks that are made up, always the same ones; `make fuzz` makes up others without end.
"""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from loopwarden import AgentRequest, ArgsInvalid, Code, Host, Script
from loopwarden_engine.control import (
    ControlError,
    Exited,
    Failed,
    Forked,
    pack_report,
    unpack_report,
    unpack_request,
)
from loopwarden_engine.plain import MAX_OPTION_VALUES, MAX_REPLY_VALUES, MAX_VALUES
from support.hostile_frames import ATTACKS, Attack, Manners, SayLarge, attack_of
from support.hostile_lab import Lab, hostile_lab
from support.large_frames import COSTLIEST, KINDS, SHAPES

CASES = [json.loads(line) for line in (Path(__file__).parent / "frames.jsonl").read_text("ascii").splitlines()]
MADE_UP = 400
MOST_GROWN_BYTES = 192 * 1024 * 1024
"""A host remembers 256 runs that ended, with results of up to a mebibyte each."""


@pytest.fixture(scope="module")
def lab(runner: asyncio.Runner) -> Iterator[Lab]:
    """One host for all attacks of this module."""
    opening = hostile_lab()
    yield runner.run(opening.__aenter__())
    runner.run(opening.__aexit__(None, None, None))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_a_hostile_worker_ends_its_run_as_told_and_nothing_else(
    runner: asyncio.Runner, lab: Lab, case: dict[str, Any]
) -> None:
    """The lab checks the rest: asks, events, descriptors, tasks, timers, processes, and how long the loop was held."""
    ends = case["ends"] if isinstance(case["ends"], list) else [case["ends"]]
    assert runner.run(lab.attack(attack_of(case))) in ends
    runner.run(lab.honest_run())


def test_the_corpus_names_its_families_and_tells_its_cases_apart() -> None:
    assert len({case["id"] for case in CASES}) == len(CASES)
    assert all(case["goal"] and case["known_from"] and case["ends"] for case in CASES)


@pytest.mark.parametrize("shape", SHAPES)
def test_no_frame_of_the_largest_size_holds_up_the_host(runner: asyncio.Runner, lab: Lab, shape: str) -> None:
    """As the result, which is looked at most; and in the other places of messages when it costs most."""
    for kind in KINDS if shape in COSTLIEST else ("result",):
        manners = Manners.START if kind in ("ready", "rejected") else Manners.GO
        runner.run(lab.attack(Attack(manners, (SayLarge(kind, shape),))))
    runner.run(lab.honest_run())


def test_attacks_that_are_made_up_end_like_all_others(runner: asyncio.Runner, lab: Lab) -> None:
    """Always the same ones, so that a failure comes again."""

    @settings(
        max_examples=MADE_UP,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(attack=ATTACKS)
    def attacked(attack: Attack) -> None:
        runner.run(lab.attack(attack))
        if lab.cases % 20 == 0:
            runner.run(lab.honest_run())

    before = lab.memory_bytes()
    attacked()
    runner.run(lab.honest_run())
    assert lab.memory_bytes() - before < MOST_GROWN_BYTES
    assert lab.forget_ended_runs() == []


# ---- an honest value that is too large is the script's error, not a breach

LARGE = MAX_VALUES + 1


async def answer(request: AgentRequest) -> Any:
    """A value that is too large where one is asked for."""
    return {"a": [0] * MAX_REPLY_VALUES} if request.prompt == "large" else "ok"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (f"return [0] * {LARGE}", Code.RESULT_INVALID),
        (f"return [[], 1] * {LARGE // 2}", Code.RESULT_INVALID),
        ('return agent("p", schema={"type": "object", "default": [0] * 8192})', Code.INVALID_ARGUMENT),
    ],
)
def test_an_honest_value_of_too_many_parts_is_named_as_such(runner: asyncio.Runner, body: str, code: Code) -> None:
    """As design section 6 has it for values that are too long."""

    async def play() -> Any:
        async with Host(providers={"default": answer}) as host:
            return await host.run(
                Script.from_text(f"from loopwarden_engine import agent\ndef main(args):\n    {body}\n")
            )

    failure = runner.run(play()).failure
    assert failure.code is code
    most = MAX_VALUES if code is Code.RESULT_INVALID else MAX_OPTION_VALUES
    assert f"more than {most:,} items and members" in failure.message


def test_a_result_of_as_many_values_as_are_allowed_comes_through(runner: asyncio.Runner) -> None:
    """And so does a prompt of nothing but commas."""

    async def play() -> Any:
        async with Host(providers={"default": answer}) as host:
            source = (
                f'def main(args):\n    agent("p" + "," * 1000000)\n    return args["a"] + [0] * {MAX_VALUES - 10}\n'
            )
            return await host.run(Script.from_text(source), {"a": [{"b": 1}] * 5})

    outcome = runner.run(play())
    assert outcome.failure is None
    assert len(outcome.value) == MAX_VALUES - 5


def test_a_reply_of_too_many_values_is_a_failed_child(runner: asyncio.Runner) -> None:
    """Its reason names the cap."""

    async def play() -> Any:
        async with Host(providers={"default": answer}) as host:
            return await host.run(
                Script.from_text('def main(args):\n    return agent("large", schema={"type": "object"})\n')
            )

    outcome = runner.run(play())
    assert outcome.value is None
    assert f"more than {MAX_REPLY_VALUES:,} items and members" in (outcome.receipt.agents[0].reason or "")


def test_args_of_too_many_values_are_refused(runner: asyncio.Runner) -> None:
    """Before anything starts."""

    async def play() -> None:
        async with Host(providers={"default": answer}) as host:
            await host.run(Script.from_text("def main(args):\n    return 1\n"), {"a": [0] * LARGE})

    with pytest.raises(ArgsInvalid, match=f"more than {MAX_VALUES:,} items and members"):
        runner.run(play())


# ---- the control socket of the launcher

REPORTS = st.one_of(
    st.builds(Forked, id=st.integers(0, 9), pid=st.integers(1, 9)),
    st.builds(Failed, id=st.integers(0, 9), reason=st.text(max_size=9)),
    st.builds(Exited, id=st.integers(0, 9), status=st.integers(-9, 9)),
)


@st.composite
def damaged_packets(draw: st.DrawFn) -> bytes:
    """A report with some bytes changed, or any bytes."""
    if draw(st.booleans()):
        return draw(st.binary(max_size=60))
    data = bytearray(pack_report(draw(REPORTS)))
    for _ in range(draw(st.integers(0, 3))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.sampled_from(b'\x00"{}[]-.e0189\xff'))
    return bytes(data)


@settings(max_examples=500, derandomize=True, database=None, deadline=None)
@given(packet=damaged_packets())
def test_a_control_packet_is_a_message_or_a_typed_error(packet: bytes) -> None:
    """Nothing else is raised, on either side."""
    for unpack in (unpack_report, unpack_request):
        try:
            unpack(packet)
        except ControlError:
            continue


@pytest.mark.parametrize("packet", [b"[" * 4096, b'{"op":"forked","id":' + b"9" * 4000 + b"}", b'{"op":' * 500, b""])
def test_a_control_packet_of_the_largest_size_is_a_typed_error(packet: bytes) -> None:
    """Deep, long, and cut."""
    for unpack in (unpack_report, unpack_request):
        with pytest.raises(ControlError):
            unpack(packet)
