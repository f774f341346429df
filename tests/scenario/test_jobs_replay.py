"""Replay: a recorded run is gone through again, nobody is asked, and what differs is said."""

from typing import Any

import pytest

from loopwarden import Host, Script
from loopwarden.journal.entries import Asked, Created, Ended, Logged
from loopwarden.replay_version import replay_version
from loopwarden.resuming import PLAIN_DIGEST
from loopwarden.store.runs import NewRun
from loopwarden_engine.plain import digest
from support.job_lab import CHAIN, FAN, InLab, JobLab, row_of
from support.store_lab import CALL, append, claim_of, finish


def test_a_replay_of_a_run_asks_nobody_and_writes_nothing(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        host, other = await lab.host(), await lab.host(providers={"another": lab.agents}, default_provider="another")
        run_id = await host.submit(FAN, {"n": 5})
        async with host.drive():
            await host.wait_for(run_id)
        before = await row_of(host, run_id)
        verdict = await other.replay(run_id)
        assert (verdict.is_same, verdict.difference, verdict.calls) == (True, None, 5)
        assert (verdict.head_seq, verdict.head_hash) == (before.head_seq, before.head_hash)
        assert await row_of(host, run_id) == before
        assert len(lab.agents.asked) == 5

    in_lab(case)


ENDS: dict[str, tuple[str, bool]] = {
    "a script that fails": ("def main(args):\n    agent('p0')\n    raise ValueError('no')", True),
    "a script that asks for what there is not": ("def main(args):\n    agent('p0', model=3)", True),
    "a script that gives no plain data": ("def main(args):\n    return {1: 2}", True),
    "a script that says nothing": ("def main(args):\n    pass", True),
}


@pytest.mark.parametrize("name", ENDS)
def test_a_replay_comes_to_the_same_end(in_lab: InLab, name: str) -> None:
    async def case(lab: JobLab) -> None:
        host = await lab.host()
        source = f"from loopwarden_engine import agent\n\n{ENDS[name][0]}\n"
        run_id = await host.submit(Script.from_text(source))
        async with host.drive():
            await host.wait_for(run_id)
        assert (await host.replay(run_id)).difference is None

    in_lab(case)


def test_a_replay_of_a_cancelled_run_ends_where_it_was_cancelled(in_lab: InLab) -> None:
    async def case(lab: JobLab) -> None:
        lab.agents.kept = {"p1"}
        host = await lab.host()
        run_id = await host.submit(CHAIN, {"n": 3})
        async with host.drive():
            await lab.agents.until_asked("p1")
            await host.cancel(run_id)
            await host.wait_for(run_id)
        verdict = await host.replay(run_id)
        assert (verdict.difference, verdict.calls) == (None, 2)

    in_lab(case)


async def forged(host: Host, source: str, *told: Any) -> str:
    """A journal that a script never wrote."""
    assert host.custody is not None
    store, run_id = host.custody.store, "forged"
    created = Created(
        at=1.0,
        run_id=run_id,
        script="forged",
        source=source,
        source_digest=digest(source.encode()),
        contract_digest=PLAIN_DIGEST,
        args={},
        limits={"max_total_agents": 9, "max_extra_attempts": 0},
        provider="default",
        replay=replay_version(),
        queue="default",
    )
    await store.create([NewRun(created=created, content_digest="forged")])
    claim = await claim_of(store, run_id)
    for entry in told:
        await append(store, run_id, claim.row.epoch, entry, charge=CALL if isinstance(entry, Asked) else None)
    await finish(store, run_id, claim.row.epoch)
    return run_id


ASK = Asked(at=1, seq=1, key="1", digest="sha256:x", attempt=1, ask="first", provider="default", label="p")
END = Ended(at=1, seq=1, attempt=1, outcome="completed", value="yes")
FORGED: dict[str, tuple[str, tuple[Any, ...], str]] = {
    "another prompt": (
        "def main(args):\n    return agent('p0')",
        (ASK, END),
        "call 1 ('p') has another prompt or other options than in the journal",
    ),
    "a call that is not made": (
        "def main(args):\n    pass",
        (ASK, END),
        "the script ends, and the end of call 1 is recorded",
    ),
    "other narration": (
        "def main(args):\n    log('a')",
        (Logged(at=1, message="b"),),
        "the script tells its observers ('log', 'a'), and ('log', 'b') is recorded",
    ),
    "another result": (
        "def main(args):\n    return 1",
        (),
        "the script returns another result than the one that is recorded",
    ),
    "an end with an error": (
        "def main(args):\n    raise ValueError('no')",
        (),
        "the script ends with SCRIPT_ERROR (ValueError: no), and the run completed",
    ),
    "a script that waits": (
        "def main(args):\n    agent('p')",
        (),
        "the script waits for an agent, and the run completed",
    ),
    "a script that is refused": ("import os\n\ndef main(args):\n    pass", (), "the script is refused now: line 3: "),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_replay_says_where_a_journal_differs_from_its_script(in_lab: InLab, name: str) -> None:
    source, told, difference = FORGED[name]

    async def case(lab: JobLab) -> None:
        host = await lab.host()
        run_id = await forged(host, f"from loopwarden_engine import agent, log\n\n{source}\n", *told)
        verdict = await host.replay(run_id)
        assert not verdict.is_same
        assert verdict.difference is not None
        assert verdict.difference == difference or (difference.endswith(" ") and difference in verdict.difference)
        assert lab.agents.asked == []

    in_lab(case)
