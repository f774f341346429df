"""A host that tests kill: one run of a scene, begun or taken over, in a process of its own.

As a program it is a nursery: it loads everything once, and forks a host for each line of JSON that it reads. It is the
subreaper of its hosts, so that it knows when nothing of a host is left: no launcher, no worker, no agent.
"""

import asyncio
import contextlib
import ctypes
import json
import mmap
import os
import signal
import struct
import sys
import time
import traceback
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TextIO
from unittest.mock import patch

import loopwarden.launching
from loopwarden import Host
from loopwarden.checks import Check
from loopwarden.lease_keeper import LeaseRules
from loopwarden.lease_view import boot_seconds
from loopwarden.outcome import Outcome
from loopwarden.providers.command import CommandProvider
from loopwarden.run import Run
from loopwarden.store.api import Store
from loopwarden.store.postgres import open_postgres
from loopwarden.store.postgres_session import PostgresTransaction
from loopwarden.store.runs import Claim, Status
from loopwarden.store.sqlite import open_sqlite
from loopwarden_engine.plain import JsonValue
from support.crash_scenes import SCENES, Order, ProviderLog, Scene, SceneProvider
from support.crash_seams import Seams, set_pragmas
from support.launcher_stock import LauncherStock

PR_SET_CHILD_SUBREAPER = 36
PATIENCE_SECONDS = 20.0
SPAWNS: Final = ("launcher", "fork.before", "fork.after")
"""The seams of hosts that start a launcher as it is; others get one from stock."""
QUICK = LeaseRules(lease_seconds=30.0, kill_grace_seconds=5.0, poll_seconds=0.02)
"""Time is moved, never waited for; what is asked of a host is looked at often."""


class SharedTime:
    """Time that a test moves forward for every process of a place at once."""

    def __init__(self, folder: Path) -> None:
        path = folder / "ahead"
        if not path.exists():
            path.write_bytes(struct.pack("d", 0.0))
        with path.open("r+b") as file:
            self._ahead = mmap.mmap(file.fileno(), 8)

    @property
    def ahead(self) -> float:
        """Seconds."""
        return float(struct.unpack("d", self._ahead[:8])[0])

    def move(self, seconds: float) -> None:
        """Let time pass."""
        self._ahead[:8] = struct.pack("d", self.ahead + seconds)

    def wall(self) -> float:
        """Unix time, as stores see it."""
        return time.time() + self.ahead

    def boot(self) -> float:
        """Seconds since the machine started, as hosts see it."""
        return boot_seconds() + self.ahead


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run is kept: the folder of a test, and the URL of a Postgres database unless it is a SQLite file."""

    folder: Path
    url: str | None = None

    @property
    def log(self) -> ProviderLog:
        """What the provider was asked."""
        return ProviderLog(self.folder / "asks")

    @property
    def time(self) -> SharedTime:
        """The time of the store, and of every host."""
        return SharedTime(self.folder)

    def report(self) -> dict[str, Any]:
        """What a host that ended by itself saw of its run."""
        found: dict[str, Any] = json.loads((self.folder / "report").read_text())
        return found

    def passed(self) -> dict[str, int]:
        """How often the last host that ended by itself passed each seam."""
        found: dict[str, int] = json.loads((self.folder / "passed").read_text())
        return found


@contextlib.asynccontextmanager
async def opened(place: Place) -> AsyncIterator[Store]:
    """The store of a place, on its shared time."""
    clock = place.time.wall
    with patch.object(PostgresTransaction, "now", lambda _: clock()):
        store: Store
        if place.url is None:
            store = await open_sqlite(place.folder / "store.db", clock=clock)
        else:
            store = await open_postgres(place.url)
        try:
            yield store
        finally:
            await store.close()


def make_host(place: Place, store: Store, scene: Scene, order: Order, seams: Seams | None = None, **more: Any) -> Host:
    """A host for one scene."""
    more = {"providers": {"default": SceneProvider(scene, place.log, order, seams)}, "leases": QUICK} | more
    host = Host(store=store, scripts=[scene.script], policies=scene.policies, **more)
    assert host.custody is not None
    host.custody.keeper.clock = place.time.boot
    order.watch(host)
    return host


async def begin(host: Host, scene: Scene, **more: Any) -> Run[Any]:
    """Start the run of a scene."""
    return await host.start(scene.script, scene.args, **scene.overrides, **more)


async def take_over(host: Host, run_id: str) -> Run[Any] | None:
    """Claim a run, which may be claimed now, and adopt it. None when it is over."""
    custody = host.custody
    assert custody is not None
    row = await custody.store.get(run_id)
    if row is not None and row.status is Status.FINISHED:
        return None
    claimed: tuple[Claim, float] = await custody.claim_one(run_id)
    return await host.adopt(*claimed)


def told(events: list[Any]) -> list[list[Any]]:
    """Events as observers tell them apart; progress is no fact."""
    return [
        [event.number, event.kind, *(getattr(event, name, None) for name in ("seq", "title", "message"))]
        for event in events
        if event.kind != "agentProgress"
    ]


def said(outcome: Outcome[Any]) -> dict[str, JsonValue]:
    """An outcome, for a scene whose result is plain JSON."""
    failure = outcome.failure
    return {
        "stopReason": outcome.stop_reason,
        "value": outcome.value,
        "failure": None if failure is None else failure.code.value,
        "agentsStarted": outcome.agents_started,
    }


# ---- the process that is killed


async def _host_one_run(order: dict[str, Any], seams: Seams) -> None:
    place = Place(Path(order["folder"]), order.get("url"))
    scene = SCENES[order["scene"]]
    turns = Order(order.get("seed"), most=order.get("most", 1))
    turns.is_closed = order.get("is_mute", False)
    more: dict[str, Any] = {"leases": LeaseRules(**order["leases"])} if "leases" in order else {}
    if "mark" in order:
        agent = CommandProvider(["sh", "-c", "sleep 600 & sleep 600"], env={"TEST_MARK": order["mark"]})
        more["providers"] = {"default": agent}
    async with opened(place) as store, make_host(place, store, scene, turns, seams, **more) as host:
        options: dict[str, Any] = {}
        if "mark" in order or "checks" in order:
            # Shared: a host that is stopped keeps its hold on the folder, as long as it exists.
            options = {"workspace": place.folder / "work", "share_workspace": True}
            options["checks"] = [Check.parse(line) for line in order.get("checks", ())]
        run = await (take_over(host, order["run"]) if "run" in order else begin(host, scene, **options))
        if run is None:
            return
        turns.follow(run)
        (place.folder / "begun").touch()
        await run.gone()
        (place.folder / "gone").touch()
        outcome = await run.wait()
        report = said(outcome) | {"events": told([event async for event in run.events()])}
    (place.folder / "report").write_text(json.dumps(report, default=repr))


def _child(order: dict[str, Any], stock: LauncherStock) -> None:
    seams = Seams(seam=order.get("seam"), at=order.get("at", 0), action=order.get("action", "kill"))
    shim = ctypes.CDLL(None)
    if "kept" in order:
        seams.cut_power = lambda: shim.loopwarden_cut_power(order["kept"])
        shim.loopwarden_cut_power_at(order.get("write", 0), order.get("sync", 0), order["kept"])
    seams.install()
    if order.get("seam") not in SPAWNS:
        loopwarden.launching.spawn_launcher = stock.spawn  # type: ignore[assignment]
    if "pragmas" in order:
        set_pragmas(order["pragmas"])
    asyncio.run(_host_one_run(order, seams))
    counts = dict(seams.counts)
    if "kept" in order:
        counts |= {"writes": shim.loopwarden_writes(), "syncs": shim.loopwarden_syncs()}
    (Path(order["folder"]) / "passed").write_text(json.dumps(counts))


def _fork(order: dict[str, Any], stock: LauncherStock) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        _child(order, stock)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _wait_for_all(host: int, stock: LauncherStock) -> dict[str, Any]:
    """Wait until nothing of a host is left; how it ended, and what is left of it when the patience is over."""
    status: int | None = None
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    deadline = time.monotonic() + PATIENCE_SECONDS

    def timed_out(number: int, frame: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, timed_out)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE_SECONDS)
    try:
        while children.read_text().split() != [str(stock.pid)]:
            pid, ended = os.waitpid(-1, 0)
            if pid == host:
                status = os.waitstatus_to_exitcode(ended)
        return {"exit": status, "left": False}
    except TimeoutError:
        return {"exit": status, "left": True, "seconds": time.monotonic() - deadline + PATIENCE_SECONDS}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def nursery(lines: TextIO, answers: TextIO) -> None:
    """Do what is ordered, line by line: run a host to its end; begin one and say its pid; wait for its end."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    stock = LauncherStock()
    for line in lines:
        order = json.loads(line)
        answer: dict[str, Any]
        if order["do"] == "run":
            answer = _wait_for_all(_fork(order, stock), stock)
        elif order["do"] == "begin":
            answer = {"pid": _fork(order, stock)}
        else:
            answer = _wait_for_all(order["pid"], stock)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    nursery(sys.stdin, sys.stdout)
