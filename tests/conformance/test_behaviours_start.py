"""Behaviours of a start: what is checked, what is copied, what is left when it is refused."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from loopwarden import (
    AgentRequest,
    ArgsInvalid,
    Capabilities,
    Host,
    InvalidRequest,
    Limits,
    ProviderUnfit,
    Script,
    ScriptRejected,
    StartRefused,
)
from loopwarden_scripts import ralph
from support.lent_launcher import LentLauncher

ONE = Script.from_text("def main(args):\n    return 1\n")
AGENT = Script.from_text("def main(args):\n    return agent('p')\n")
HOOKLESS = Script.from_text("import os\nprint(1)\n")


def named(name: str) -> Callable[[AgentRequest], Awaitable[str]]:
    """A provider that answers with its name."""

    async def reply(request: AgentRequest) -> str:
        return name

    return reply


@dataclass
class Weak:
    """A provider that can do what its capabilities say."""

    capabilities: Capabilities

    async def reply(self, request: AgentRequest) -> str:
        """Never asked."""
        raise AssertionError("it was asked")


def refusal(
    runner: asyncio.Runner, script: Script[Any, Any], args: Any = None, *, limits: Limits | None = None, **request: Any
) -> StartRefused:
    """The refusal of a start, after which nothing of a run exists."""

    async def play() -> StartRefused:
        async with Host(providers={"default": named("default")}, limits=limits) as host:
            with pytest.raises(StartRefused) as caught:
                await host.start(script, args, **request)
            assert host.runs() == []
            return caught.value

    return runner.run(play())


def test_arguments_limits_and_provider_are_checked_before_the_script_is_compiled(runner: asyncio.Runner) -> None:
    """What costs nothing to check comes first; no worker exists by then."""
    assert isinstance(refusal(runner, HOOKLESS, [1]), ArgsInvalid)
    assert isinstance(refusal(runner, HOOKLESS, max_total_agents=0), InvalidRequest)
    assert isinstance(refusal(runner, HOOKLESS, provider="other"), InvalidRequest)
    assert isinstance(refusal(runner, HOOKLESS), ScriptRejected)


def test_one_refusal_lists_every_violation_with_its_line(runner: asyncio.Runner) -> None:
    """Not only the first."""
    violations = refusal(runner, HOOKLESS).details["violations"]
    assert [row["line"] for row in violations] == [1, 1, 2]
    assert [row["rule"] for row in violations if row["line"] == 2] == ["name"]


@pytest.mark.parametrize("name", ["", " default", "default ", "nobody", "x" * 5000])
def test_a_provider_that_does_not_exist_is_refused_by_name(runner: asyncio.Runner, name: str) -> None:
    """An empty name and one with blanks around it are names that nobody has."""
    refused = refusal(runner, AGENT, provider=name)
    assert isinstance(refused, InvalidRequest)
    assert refused.message.endswith("does not exist; configured: default")
    assert len(refused.message) < 300


@pytest.mark.parametrize("value", [0, -1, 1.5, 2.0, True, "3", float("nan"), float("inf"), 2**53])
def test_an_agent_cap_that_is_no_positive_safe_integer_is_refused(runner: asyncio.Runner, value: Any) -> None:
    """Named, never rounded, never clamped."""
    refused = refusal(runner, ONE, max_total_agents=value)
    assert isinstance(refused, InvalidRequest)
    assert "max_total_agents" in refused.message


def test_a_cap_above_the_ceiling_names_both_numbers(runner: asyncio.Runner) -> None:
    """And the way out."""
    refused = refusal(runner, ONE, limits=Limits(max_total_agents=5), max_total_agents=6)
    assert refused.message.startswith("max_total_agents 6 is above the ceiling of this deployment, 5; ask for ")
    assert refused.details == {"limit": "max_total_agents", "asked": 6, "ceiling": 5}


def test_none_as_an_override_means_not_given(runner: asyncio.Runner, launcher: LentLauncher) -> None:
    """The deployment's own limits hold."""

    async def play() -> Any:
        async with Host(providers={"default": named("x")}, limits=Limits(max_total_agents=5)) as host:
            launcher.lend_to(host)
            outcome = await host.run(ONE, None, max_total_agents=None, memory_bytes=None)
            return outcome.receipt.limits["maxTotalAgents"]

    assert runner.run(play()) == 5


@pytest.mark.parametrize("args", [[1], "x", 5, {"a": {1}}, {1: 2}, {"a": float("nan")}, {"a": lambda: 1}, {"a": 2**60}])
def test_arguments_that_are_no_json_object_are_refused_with_their_place(runner: asyncio.Runner, args: Any) -> None:
    """As every other value that crosses a boundary."""
    refused = refusal(runner, ONE, args)
    assert isinstance(refused, ArgsInvalid)
    assert refused.message.startswith("args")


def test_arguments_are_copied_when_the_run_starts(runner: asyncio.Runner, launcher: LentLauncher) -> None:
    """What the caller does with them later changes nothing."""
    args: dict[str, Any] = {"list": [1]}

    async def play() -> Any:
        async with Host(providers={"default": named("default")}) as host:
            launcher.lend_to(host)
            run = await host.start(Script.from_text("def main(args):\n    return args\n"), args)
            args["list"].append(2)
            return (await run.wait()).value, run.receipt().args

    assert runner.run(play()) == ({"list": [1]}, {"list": [1]})


def test_the_provider_of_one_run_routes_its_calls_and_no_other_run(
    runner: asyncio.Runner, launcher: LentLauncher
) -> None:
    """The default stays what it was; a call may still name another provider."""
    both = Script.from_text("def main(args):\n    return [agent('p'), agent('p', provider='default')]\n")

    async def play() -> list[Any]:
        async with Host(providers={"default": named("default"), "other": named("other")}) as host:
            launcher.lend_to(host)
            return [
                (await host.run(both, provider="other")).value,
                (await host.run(both)).value,
            ]

    assert runner.run(play()) == [["other", "default"], ["default", "default"]]


def test_providers_may_go_while_runs_are_live(runner: asyncio.Runner, launcher: LentLauncher) -> None:
    """A host holds its own table: what the embedder does with its mapping later changes nothing."""
    providers: dict[str, Any] = {"default": named("still here")}

    async def play() -> Any:
        async with Host(providers=providers) as host:
            launcher.lend_to(host)
            run = await host.start(AGENT)
            providers.clear()
            return (await run.wait()).value

    assert runner.run(play()) == "still here"


def test_shipped_limits_are_those_of_the_design() -> None:
    """Design section 9."""
    limits = Limits().resolved(has_store=False)
    assert Limits().resolved(has_store=True).max_extra_attempts == 48
    assert Limits(max_total_agents=5).resolved(has_store=True).max_extra_attempts == 5
    assert (limits.max_total_agents, limits.max_extra_attempts) == (1000, 0)
    assert (limits.max_concurrent_agents, limits.max_live_agents, limits.max_live_runs) == (16, 64, 256)
    assert limits.max_items_per_call == 4096
    assert (limits.agent_timeout_seconds, limits.agent_idle_seconds, limits.agent_grace_seconds) == (7200, 900, 5)
    assert (limits.run_deadline_seconds, limits.cpu_seconds_per_turn, limits.cpu_seconds_per_run) == (86400, 5, 600)
    assert (limits.memory_bytes, limits.max_narration, limits.max_frame_bytes) == (512 << 20, 10_000, 1 << 20)


def test_ids_of_runs_are_unique_and_lead_to_their_runs(runner: asyncio.Runner, launcher: LentLauncher) -> None:
    """Also among runs of the same second."""

    async def play() -> None:
        async with Host(providers={"default": named("x")}) as host:
            launcher.lend_to(host)
            runs = [await host.start(ONE) for _ in range(20)]
            assert len({run.id for run in runs}) == 20
            assert all(host.get(run.id) is run for run in runs)
            for run in runs:
                await run.wait()
            assert sorted(run.id for run in host.runs()) == sorted(run.id for run in runs)
            assert all(host.get(run.id) is run for run in runs)
            assert host.get("nobody") is None

    runner.run(play())


def test_a_host_that_is_closed_refuses_the_starts_under_way_and_those_that_follow(runner: asyncio.Runner) -> None:
    """No start hangs, no process is left."""
    long = Script.from_text("x = 1\n" * 3000 + "def main(args):\n    return 1\n")

    async def play() -> None:
        host = await Host(providers={"default": named("x")}).__aenter__()
        starting = asyncio.create_task(host.start(long))
        while not host._beginning:
            await asyncio.sleep(0)
        await asyncio.wait_for(host.close(), 10)
        with pytest.raises(InvalidRequest, match="closed"):
            await asyncio.wait_for(starting, 10)
        with pytest.raises(InvalidRequest, match="closed"):
            await host.start(ONE)
        assert host._launcher is not None
        assert not host._launcher.alive

    runner.run(play())


@pytest.mark.parametrize(
    ("capabilities", "words"),
    [
        (Capabilities(fresh_context=True), "structured"),
        (Capabilities(structured_output=True), "context"),
    ],
)
def test_a_provider_that_cannot_do_what_a_loop_needs_is_refused_before_anything_starts(
    runner: asyncio.Runner, capabilities: Capabilities, words: str
) -> None:
    """By capability, not by name."""

    async def play() -> None:
        async with Host(providers={"default": Weak(capabilities)}) as host:
            with pytest.raises(ProviderUnfit, match=words):
                await host.start(ralph.script, ralph.Args(objective="x"))
            assert host.runs() == []

    runner.run(play())


def test_ralph_needs_as_many_agents_as_rounds_and_is_refused_above_the_ceiling(runner: asyncio.Runner) -> None:
    """Never clamped: a run that could not do its rounds does not begin. Another number beside it is a contradiction."""
    args = ralph.Args(objective="x", max_rounds=3)
    refused = refusal(runner, ralph.script, args, limits=Limits(max_total_agents=2))
    assert isinstance(refused, InvalidRequest)
    assert "3" in refused.message
    assert "2" in refused.message
    contradicted = refusal(runner, ralph.script, args, max_total_agents=2)
    assert contradicted.message == "max_total_agents 2 contradicts the arguments, from which 3 follows; leave it out"
