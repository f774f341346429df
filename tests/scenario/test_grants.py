"""Policies, breakers, caps on money, workspaces that are shared or isolated: through a real host."""

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from loopwarden import (
    AgentFailed,
    AgentReply,
    AgentRequest,
    BreakerRule,
    Capabilities,
    FailureClass,
    Host,
    InvalidRequest,
    Limits,
    Policy,
    ProviderUnfit,
    Retry,
    Script,
    Usage,
    WorkspaceBusy,
)
from loopwarden.receipt import read_receipt
from loopwarden_scripts import ralph

ASK = Script.from_text(
    "from loopwarden_engine import agent\n\ndef main(args):\n    return [agent('one'), agent('two')]\n"
)
CRASHED = frozenset({FailureClass.CRASHED})
RETRY = Policy(retry=Retry(classes=CRASHED, times=2, first_seconds=0))


class Flaky:
    """Fails its first asks with a class, then answers."""

    def __init__(self, failures: int, failure_class: FailureClass, **capabilities: bool) -> None:
        self.failures = failures
        self.failure_class = failure_class
        self.capabilities = Capabilities(structured_output=True, fresh_context=True, **capabilities)
        self.asked = 0

    async def reply(self, request: AgentRequest) -> AgentReply:
        self.asked += 1
        if self.asked <= self.failures:
            raise AgentFailed("it went wrong", failure_class=self.failure_class, evidence="line 7: boom")
        return AgentReply(text="done", usage=Usage(input_tokens=10, output_tokens=2, cost_usd=0.25))


def test_every_attempt_stands_in_the_receipt_with_class_evidence_and_usage(tmp_path: Path) -> None:
    async def main() -> tuple[Any, Path | None]:
        async with Host(
            providers={"default": Flaky(1, FailureClass.CRASHED)},
            policies={"default": RETRY},
            limits=Limits(max_extra_attempts=3),
            state_folder=tmp_path,
        ) as host:
            run = await host.start(ASK)
            outcome = await run.wait()
            return outcome, run.folder

    outcome, folder = asyncio.run(main())
    assert outcome.value == ["done", "done"]
    assert folder is not None
    receipt = read_receipt(folder / "receipt.json")
    assert (receipt.agents_started, receipt.attempts) == (2, 3)
    assert receipt.usage is not None
    assert (receipt.usage.input_tokens, receipt.usage.cost_usd, receipt.attempts_of_unknown_cost) == (20, 0.5, 1)
    first, second = receipt.agents
    assert [(ask.number, ask.kind, ask.outcome, ask.failure_class, ask.evidence) for ask in first.asks] == [
        (1, "first", "failed", "crashed", "line 7: boom"),
        (2, "retry", "completed", None, None),
    ]
    assert first.failure_class is None
    assert [ask.kind for ask in second.asks] == ["first"]


@pytest.mark.parametrize(
    ("policies", "limits", "error", "words"),
    [
        ({"default": RETRY}, Limits(), InvalidRequest, "max_extra_attempts"),
        ({}, Limits(max_cost_usd=1.0), ProviderUnfit, "does not say what its agents cost"),
        ({"default": Policy(fallback="weak")}, Limits(max_extra_attempts=1), ProviderUnfit, "'weak' cannot"),
    ],
)
def test_what_a_policy_or_a_cap_needs_is_checked_before_anything_starts(
    policies: dict[str, Policy], limits: Limits, error: type[Exception], words: str, tmp_path: Path
) -> None:
    weak = Flaky(0, FailureClass.CRASHED)
    weak.capabilities = Capabilities()

    async def main() -> None:
        async with Host(
            providers={"default": Flaky(0, FailureClass.CRASHED), "weak": weak}, policies=policies, limits=limits
        ) as host:
            with pytest.raises(error, match=words):
                await host.start(ralph.script, ralph.Args(objective="x"), workspace=tmp_path)
            assert host.runs() == []

    asyncio.run(main())


def test_a_request_may_lower_the_repeats_to_none() -> None:
    provider = Flaky(1, FailureClass.CRASHED)

    async def main() -> Any:
        async with Host(
            providers={"default": provider}, policies={"default": RETRY}, limits=Limits(max_extra_attempts=3)
        ) as host:
            return await host.run(ASK, max_extra_attempts=0)

    outcome = asyncio.run(main())
    assert outcome.value == [None, "done"]
    assert provider.asked == 2
    assert outcome.receipt.agents[0].notes == ["not asked again: maxExtraAttempts of this run, 0, is used up"]


def test_an_open_breaker_ends_the_run_and_refuses_the_next_one_even_of_another_host(tmp_path: Path) -> None:
    provider = Flaky(9, FailureClass.AUTH)
    policies = {"default": Policy(breaker=BreakerRule(reopen_seconds=900))}

    async def main() -> Any:
        async with Host(providers={"default": provider}, policies=policies, state_folder=tmp_path) as host:
            outcome = await host.run(ASK)
            with pytest.raises(ProviderUnfit, match="out of use: auth"):
                await host.start(ASK)
        async with Host(providers={"default": provider}, policies=policies, state_folder=tmp_path) as host:
            with pytest.raises(ProviderUnfit, match="out of use: auth"):
                await host.start(ASK)
        return outcome

    outcome = asyncio.run(main())
    assert provider.asked == 1
    assert outcome.failure.code == "AGENT_START"
    assert outcome.failure.details["class"] == "auth"
    assert [agent.outcome for agent in outcome.receipt.agents] == ["failed"]


def test_a_cap_on_money_ends_the_run_before_the_next_ask() -> None:
    provider = Flaky(0, FailureClass.CRASHED, cost_known=True)

    async def main() -> Any:
        async with Host(providers={"default": provider}, limits=Limits(max_cost_usd=5.0)) as host:
            return await host.run(ASK, max_cost_usd=0.25)

    outcome = asyncio.run(main())
    assert provider.asked == 1
    assert outcome.failure.code == "COST_CAP"
    assert outcome.receipt.decided_by == "the host: a limit"


def test_a_workspace_is_shared_only_when_the_second_run_says_so(tmp_path: Path) -> None:
    workspace = tmp_path / "work"
    workspace.mkdir()

    async def main() -> None:
        hold = asyncio.Event()

        async def reply(request: AgentRequest) -> str:
            await hold.wait()
            return "ok"

        async with Host(providers={"default": reply}, state_folder=tmp_path / "state") as host:
            first = await host.start(ASK, workspace=workspace)
            with pytest.raises(WorkspaceBusy, match="share"):
                await host.start(ASK, workspace=workspace)
            second = await host.start(ASK, workspace=workspace, share_workspace=True)
            hold.set()
            assert [(await run.wait()).value for run in (first, second)] == [["ok", "ok"]] * 2

    asyncio.run(main())


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    return subprocess.run(["git", "-C", folder, *identity, *words], check=True, capture_output=True, text=True).stdout


def test_a_run_ends_also_when_its_worktree_cannot_be_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = tmp_path / "repo"
    workspace.mkdir()
    git(workspace, "init", "-q", "-b", "main")
    git(workspace, "commit", "-q", "--allow-empty", "-m", "first")

    async def fail(worktree: object) -> str:
        raise RuntimeError("anything")

    async def main() -> Any:
        async with Host(providers={"default": Flaky(0, FailureClass.CRASHED)}, state_folder=tmp_path / "state") as host:
            return await asyncio.wait_for(host.run(ASK, workspace=workspace, isolation="worktree"), 30)

    monkeypatch.setattr("loopwarden.run_record.note_at_the_end", fail)
    outcome = asyncio.run(main())
    assert outcome.stop_reason == "completed"
    assert outcome.receipt.worktree.notes == ["whether the work in it is committed is not known: RuntimeError"]


def test_a_run_in_a_worktree_leaves_the_workspace_alone_and_keeps_its_branch(tmp_path: Path) -> None:
    workspace = tmp_path / "repo"
    workspace.mkdir()
    git(workspace, "init", "-q", "-b", "main")
    (workspace / "file.txt").write_text("old")
    git(workspace, "add", ".")
    git(workspace, "commit", "-q", "-m", "first")

    async def reply(request: AgentRequest) -> str:
        assert request.workspace is not None
        (request.workspace / "file.txt").write_text("new")
        return str(request.workspace)

    async def main() -> Any:
        async with Host(providers={"default": reply}, state_folder=tmp_path / "state") as host:
            outcome = await host.run(ASK, workspace=workspace, isolation="worktree")
            refused = Script.from_text("import os\n\ndef main(args):\n    return 1\n")
            with pytest.raises(Exception, match="import"):
                await host.start(refused, workspace=workspace, isolation="worktree")
            return outcome

    outcome = asyncio.run(main())
    worktree = outcome.receipt.worktree
    assert worktree is not None
    assert outcome.value == [worktree.path] * 2
    assert (workspace / "file.txt").read_text() == "old"
    assert (Path(worktree.path) / "file.txt").read_text() == "new"
    assert worktree.notes == [f"not committed yet: 1 file; commit there before you merge {worktree.branch}"]
    assert git(workspace, "branch", "--list", "loopwarden/*", "--format", "%(refname:short)").split() == [
        worktree.branch
    ]
    assert json.loads(json.dumps(outcome.receipt.to_json()))["worktree"]["commit"] == worktree.commit
