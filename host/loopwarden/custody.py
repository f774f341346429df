"""What a host does with its store: runs are created in it, claimed from it, given back to it, and kept alive."""

import asyncio
import contextlib
import os
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

from loopwarden.creation import Booking, new_run
from loopwarden.failures import Code, Failure, InvalidRequest, StoreRefused
from loopwarden.lease_keeper import LeaseKeeper, LeaseRules
from loopwarden.logs import host_logger
from loopwarden.plan import Deployment, Plan
from loopwarden.replay_version import contract_digest, replay_version
from loopwarden.resuming import PLAIN_DIGEST
from loopwarden.run_record import Ending
from loopwarden.script import Script
from loopwarden.store.api import Store
from loopwarden.store.errors import StoreError
from loopwarden.store.runs import (
    ANY_SCRIPT,
    Claim,
    Owner,
    RunRow,
    Wanted,
)
from loopwarden.tenure import Tenure
from loopwarden.winding_up import Remains, wind_up


def new_run_id() -> str:
    """An id that no other run has, and that sorts by time."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(4)}"


class Custody:
    """The runs of one host that stand in one store."""

    def __init__(self, store: Store, rules: LeaseRules, scripts: Sequence[Script[Any, Any]]) -> None:
        self.store = store
        self.rules = rules
        self.owner = Owner(
            host_id=f"{socket.gethostname() or 'host'}/{os.getpid()}/{secrets.token_hex(4)}",
            lease_seconds=rules.lease_seconds,
        )
        self.scripts: dict[str, Script[Any, Any]] = {script.name: script for script in scripts}
        """By name: those that this host can drive."""
        self.keeper = LeaseKeeper(store=store, owner=self.owner, rules=rules, note=host_note)

    async def create(self, plan: Plan[Any, Any], run_id: str, booking: Booking) -> Tenure:
        """Create a run that this host drives at once. Raises `StoreRefused`, `InvalidRequest`.

        What was handed to a store cannot be taken back: a run whose caller is cancelled meanwhile ends as cancelled.
        """
        self.learn(plan.script)
        try:
            return await self._create(plan, run_id, booking)
        except asyncio.CancelledError:
            await asyncio.wait([asyncio.ensure_future(self._undo(run_id, plan))], timeout=self.rules.lease_seconds)
            raise

    async def _undo(self, run_id: str, plan: Plan[Any, Any]) -> None:
        message = "whoever started it was cancelled before it began"
        with contextlib.suppress(StoreError):
            # Behind the creation in the store, whatever became of that.
            await self.store.request(run_id, "cancel", {"reason": message}, self.owner.host_id)
            claimed = await self.claim_unowned(run_id)
            if claimed is not None:
                failure = Failure(code=Code.CANCELLED, message=f"the run was cancelled: {message}")
                ending = Ending(stop_reason="cancelled", failure=failure)
                await wind_up(self.tenure(*claimed), ending, Remains(limits=plan.limits))

    async def _create(self, plan: Plan[Any, Any], run_id: str, booking: Booking) -> Tenure:
        asked_at = self.keeper.clock()
        try:
            (row,) = await self.store.create([new_run(plan, run_id, booking)], owner=self.owner)
            if row.run_id != run_id:
                raise InvalidRequest(f"the key {booking.key!r} is that of run {row.run_id}; a run has its own")
            rows = await self.store.read(run_id)
            blobs = await self.store.blobs(run_id)
            lease = self.keeper.lease_from(asked_at)
            return Tenure(self.store, Claim(row=row, rows=rows, blobs=blobs), lease, time.time)
        except StoreError as error:
            raise StoreRefused(str(error)) from None

    def learn(self, script: Script[Any, Any]) -> None:
        """Be able to drive runs of a script from here on. Raises `InvalidRequest` for another contract of its name."""
        if contract_digest(script.contract) == PLAIN_DIGEST:
            return  # any host can drive those
        known = self.scripts.setdefault(script.name, script)
        if contract_digest(known.contract) != contract_digest(script.contract):
            raise InvalidRequest(
                f"this host has a loop {script.name!r} with another contract; hosts tell loops apart by their names, "
                "so give one of the two another name"
            )

    def wanted(self, queues: Mapping[str, int], providers: Sequence[str], deployment: Deployment) -> Wanted:
        """What this host can drive now."""
        approvals = deployment.approvals
        scripts = self.scripts.values() if approvals is None else approvals.fitting(self.scripts.values())
        digests = {script.name: contract_digest(script.contract) for script in scripts}
        return Wanted(
            queues=queues,
            scripts={**digests, ANY_SCRIPT: PLAIN_DIGEST},
            replay=replay_version(),
            providers=providers,
            workspaces=sorted(deployment.workspaces),
            sources=None if approvals is None else approvals.sources(),
            kill_grace_seconds=self.rules.kill_grace_seconds,
        )

    async def claim(self, wanted: Wanted, *, limit: int) -> list[tuple[Claim, float]]:
        """Claim runs; each with the moment on the keeper's clock before it was asked for. Raises `StoreError`."""
        asked_at = self.keeper.clock()
        return [(claim, asked_at) for claim in await self.store.claim(self.owner, wanted, limit=limit)]

    async def claim_one(self, run_id: str) -> tuple[Claim, float]:
        """Claim one run. Raises `InvalidRequest` when another host drives it, `StoreError`."""
        claimed = await self.claim_unowned(run_id)
        if claimed is None:
            row = await self.store.get(run_id)
            raise InvalidRequest(
                f"another host, {None if row is None else row.owner}, drives run {run_id}; it can be taken over "
                f"{self.rules.kill_grace_seconds:g} s after its lease has ended"
            )
        return claimed

    async def claim_unowned(self, run_id: str) -> tuple[Claim, float] | None:
        """Claim one run; None when another host drives it. Raises `StoreError`."""
        asked_at = self.keeper.clock()
        claim = await self.store.claim_one(self.owner, run_id, kill_grace_seconds=self.rules.kill_grace_seconds)
        return None if isinstance(claim, RunRow) else (claim, asked_at)

    def tenure(self, claim: Claim, asked_at: float) -> Tenure:
        """The ownership of a run that was claimed. Raises `StoreCorrupt`."""
        return Tenure(self.store, claim, self.keeper.lease_from(asked_at), time.time)


def host_note(level: str, event: str, **content: Any) -> None:
    """Log what concerns the host. A log that fails must change nothing."""
    with contextlib.suppress(Exception):
        getattr(host_logger(), level)(event, **content)
