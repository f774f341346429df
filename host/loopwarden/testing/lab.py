"""Real runs of loops for tests: one host and one launcher for many runs, so that each takes milliseconds."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar, Unpack

from loopwarden.checks import Check
from loopwarden.events import Event, Log, Phase
from loopwarden.failures import Code, Failure, RunFailed
from loopwarden.host import Host
from loopwarden.limits import LimitOverrides, Limits
from loopwarden.outcome import Outcome
from loopwarden.provider import AgentReply, AgentRequest, Capabilities
from loopwarden.receipt import Receipt
from loopwarden.script import Script
from loopwarden.testing.fake_agent import FakeAgent, RepliesDiffer
from loopwarden.testing.replies import Replies
from loopwarden.vetting import Vetted

ArgsT = TypeVar("ArgsT")
ResultT = TypeVar("ResultT")

LAB_LIMITS: Final = Limits(run_deadline_seconds=60.0)
"""What is shipped, but a run that waits for ever is a failed test after a minute."""

_BY_THE_AGENT: Final = (Code.AGENT_RESULT, Code.AGENT_START)
"""How a run ends by an exception of its agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabRun(Generic[ResultT]):
    """A run that is over: its outcome, what its agents were asked, and what observers saw."""

    outcome: Outcome[ResultT]
    requests: tuple[AgentRequest, ...]
    """What the fake agent was asked, in order: prompt, label, phase, schema, model."""
    events: tuple[Event, ...]
    error: Exception | None = None
    """What the fake agent raised, if that ended the run: an exception of the test's own function, for example."""

    @property
    def value(self) -> ResultT:
        """The result as the contract decoded it. Raises `RunFailed` when the run did not complete, from `error`."""
        try:
            return self.outcome.raise_for_failure().value  # type: ignore[return-value]  # a completed run has its value
        except RunFailed as failed:
            raise failed from self.error

    @property
    def failure(self) -> Failure | None:
        """Why the run did not complete; None when it did."""
        return self.outcome.failure

    @property
    def prompts(self) -> list[str]:
        """The prompts, in the order in which agents were asked."""
        return [request.prompt for request in self.requests]

    @property
    def labels(self) -> list[str]:
        """The labels, in the same order."""
        return [request.label for request in self.requests]

    @property
    def phases(self) -> list[str]:
        """The titles that the script gave to `phase`."""
        return [event.title for event in self.events if isinstance(event, Phase)]

    @property
    def logs(self) -> list[str]:
        """What the script gave to `log`."""
        return [event.message for event in self.events if isinstance(event, Log)]


class Lab:
    """A host for tests, without an event loop of the test's own. Use it as a context manager, one run at a time.

        with Lab() as lab:
            run = lab.run(script, args, [{"answer": "blue"}, None])

    The first run starts a launcher (about 80 ms), each run then takes about 5 ms: keep one lab for many tests, as a
    fixture with `scope="session"`. Nothing is kept on disk. `provider_names`: what scripts and tests may call a
    provider, the default first; the fake agent is behind all of them. `limits`: those of the deployment. With
    `allow_weak_confinement` runs begin also where a wall is missing.
    """

    def __init__(
        self,
        *,
        provider_names: Sequence[str] = ("default",),
        limits: Limits = LAB_LIMITS,
        allow_weak_confinement: bool = False,
    ) -> None:
        self._stage = _Stage()
        self._is_open = False
        self._runner = asyncio.Runner()
        self._host = Host(
            providers=dict.fromkeys(provider_names, self._stage),
            default_provider=provider_names[0],
            limits=limits,
            allow_weak_confinement=allow_weak_confinement,
        )

    def __enter__(self) -> Self:
        """Raises RuntimeError where an event loop runs: give a `FakeAgent` to a `Host` of your own there."""
        _refuse_running_loop()
        self._runner.__enter__()
        self._runner.run(self._host.__aenter__())
        self._is_open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the launcher. No process of the lab is left."""
        self._is_open = False
        try:
            self._runner.run(self._host.close())
        finally:
            self._runner.close()

    def run(
        self,
        script: Script[ArgsT, ResultT],
        args: object = None,
        replies: Replies | FakeAgent = (),
        *,
        workspace: Path | str | None = None,
        provider: str | None = None,
        checks: Sequence[Check] = (),
        continues: Receipt | None = None,
        **overrides: Unpack[LimitOverrides],
    ) -> LabRun[ResultT]:
        """Run `script` to its end and return what happened; `args` and the options are those of `Host.run`.

        `replies` are those of a `FakeAgent`, or one that you made yourself. Raises a subclass of `StartRefused` when
        nothing was started, and `RepliesDiffer`, an AssertionError, when the script asked something else than the test
        has replies for. A run that failed is returned: look at `failure`. Raises TypeError for what is no script or
        cannot be replies.
        """
        self._refuse_unusable(script)
        agent = replies if isinstance(replies, FakeAgent) else FakeAgent(replies)

        async def main() -> LabRun[ResultT]:
            run = await self._host.start(
                script,
                args,
                workspace=workspace,
                provider=provider,
                checks=checks,
                continues=continues,
                **overrides,
            )
            async with run:
                outcome = await run.wait()
            events = tuple([event async for event in run.events()])
            error = agent.error if outcome.failure is not None and outcome.failure.code in _BY_THE_AGENT else None
            return LabRun(outcome=outcome, requests=tuple(agent.requests), events=events, error=error)

        self._stage.agent = agent
        done = self._runner.run(main())
        if agent.differences:
            failure, words = done.failure, agent.differences
            if failure is not None and not (agent.lacks_reply and failure.code is Code.AGENT_RESULT):
                words = [f"the run failed with {failure.code}: {failure.message}", *words]
            raise RepliesDiffer("; ".join(words)) from done.error
        return done

    def vet(self, script: Script[Any, Any]) -> Vetted:
        """Check a script without running it, as `loopwarden vet` does; see `Host.vet`.

        `findings.bound.evaluate(args)` is how many agents it can start at most with these arguments of `main`, None
        when that is not known. Raises `ScriptRejected` with all violations.
        """
        self._refuse_unusable(script)
        return self._runner.run(self._host.vet(script))

    def _refuse_unusable(self, script: object) -> None:
        _refuse_running_loop()
        if not isinstance(script, Script):
            raise TypeError(f"a script is needed: Script.from_text(…) or from_file(…), not {type(script).__name__}")
        if not self._is_open:
            raise RuntimeError("enter the Lab first: with Lab() as lab")


class _Stage:
    """Every provider of a lab: whatever is asked, the fake agent of the run answers."""

    def __init__(self) -> None:
        self.agent = FakeAgent()

    @property
    def capabilities(self) -> Capabilities:
        return self.agent.capabilities

    async def reply(self, request: AgentRequest) -> AgentReply:
        return await self.agent.reply(request)


def _refuse_running_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError("a Lab cannot be used where an event loop runs; give a FakeAgent to a Host there")
