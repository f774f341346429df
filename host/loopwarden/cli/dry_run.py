"""`--dry-run`: what would be done, and the first prompt, without starting any agent.

The prompt is the real one: the script runs in its worker until it asks for an agent, and is cancelled there.
"""

import asyncio
import shlex
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from loopwarden.cli.output import Output
from loopwarden.cli.preparation import Prepared, scratch_workspace
from loopwarden.display import duration, plural, shown_line, shown_text
from loopwarden.host import Host
from loopwarden.provider import AgentReply, AgentRequest, Provider
from loopwarden.providers.command import CommandProvider


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
    """Print what would be done. Returns the exit code. Raises a subclass of `StartRefused`."""
    request, problem = asyncio.run(_first_request(prepared))
    shown = _describe(prepared, request, problem)
    output.show_object({"exit": 0, "dryRun": shown})
    output.show(_text(prepared, shown))
    return 0


async def _first_request(prepared: Prepared) -> tuple[AgentRequest | None, str | None]:
    asked = asyncio.Event()
    recorders = {name: _Recorder(provider, asked) for name, provider in prepared.providers.items()}
    settings = prepared.settings
    async with Host(
        providers=recorders,
        limits=settings.limits,
        default_provider=prepared.provider,
        allow_weak_confinement=settings.allow_weak_confinement,
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
        return request, None
    return (
        None,
        outcome.failure.message if outcome.failure is not None else "the script ends without asking for an agent",
    )


def _describe(prepared: Prepared, request: AgentRequest | None, problem: str | None) -> dict[str, Any]:
    limits = prepared.limits
    shown: dict[str, Any] = {
        "loop": prepared.request.target.name,
        "scriptDigest": prepared.request.target.script.digest,
        "atMost": prepared.first_line,
        "provider": prepared.provider,
        "workspace": None if prepared.workspace is None else str(prepared.workspace),
        "argv": None,
        "program": None,
        "environment": None,
        "checks": [list(check.argv) for check in prepared.checks],
        "caps": {
            "maxTotalAgents": prepared.max_agents,
            "maxExtraAttempts": limits.max_extra_attempts,
            "maxConcurrentAgents": limits.max_concurrent_agents,
            "agentTimeoutSeconds": limits.agent_timeout_seconds,
            "runDeadlineSeconds": limits.run_deadline_seconds,
            "checkTimeoutSeconds": limits.check_timeout_seconds,
        },
        "firstPrompt": None if request is None else request.prompt,
        "problem": problem,
    }
    provider = prepared.providers[prepared.provider]
    if request is not None and isinstance(provider, CommandProvider):
        with ExitStack() as stack:
            folder = prepared.workspace or stack.enter_context(scratch_workspace())
            plan = provider.describe(replace(request, workspace=folder))
        shown["argv"] = list(plan.argv)
        shown["program"] = plan.program
        shown["environment"] = list(plan.environment_names)
    return shown


def _text(prepared: Prepared, shown: dict[str, Any]) -> str:
    limits = prepared.limits
    rows: list[tuple[str, str | None]] = [
        ("loop", f"{shown['loop']}  {shown['scriptDigest']}"),
        ("provider", shown["provider"]),
        ("argv", None if shown["argv"] is None else shlex.join(shown["argv"])),
        ("program", shown["program"]),
        ("folder", shown["workspace"] or "an empty folder"),
        ("environment", None if shown["environment"] is None else ", ".join(shown["environment"])),
        (
            "checks",
            "; ".join(shlex.join(check) for check in shown["checks"]) or "none: a completion will not be verified",
        ),
        ("agents", f"at most {plural(prepared.max_agents, 'agent')}, {limits.max_concurrent_agents} at once"),
        ("agent time", f"at most {duration(limits.agent_timeout_seconds)} each"),
        ("run time", f"at most {duration(limits.run_deadline_seconds)}"),
    ]
    lines = [prepared.first_line, *(f"note: {note}" for note in prepared.notes), "no agent is started (dry run)", ""]
    lines += [f"  {name:<12} {shown_line(value)}" for name, value in rows if value is not None]
    if shown["firstPrompt"] is None:
        return "\n".join([*lines, "", f"  no prompt: {shown_line(shown['problem'])}"])
    prompt = "\n".join(f"    {line}" for line in shown_text(shown["firstPrompt"]).split("\n"))
    return "\n".join([*lines, "", "  first prompt", prompt])
