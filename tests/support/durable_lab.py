"""Durable runs on hosts that share a store: hosts that stop or crash, and what a journal is held to."""

from collections.abc import Callable
from typing import Any

from loopwarden import Host, Run, Script
from loopwarden.following import Following
from loopwarden.journal.observed import Observed
from loopwarden.journal.receipt_fold import receipt_of
from loopwarden.journal.verify import verify
from loopwarden.receipt import Receipt
from loopwarden.store.runs import Claim
from support.job_lab import CHAIN, SHORT, JobLab
from support.store_lab import journal


def store_of(host: Host) -> Any:
    """The store of a host that has one."""
    assert host.custody is not None
    return host.custody.store


async def entries_of(host: Host, run_id: str) -> list[Any]:
    """The journal of a run."""
    return [chained.entry for chained in await journal(store_of(host), run_id)]


async def state_of(host: Host, run_id: str) -> Any:
    """What the journal of a run comes to."""
    following = Following(store_of(host), run_id)
    await following.more()
    return following.state


async def check_sound(host: Host, run_id: str) -> None:
    """The journal folds, keeps all promises, and every agent whose start observers saw has one end."""
    store = store_of(host)
    verdict = verify(await store.read(run_id), await store.blobs(run_id))
    assert verdict.findings == ()
    seen = await observed(host, run_id)
    starts = [event["seq"] for event in seen if event["event"] == "agentStarted"]
    ends = [event["seq"] for event in seen if event["event"] == "agentEnded"]
    assert sorted(starts) == sorted(ends)
    assert len(ends) == len(set(ends))


async def observed(host: Host, run_id: str) -> list[dict[str, Any]]:
    """The events that the journal gives, apart from progress."""
    book = Observed(run_id=run_id)
    found = [event for chained in await journal(store_of(host), run_id) for event in book.events_of(chained)]
    return [event.to_json() | {"at": None} for event in found if event.kind != "agentProgress"]


async def seen_live(run: Run[Any]) -> list[dict[str, Any]]:
    """What observers of a run saw, apart from progress."""
    return [event.to_json() | {"at": None} async for event in run.events() if event.kind != "agentProgress"]


def plain(receipt: Receipt) -> dict[str, Any]:
    """A receipt without what is measured twice, and without folders."""
    body = Receipt.model_validate(receipt.to_json()).to_json()
    for name in ("startedAt", "endedAt"):
        body[name] = body[name] is not None
    for agent in body["agents"]:
        agent["folder"] = None
        agent["seconds"] = agent["seconds"] is not None
        for ask in agent["asks"]:
            ask["seconds"], ask["pausedSeconds"] = ask["seconds"] is not None, ask["pausedSeconds"] > 0.005
    return body


def differences(one: Any, other: Any, place: str = "") -> list[str]:
    """Where two values of JSON differ."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return [found for name in one for found in differences(one[name], other[name], f"{place}.{name}")]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [found for index, (a, b) in pairs for found in differences(a, b, f"{place}[{index}]")]
    return [] if one == other else [f"{place}: {one!r} and {other!r}"]


async def check_receipt(host: Host, run: Run[Any]) -> None:
    """The live receipt is the one that the journal tells."""
    assert differences(plain(run.receipt()), plain(receipt_of(await state_of(host, run.id)))) == []


async def freeze(lab: JobLab, host: Host) -> None:
    """Let a host renew nothing and hear nothing, as if it were stopped. Before it is closed, it goes on."""
    assert host.custody is not None
    await host.custody.keeper.close()
    lab._stack.callback(thaw, host)


def thaw(host: Host) -> None:
    """Let it go on."""
    assert host.custody is not None
    host.custody.keeper.begin()


def sleeper(host: Host) -> Callable[[float], None]:
    """What is returned lets the machine of a host sleep for so many seconds: its leases end, and it sees that."""
    assert host.custody is not None
    keeper, slept = host.custody.keeper, [0.0]
    clock = keeper.clock
    keeper.clock = lambda: clock() + slept[0]

    def sleep(seconds: float) -> None:
        slept[0] += seconds
        keeper._look()

    return sleep


async def claim_by(host: Host, run_id: str) -> tuple[Claim, float]:
    """Claim a run that may be claimed now."""
    assert host.custody is not None
    return await host.custody.claim_one(run_id)


async def left_behind(lab: JobLab, *prompts: str, script: Script[Any, Any] = CHAIN, n: int = 2, **more: Any) -> str:
    """A run whose first host stopped in order while these prompts were asked. Its id."""
    lab.agents.kept |= set(prompts)
    first = await lab.host(**more)
    run_id = await first.submit(script, {"n": n})
    async with first.drive():
        for prompt in prompts:
            await lab.agents.until_asked(prompt)
    await first.close()
    return run_id


async def crashed(lab: JobLab, *prompts: str, script: Script[Any, Any] = CHAIN, n: int = 2) -> tuple[Host, str]:
    """A host that died while these prompts were asked, and its run: its last asks have no end in the journal."""
    lab.agents.kept |= set(prompts)
    first = await lab.host(leases=SHORT)
    run_id = await first.submit(script, {"n": n})
    async with first.drive():
        for prompt in prompts:
            await lab.agents.until_asked(prompt)
    await freeze(lab, first)
    return first, run_id


async def until_claimed(host: Host, run_id: str) -> tuple[Claim, float]:
    """Claim a run once its lease and the kill grace are over."""
    assert host.custody is not None
    while True:
        claimed = await host.custody.claim_unowned(run_id)
        if claimed is not None:
            return claimed
        await store_of(host).changed(run_id, after=10**6, timeout_seconds=0.05)
