"""`--dry-run`: what would be done, and the first prompt, without starting any agent.

The prompt is the real one: the script runs in its worker until it asks for an agent, and is cancelled there.
"""

import asyncio
import shlex
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from loopwarden.cli.caps import deployment_limits
from loopwarden.cli.deployment_host import approvals_of
from loopwarden.cli.output import Output
from loopwarden.cli.preparation import Prepared, scratch_workspace
from loopwarden.cli.provider_words import policy_words, what_is_asked
from loopwarden.display import dollars, duration, plural, shown_line, shown_text
from loopwarden.failures import EXIT_FAILED, MEANINGS
from loopwarden.host import Host
from loopwarden.policy import NO_POLICY
from loopwarden.provider import AgentReply, AgentRequest, Provider, ProviderStartError
from loopwarden.providers.agent_program import CommandPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What the dry run came to: the first request, or why there is none, or why its agent could not start."""

    request: AgentRequest | None = None
    plan: CommandPlan | None = None
    problem: str | None = None
    exit: int = 0


@runtime_checkable
class _Describing(Protocol):
    """A provider that starts a program, and can say which without starting it."""

    def describe(self, request: AgentRequest) -> CommandPlan: ...


class _Recorder:
    """Takes the first request and never answers."""

    def __init__(self, provider: Provider, asked: asyncio.Event) -> None:
        self.capabilities = provider.capabilities
        self.request: AgentRequest | None = None
        self._asked = asked

    async def reply(self, request: AgentRequest) -> AgentReply:
        self.request = self.request or request
        self._asked.set()
        await asyncio.get_running_loop().create_future()
        raise AssertionError("a future that nobody resolves was resolved")


def dry_run(prepared: Prepared, output: Output) -> int:
    """Print what would be done. Returns the exit code: 0, or that of what fails before the first agent has started.

    Raises a subclass of `StartRefused`.
    """
    found = _with_plan(prepared, asyncio.run(_first_request(prepared)))
    shown = _describe(prepared, found)
    output.show_object({"exit": found.exit, "dryRun": shown})
    output.show(_text(prepared, shown))
    return found.exit


async def _first_request(prepared: Prepared) -> _Found:
    asked = asyncio.Event()
    recorders = {name: _Recorder(provider, asked) for name, provider in prepared.chosen.providers.items()}
    settings = prepared.settings
    async with Host(
        providers=recorders,
        policies=prepared.chosen.policies,
        limits=deployment_limits(prepared.request, settings),
        default_provider=prepared.chosen.name,
        allow_weak_confinement=settings.allow_weak_confinement,
        approvals=approvals_of(settings),
        require_bound=settings.require_bound,
    ) as host:
        # Without the workspace: nothing will be done in it, so a run that holds it is not in the way.
        asking = prepared.request
        run = await host.start(asking.target.script, asking.args, continues=asking.continues, **prepared.overrides)
        first = asyncio.ensure_future(asked.wait())
        ended = asyncio.ensure_future(run.wait())
        await asyncio.wait([first, ended], return_when=asyncio.FIRST_COMPLETED)
        first.cancel()
        run.cancel("a dry run")
        outcome = await ended
    request = next((recorder.request for recorder in recorders.values() if recorder.request is not None), None)
    if request is not None:
        return _Found(request=request)
    if outcome.failure is None:
        return _Found(problem="the script ends without asking for an agent")
    return _Found(problem=outcome.failure.message, exit=MEANINGS[outcome.failure.code].exit)


def _with_plan(prepared: Prepared, found: _Found) -> _Found:
    """`found` with what would be started for its request."""
    provider = prepared.chosen.providers[prepared.chosen.name]
    if found.request is None or not isinstance(provider, _Describing):
        return found
    with ExitStack() as stack:
        folder = prepared.workspace or stack.enter_context(scratch_workspace())
        try:
            return replace(found, plan=provider.describe(replace(found.request, workspace=folder)))
        except ProviderStartError as error:
            return replace(found, problem=error.reason, exit=EXIT_FAILED)


def _describe(prepared: Prepared, found: _Found) -> dict[str, Any]:
    limits = prepared.limits
    plan = found.plan
    return {
        "loop": prepared.request.target.name,
        "scriptDigest": prepared.request.target.script.digest,
        "atMost": prepared.first_line,
        "provider": prepared.chosen.name,
        "workspace": None if prepared.workspace is None else str(prepared.workspace),
        "asks": None if prepared.chosen.given is None else what_is_asked(prepared.chosen.given),
        "argv": None if plan is None else list(plan.argv),
        "program": None if plan is None else plan.program,
        "environment": None if plan is None else list(plan.environment_names),
        "checks": [list(check.argv) for check in prepared.checks],
        "caps": {
            "maxTotalAgents": prepared.max_agents,
            "maxExtraAttempts": limits.max_extra_attempts,
            "maxCostUsd": limits.max_cost_usd,
            "maxConcurrentAgents": limits.max_concurrent_agents,
            "agentTimeoutSeconds": limits.agent_timeout_seconds,
            "runDeadlineSeconds": limits.run_deadline_seconds,
            "checkTimeoutSeconds": limits.check_timeout_seconds,
        },
        "firstPrompt": None if found.request is None else found.request.prompt,
        "problem": found.problem,
    }


def _text(prepared: Prepared, shown: dict[str, Any]) -> str:
    limits = prepared.limits
    policy = prepared.chosen.policies.get(prepared.chosen.name, NO_POLICY)
    rows: list[tuple[str, str | None]] = [
        ("loop", f"{shown['loop']}  {shown['scriptDigest']}"),
        ("provider", shown["provider"]),
        ("asks", shown["asks"] if shown["argv"] is None else None),
        ("argv", None if shown["argv"] is None else shlex.join(shown["argv"])),
        ("program", shown["program"]),
        ("folder", shown["workspace"] or "an empty folder"),
        ("environment", None if shown["environment"] is None else ", ".join(shown["environment"])),
        (
            "checks",
            "; ".join(shlex.join(check) for check in shown["checks"]) or "none: a completion will not be verified",
        ),
        ("agents", f"at most {plural(prepared.max_agents, 'agent')}, {limits.max_concurrent_agents} at once"),
        ("policy", None if policy == NO_POLICY else policy_words(policy)),
        ("cost", "no cap" if limits.max_cost_usd is None else f"at most {dollars(limits.max_cost_usd)}"),
        ("isolation", prepared.request.isolation),
        ("agent time", f"at most {duration(limits.agent_timeout_seconds)} each"),
        ("run time", f"at most {duration(limits.run_deadline_seconds)}"),
    ]
    lines = [prepared.first_line, *(f"note: {note}" for note in prepared.notes), "no agent is started (dry run)", ""]
    lines += [f"  {name:<12} {shown_line(value)}" for name, value in rows if value is not None]
    if shown["firstPrompt"] is None:
        return "\n".join([*lines, "", f"  no prompt: {shown_line(shown['problem'])}"])
    if shown["problem"] is not None:
        lines += ["", f"  the agent cannot be started: {shown_line(shown['problem'])}"]
    prompt = "\n".join(f"    {line}" for line in shown_text(shown["firstPrompt"]).split("\n"))
    return "\n".join([*lines, "", "  first prompt", prompt])
