"""Runs that were interrupted: begun in a process that is killed, taken over here, and held to what was promised."""

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loopwarden.following import Following, outcome_of
from loopwarden.journal.chain import decode_rows
from loopwarden.journal.entries import NARRATION, Asked, Chained, Claimed, Ended, ItemFailed, Logged, PhaseNamed
from loopwarden.journal.observed import Observed
from loopwarden.journal.verify import verify
from loopwarden.outcome import Outcome
from loopwarden.store.api import Store
from loopwarden.store.runs import RunFilter
from loopwarden_engine.plain import JsonValue
from support.crash_host import Place, make_host, opened, take_over, told
from support.crash_scenes import SCENES, Order, Scene
from support.lent_launcher import LentLauncher

AN_HOUR = 3600.0
KILLED = -9
TESTS = Path(__file__).parent.parent


def private(folder: Path) -> Path:
    """A folder for a place, made when it is missing, for this user alone."""
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    return folder


class Nursery:
    """The process that forks the hosts of a test."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def run(self, place: Place, scene: str, **order: Any) -> dict[str, Any]:
        """Let a host drive a run until it ends, or dies at the point that is named. Nothing of it is left then."""
        return self._ask(do="run", folder=str(place.folder), url=place.url, scene=scene, **order)

    def begin(self, place: Place, scene: str, **order: Any) -> int:
        """Begin that; the pid of the host."""
        return int(self._ask(do="begin", folder=str(place.folder), url=place.url, scene=scene, **order)["pid"])

    def wait(self, pid: int) -> dict[str, Any]:
        """Wait until nothing is left of a host."""
        return self._ask(do="wait", pid=pid)

    def _ask(self, **order: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        assert not answer.get("left"), "processes of a host are left"
        return answer


@contextmanager
def nursery(preload: Path | None = None) -> Iterator[Nursery]:
    """A nursery, closed at the end. `preload`: a library that its hosts are linked with first."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, sys.path)])}
    if preload is not None:
        environment["LD_PRELOAD"] = str(preload)
    argv = [sys.executable, str(TESTS / "support" / "crash_host.py")]
    process = subprocess.Popen(argv, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        try:
            yield Nursery(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What a run did, apart from the order in which its agents ended."""

    calls: dict[str, str]
    """By structural key: the digest of prompt and options."""
    narration: tuple[str, ...]
    result: JsonValue
    stop_reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a store holds of one run."""

    run_id: str
    chained: list[Chained]
    outcome: Outcome[Any]
    findings: tuple[str, ...]
    status: str

    @property
    def asked(self) -> list[Asked]:
        """All asks that were committed."""
        return [one.entry for one in self.chained if isinstance(one.entry, Asked)]

    @property
    def ended(self) -> dict[int, Ended]:
        """The committed ends, by call."""
        return {one.entry.seq: one.entry for one in self.chained if isinstance(one.entry, Ended)}

    @property
    def events(self) -> list[list[Any]]:
        """What observers are told of it, each once."""
        observed = Observed(run_id=self.run_id)
        return told([event for one in self.chained for event in observed.events_of(one)])

    @property
    def trace(self) -> Trace:
        """What the run did."""
        return Trace(
            calls={entry.key: entry.digest for entry in self.asked},
            narration=tuple(sorted(_words(one.entry) for one in self.chained if isinstance(one.entry, NARRATION))),
            result=self.outcome.value,
            stop_reason=self.outcome.stop_reason,
        )


def _words(entry: PhaseNamed | Logged | ItemFailed) -> str:
    match entry:
        case PhaseNamed(title=title):
            return f"phase {title}"
        case Logged(message=message):
            return f"log {message}"
        case ItemFailed(combinator=combinator, index=index, message=message):
            return f"item {index} of {combinator}: {message}"


async def look(store: Store, run_id: str) -> Found:
    """Read a run, and verify it."""
    rows, blobs = await store.read(run_id), await store.blobs(run_id)
    following = Following(store, run_id)
    await following.more()
    row = await store.get(run_id)
    assert row is not None
    assert (row.head_seq, row.head_hash) == (rows[-1].seq, rows[-1].hash)
    return Found(
        run_id=run_id,
        chained=decode_rows(run_id, rows, blobs),
        outcome=outcome_of(following.state),
        findings=verify(rows, blobs, head=row.head_hash).findings,
        status=row.status,
    )


async def only_run(store: Store) -> str | None:
    """The id of the one run of a store; None when it was never committed."""
    rows = await store.find(RunFilter())
    assert len(rows) <= 1
    return rows[0].run_id if rows else None


async def held_now(place: Place) -> Found | None:
    """What the store of a place holds; None when there is no run in it, or no store at all."""
    if place.url is None and not (place.folder / "store.db").exists():
        return None
    async with opened(place) as store:
        run_id = await only_run(store)
        return None if run_id is None else await look(store, run_id)


async def undisturbed(place: Place, scene: str, launcher: LentLauncher) -> Trace:
    """What a run does that nobody interrupts."""
    found = await resumed(place, scene, launcher, start=True)
    assert found is not None
    judge(place, SCENES[scene], found)
    assert len(place.log.asks()) == SCENES[scene].calls + SCENES[scene].repeats
    return found.trace


async def resumed(
    place: Place,
    scene: str,
    launcher: LentLauncher,
    *,
    order: Order | None = None,
    start: bool = False,
    replays: bool = False,
) -> Found | None:
    """Take the run of a place over when its lease is over, and drive it to its end. None when there is no run.

    `replays`: replay it afterwards, from its first entry to its last.
    """
    place.time.move(AN_HOUR)
    turns = order if order is not None else Order()
    async with opened(place) as store:
        run_id = await only_run(store)
        if run_id is None and not start:
            return None
        host = make_host(place, store, SCENES[scene], turns)
        launcher.lend_to(host)
        async with host:
            if run_id is None:
                run = await host.start(SCENES[scene].script, SCENES[scene].args, **SCENES[scene].overrides)
            else:
                run = await take_over(host, run_id)
            if run is not None:
                turns.follow(run)
                outcome = await run.wait()
                events = told([event async for event in run.events()])
            if replays:
                assert run_id is not None
                assert (await host.replay(run_id)).difference is None
        run_id = await only_run(store)
        assert run_id is not None
        found = await look(store, run_id)
    if run is not None:
        assert (outcome.stop_reason, outcome.agents_started) == (
            found.outcome.stop_reason,
            found.outcome.agents_started,
        )
        assert events == found.events
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashLab:
    """Interrupts runs in processes of a nursery, and takes them over in this one."""

    runner: asyncio.Runner
    hosts: Nursery
    launcher: LentLauncher
    folder: Path
    """For runs that nobody interrupts."""
    _traces: dict[str, Trace] = field(default_factory=dict)

    def trace(self, scene: str) -> Trace:
        """What a scene does when nobody interrupts it."""
        if scene not in self._traces:
            place = Place(private(self.folder / scene))
            self._traces[scene] = self.runner.run(undisturbed(place, scene, self.launcher))
        return self._traces[scene]

    def run(self, place: Place, scene: str, **order: Any) -> int:
        """Let a host drive a run until it ends, or dies at the point that is named. How it ended."""
        return int(self.hosts.run(place, scene, **order)["exit"])

    def held(self, place: Place) -> Found | None:
        """What the store of a place holds now."""
        return self.runner.run(held_now(place))

    def resumed(self, place: Place, scene: str, **options: Any) -> Found | None:
        """Take the run of a place over, and drive it to its end: see `resumed`."""
        return self.runner.run(resumed(place, scene, self.launcher, **options))


def judge(
    place: Place,
    scene: Scene,
    found: Found,
    *,
    before: Found | None = None,
    trace: Trace | None = None,
    interruptions: int = 0,
) -> None:
    """Hold a run that came to its end to what was promised, by its journal and by the log of its provider.

    `before`: what the journal held when the run was interrupted for the last time. `trace`: what the run does when
    nobody interrupts it.
    """
    assert found.findings == ()
    assert found.status == "finished"
    assert found.outcome.failure is None
    if trace is not None:
        assert found.trace == trace
    _judge_asks(place, scene, found, interruptions)
    ended = found.ended
    assert len(ended) == scene.calls
    if before is not None:
        assert [one.hash for one in found.chained[: len(before.chained)]] == [one.hash for one in before.chained]
        assert {seq: ended[seq] for seq in before.ended} == before.ended


def _judge_asks(place: Place, scene: Scene, found: Found, interruptions: int) -> None:
    asks = place.log.asks()
    assert (
        len(asks) <= len(found.asked) <= min(scene.most_asks, scene.calls + scene.repeats + scene.live * interruptions)
    )
    committed = Counter((entry.seq, entry.attempt) for entry in found.asked)
    logged = Counter((ask.seq, ask.attempt) for ask in asks)
    assert set(committed.values()) == {1}
    assert set(logged.values()) == {1}, "an ask reached its provider twice"
    assert logged.keys() <= committed.keys(), "the provider was asked for what is not in the journal"
    for seq, end in found.ended.items():
        assert max(attempt for call, attempt in committed if call == seq) == end.attempt, "asked after its end"
        assert (seq, end.attempt) in logged or end.outcome == "failed", "an end that no agent gave"
    epochs = {}
    for one in found.chained:
        if isinstance(one.entry, Claimed):
            epoch = one.entry.epoch
        elif isinstance(one.entry, Asked):
            epochs[one.entry.seq, one.entry.attempt] = epoch
    assert {(ask.seq, ask.attempt): ask.epoch for ask in asks} == {key: epochs[key] for key in logged}
    # A redo repeats the idempotency key, any other ask changes it.
    chosen = Counter(entry.seq for entry in found.asked if entry.ask != "redo")
    for seq, most in chosen.items():
        assert len({ask.key for ask in asks if ask.seq == seq}) <= most
    redone = {(entry.seq, entry.attempt): entry.attempt - 1 for entry in found.asked if entry.ask == "redo"}
    keys = {(ask.seq, ask.attempt): ask.key for ask in asks}
    for (seq, attempt), earlier in redone.items():
        if (seq, attempt) in keys and (seq, earlier) in keys:
            assert keys[seq, attempt] == keys[seq, earlier]
