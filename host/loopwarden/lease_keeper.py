"""Keeps the leases of a host's runs alive, and hands on what others ask of them.

A renewal counts from the moment before it was sent. When none is granted in time, the host has to assume that another
one drives the run: agents are interrupted, nothing is asked. A store that comes back before anybody claimed the run
gives the lease back, and the run goes on.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from loopwarden.lease_view import LeaseView, boot_seconds
from loopwarden.store.api import Store
from loopwarden.store.appends import FencedOut
from loopwarden.store.errors import StoreError
from loopwarden.store.runs import Owner, Request
from loopwarden.tenure import Tenure

RENEWALS_PER_LEASE: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRules:
    """How a host holds its runs. Times in seconds."""

    lease_seconds: float = 30.0
    kill_grace_seconds: float = 5.0
    poll_seconds: float = 2.0
    kills: bool = True
    """False: agents go on when the lease is lost (`lease_lost = "hold"`)."""


class Leased(Protocol):
    """A run as its keeper knows it."""

    def lease_ended(self) -> None:
        """The lease ended, for all that this host knows: interrupt what is at work."""
        ...

    def cancel(self, reason: str = ...) -> None:
        """Cancel the run."""
        ...

    def raise_limits(self, asked: Mapping[str, Any], by: str) -> None:
        """An operator asks for more."""
        ...


@dataclass(slots=True, eq=False)
class _Kept:
    tenure: Tenure
    run: Leased
    has_ended: bool = False


@dataclass(slots=True, kw_only=True, eq=False)
class LeaseKeeper:
    """One per host with a store."""

    store: Store
    owner: Owner
    rules: LeaseRules
    note: Callable[..., None]
    clock: Callable[[], float] = boot_seconds
    _kept: dict[str, _Kept] = field(default_factory=dict)
    _early: dict[str, list[Request]] = field(default_factory=dict)
    """Requests for runs that this host has claimed and that are not live yet."""
    _tasks: "list[asyncio.Task[None]]" = field(default_factory=list)
    _renewed_at: float = 0.0

    def lease_from(self, asked_at: float) -> LeaseView:
        """The view of a lease that was asked for at `asked_at` on the clock of the keeper."""
        return LeaseView(
            asked_at + self.rules.lease_seconds,
            kill_grace_seconds=self.rules.kill_grace_seconds,
            kills=self.rules.kills,
            clock=self.clock,
        )

    def keep(self, tenure: Tenure, run: Leased) -> None:
        """Keep the lease of a run, until `release`."""
        self._kept[tenure.run_id] = _Kept(tenure, run)
        for request in self._early.pop(tenure.run_id, []):
            self._hand_on(request)
        self.begin()

    def begin(self) -> None:
        """Renew from here on, until `close`. Harmless when repeated."""
        if not self._tasks:
            loop = asyncio.get_running_loop()
            # Apart: a store that does not answer must not keep this host from seeing that its leases have ended.
            self._tasks = [loop.create_task(self._keep_all()), loop.create_task(self._watch_all())]

    def release(self, run_id: str) -> None:
        """The run has ended, or is another host's."""
        self._kept.pop(run_id, None)
        self._early.pop(run_id, None)

    async def close(self) -> None:
        """Renew nothing any more."""
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._tasks = []

    @property
    def _pause_seconds(self) -> float:
        return min(self.rules.poll_seconds, self.rules.lease_seconds / RENEWALS_PER_LEASE / 2)

    async def _keep_all(self) -> None:
        while True:
            await asyncio.sleep(self._pause_seconds)
            if self._kept:
                await self._ask()

    async def _watch_all(self) -> None:
        while True:
            await asyncio.sleep(self._pause_seconds)
            self._look()

    async def _ask(self) -> None:
        """Renew what is due, and hand requests on."""
        try:
            async with asyncio.timeout(self.rules.lease_seconds):
                if self.clock() - self._renewed_at >= self.rules.lease_seconds / RENEWALS_PER_LEASE:
                    await self._renew()
                for request in await self.store.take_requests(self.owner):
                    self._hand_on(request)
        except (StoreError, TimeoutError) as error:
            self.note("warning", "the store cannot be asked", problem=str(error) or "no answer in time")

    def _look(self) -> None:
        """Interrupt the runs whose lease has ended."""
        for kept in list(self._kept.values()):
            ended = not kept.tenure.lease.is_alive()
            if ended and not kept.has_ended and self.rules.kills:
                kept.run.lease_ended()
            kept.has_ended = ended

    async def _renew(self) -> None:
        asked_at = self.clock()
        asked = {run_id: kept.tenure.epoch for run_id, kept in self._kept.items()}
        renewed = await self.store.renew(self.owner, asked)
        self._renewed_at = asked_at
        for run_id in asked:
            kept = self._kept.get(run_id)
            if kept is None:
                continue
            if run_id in renewed:
                kept.tenure.lease.renew(asked_at + self.rules.lease_seconds)
            elif not kept.tenure.is_ending or not kept.tenure.lease.is_alive():
                # What ends the tenure may have given the lease back already, unless it waits for the lease itself.
                kept.tenure.lost(FencedOut())

    def _hand_on(self, request: Request) -> None:
        kept = self._kept.get(request.run_id)
        if kept is None:
            self._early.setdefault(request.run_id, []).append(request)
            return
        if request.kind == "cancel":
            kept.run.cancel(f"{request.body.get('reason', 'cancelled')} (asked for by {request.by})")
        else:
            kept.run.raise_limits(request.body, request.by)
