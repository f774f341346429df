"""What is shown of a durable run agrees with its journal, however it ends and whoever drives it."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from loopwarden import AgentFailed, AgentReply, AgentRequest, FailureClass, Limits, Policy, Retry, Script, Usage
from loopwarden.journal.receipt_fold import receipt_of
from loopwarden.receipt import read_receipt
from support.durable_lab import (
    check_receipt,
    check_sound,
    claim_by,
    crashed,
    differences,
    freeze,
    left_behind,
    observed,
    plain,
    seen_live,
    state_of,
    thaw,
    until_claimed,
)
from support.job_lab import CHAIN, SHORT, InLab, JobLab

TALKER = Script.from_text(
    """
from loopwarden_engine import agent, log, parallel, phase

def fails(i):
    if i == 1:
        raise ValueError("item one")
    return agent(f"q{i}", label=f"label {i}")

def main(args):
    phase("asking")
    found = parallel([lambda i=i: fails(i) for i in range(4)])
    log(f"found {len(found)}")
    phase("once more")
    return [found, agent("last")]
""",
    name="talker",
)


async def talk(request: AgentRequest) -> AgentReply:
    usage = Usage(input_tokens=7, output_tokens=3, cost_usd=0.5)
    if request.prompt == "q2" and request.attempt == 1:
        raise AgentFailed("too busy", failure_class=FailureClass.OVERLOADED, usage=usage, evidence="529")
    if request.prompt == "q3":
        raise AgentFailed("it cannot", notes=("it tried",), evidence="no tool")
    return AgentReply(text=f"a {request.prompt}", usage=usage, notes=("a note",))


RETRIES = {"default": Policy(retry=Retry(classes=frozenset({FailureClass.OVERLOADED}), first_seconds=0.01))}


@pytest.mark.parametrize("ending", ["completed", "failed", "cancelled"])
def test_the_live_receipt_and_the_live_events_are_those_of_the_journal(in_lab: InLab, ending: str) -> None:
    async def case(lab: JobLab) -> None:
        async def reply(request: AgentRequest) -> AgentReply | str:
            if request.prompt == "last" and ending == "failed":
                return None  # type: ignore[return-value]
            if request.prompt == "last" and ending == "cancelled":
                return await lab.agents(request)
            return await talk(request)

        lab.agents.kept = {"last"}
        host = await lab.host(providers={"default": reply}, policies=RETRIES, limits=Limits(agent_grace_seconds=0.2))
        run = await host.start(TALKER)
        if ending == "cancelled":
            await lab.agents.until_asked("last")
            run.cancel("enough")
        outcome = await run.wait()
        assert outcome.stop_reason == {"completed": "completed", "failed": "error", "cancelled": "cancelled"}[ending]
        await check_receipt(host, run)
        assert await seen_live(run) == await observed(host, run.id)
        await check_sound(host, run.id)
        assert run.receipt().journal is not None
        assert run.receipt().attempts == 5

    in_lab(case)


def test_a_receipt_after_a_takeover_tells_of_both_hosts(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        run_id = await left_behind(lab, "p1", n=3)
        second = await lab.host()
        lab.agents.let_go("p1")
        run = await second.adopt(*await claim_by(second, run_id))
        assert run is not None
        outcome = await run.wait()
        assert outcome.value == ["answer to p0", "answer to p1", "answer to p2"]
        await check_receipt(second, run)
        assert await seen_live(run) == await observed(second, run_id)
        assert [len(agent.asks) for agent in run.receipt().agents] == [1, 2, 1]
        assert run.receipt().agents[0].seconds is not None
        await check_sound(second, run_id)

    in_lab(case)


def test_a_receipt_after_a_crash_tells_of_the_interruption(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        first, run_id = await crashed(lab, "p1", n=3)
        second = await lab.host()
        claimed = await until_claimed(second, run_id)
        lab.agents.let_go("p1")
        run = await second.adopt(*claimed)
        assert run is not None
        await run.wait()
        await check_receipt(second, run)
        assert await seen_live(run) == await observed(second, run_id)
        assert [ask.outcome for ask in run.receipt().agents[1].asks] == ["interrupted", "completed"]
        await check_sound(second, run_id)
        thaw(first)
        loser = first.get(run_id)
        assert loser is not None
        await loser.wait()
        assert await seen_live(loser) == await observed(second, run_id)
        assert plain(loser.receipt()) == plain(run.receipt())

    in_lab(case)


def test_an_interrupted_call_without_an_attempt_left_fails_alike_in_receipt_and_journal(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        lab.agents.kept = {"p0"}
        limits = Limits(max_extra_attempts=0, agent_grace_seconds=0.2)
        first, second = await lab.host(limits=limits, leases=SHORT), await lab.host(limits=limits)
        run_id = await first.submit(CHAIN, {"n": 2})
        async with first.drive():
            await lab.agents.until_asked("p0")
        await freeze(lab, first)
        run = await second.adopt(*await until_claimed(second, run_id))
        assert run is not None
        assert (await run.wait()).value == [None, "answer to p1"]
        await check_receipt(second, run)
        assert await seen_live(run) == await observed(second, run_id)
        await check_sound(second, run_id)
        thaw(first)

    in_lab(case)


def git(folder: Path, *arguments: str) -> str:
    argv = ["git", "-c", "user.name=Tester", "-c", "user.email=tester@example.org", *arguments]
    return subprocess.run(argv, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def test_a_worktree_and_a_run_folder_are_taken_over_as_they_were_left(
    in_lab: InLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")

    async def case(lab: JobLab) -> None:
        repository, state = tmp_path / "repo", tmp_path / "kept"
        repository.mkdir()
        git(repository, "init", "--quiet", "--initial-branch=main")
        (repository / "file.txt").write_text("one\n")
        git(repository, "add", "--all")
        git(repository, "commit", "--quiet", "-m", "first")
        places: list[Path] = []

        async def works(request: AgentRequest) -> str:
            assert request.workspace is not None
            places.append(request.workspace)
            seen = sorted(path.name for path in request.workspace.iterdir() if path.name.endswith(".done"))
            if request.prompt == "p1" and len(places) == 2:
                return await lab.agents(request)
            (request.workspace / f"{request.prompt}.done").touch()
            return ",".join(seen)

        lab.agents.kept = {"p1"}
        more: dict[str, Any] = {"providers": {"default": works}, "state_folder": state}
        first, second = await lab.host(**more), await lab.host(**more)
        run_id = await first.submit(CHAIN, {"n": 3}, workspace=repository, isolation="worktree")
        async with first.drive():
            await lab.agents.until_asked("p1")
        await first.close()
        async with second.drive():
            outcome = await second.wait_for(run_id)
        assert outcome.value == ["", "p0.done", "p0.done,p1.done"]
        assert len(set(places)) == 1
        assert not (repository / "p0.done").exists()
        receipt = receipt_of(await state_of(second, run_id))
        assert receipt.worktree is not None
        assert receipt.worktree.branch == f"loopwarden/{run_id}"
        assert "the run goes on in the worktree as it was left" in receipt.worktree.notes
        [folder] = [path for path in (state / "runs").iterdir() if path.name == run_id]
        kept = read_receipt(folder / "receipt.json")
        assert (kept.stop_reason, kept.agents_started, kept.attempts) == ("completed", 3, 4)
        run = second.get(run_id)
        assert run is not None
        assert run.folder == folder
        live, told = plain(run.receipt()), plain(receipt)
        # The journal names the workspace that was asked for, and the receipt of a host the folder that it made of it.
        assert live.pop("workspace") != told.pop("workspace")
        assert differences(live, told) == []
        for seq, prompt in enumerate(("p0", "p1", "p2"), 1):
            [of_agent] = [path for path in folder.rglob("prompt.txt") if path.read_text() == prompt]
            assert str(seq) in of_agent.parent.name
        await check_sound(second, run_id)

    in_lab(case)
