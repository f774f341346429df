"""Runs as the store of the settings holds them: found by what a person types, with receipts and how they stand."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from loopwarden.cli.deployment_host import store_file
from loopwarden.cli.receipt_view import verdict
from loopwarden.cli.store_access import shown_time
from loopwarden.creation import DEFAULT_QUEUE
from loopwarden.display import shown_line
from loopwarden.failures import InvalidRequest, StoreRefused
from loopwarden.following import Following, mending
from loopwarden.journal.fold import RunState
from loopwarden.journal.receipt_fold import receipt_of
from loopwarden.receipt import Receipt, ReceiptError, read_receipt
from loopwarden.run_folder import RECEIPT, agent_folder_name, is_live, runs_folder
from loopwarden.settings import Settings
from loopwarden.store.api import Store
from loopwarden.store.errors import StoreError
from loopwarden.store.opening import open_store
from loopwarden.store.runs import RunFilter, RunRow, Status

T = TypeVar("T")

_PAGE: Final = 500
_MOST_SEARCHED: Final = 20_000
"""Runs that are looked through for the beginning of an id, the newest first."""
_MOST_NAMED: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """One run of the store, for a reader."""

    row: RunRow
    receipt: Receipt
    standing: str
    """How it stands or ended, in one line."""


def with_existing_store(settings: Settings, act: Callable[[Store], Awaitable[T]]) -> T | None:
    """Do something with the store of the settings; None when there is none, or when nothing was ever put into it.

    Raises `StoreRefused` when it cannot be opened or read.
    """
    file = store_file(settings)
    if settings.store.kind in ("none", "memory") or (file is not None and not file.exists()):
        return None

    async def run() -> T:
        store = await open_store(settings)
        try:
            return await act(store)
        finally:
            await store.close()

    try:
        return asyncio.run(run())
    except StoreError as error:
        raise StoreRefused(str(error)) from None


async def find_stored(store: Store, text: str) -> RunRow | None:
    """The run that a person means: by its id, or by a beginning of it that no other run has. None: there is none.

    Raises `InvalidRequest` when several begin so, and `StoreError`.
    """
    exact = await store.get(text)
    if exact is not None or not text:
        return exact
    matches: list[RunRow] = []
    last: str | None = None
    seen = 0
    while seen < _MOST_SEARCHED:
        page = await store.find(RunFilter(before=last, limit=_PAGE))
        matches += [row for row in page if row.run_id.startswith(text)]
        if len(page) < _PAGE:
            break
        seen, last = seen + len(page), page[-1].run_id
    if len(matches) > 1:
        more = " …" if len(matches) > _MOST_NAMED else ""
        names = ", ".join(row.run_id for row in matches[:_MOST_NAMED]) + more
        raise InvalidRequest(f"{text!r} begins the ids of {len(matches)} runs ({names}); type more of it")
    return matches[0] if matches else None


async def need_stored(store: Store, text: str) -> RunRow:
    """As `find_stored`. Raises `InvalidRequest` also when there is none."""
    row = await find_stored(store, text)
    if row is None:
        raise InvalidRequest(
            f"the store {store.name} holds no run {text[:200]!r}; `loopwarden runs` lists them, and runs without a "
            "journal, or that were pruned, are not in it"
        )
    return row


async def stored_run(store: Store, row: RunRow, settings: Settings) -> StoredRun:
    """A run with its receipt, folded from its journal. Raises `StoreError`."""
    state = await state_of(store, row.run_id)
    receipt = with_agent_folders(receipt_of(state), run_folder(settings, row.run_id))
    if row.status is Status.FINISHED:
        return StoredRun(row=row, receipt=receipt, standing=verdict(receipt))
    standing = row_words(row, await store.now(), is_lost=is_lost(row, await store.now(), settings))
    return StoredRun(row=row, receipt=receipt, standing=standing)


async def state_of(store: Store, run_id: str) -> RunState:
    """What the journal of a run adds up to. Raises `StoreError`."""
    following = Following(store, run_id)
    await following.more()
    return following.state


def run_folder(settings: Settings, run_id: str) -> Path | None:
    """The folder of a run on this machine; None when there is none."""
    folder = runs_folder(settings.state_folder) / run_id
    return folder if folder.is_dir() else None


def receipt_in_folder(settings: Settings, row: RunRow) -> Receipt | None:
    """The receipt in the folder of a run, when it tells of the head that the store has; else None."""
    folder = run_folder(settings, row.run_id)
    if folder is None:
        return None
    try:
        receipt = read_receipt(folder / RECEIPT)
    except ReceiptError:
        return None
    journal = receipt.journal
    return receipt if journal is not None and (journal.seq, journal.head) == (row.head_seq, row.head_hash) else None


def with_agent_folders(receipt: Receipt, folder: Path | None) -> Receipt:
    """The receipt of a journal with what only the run's folder on this machine knows."""
    if folder is None:
        return receipt
    agents = [
        agent.model_copy(update={"folder": agent_folder_name(agent.seq)})
        if (folder / agent_folder_name(agent.seq)).is_dir()
        else agent
        for agent in receipt.agents
    ]
    walls = receipt.walls or _walls_on_disk(folder)
    return receipt.model_copy(update={"agents": agents, "walls": walls})


def _walls_on_disk(folder: Path) -> dict[str, str]:
    """A journal learns at the end of a run which walls stood; the folder knows it before."""
    try:
        return read_receipt(folder / RECEIPT).walls
    except ReceiptError:
        return {}


def is_lost(row: RunRow, now: float, settings: Settings) -> bool:
    """True for a run without an end whose host is gone: by its lease, or as this machine can see for itself."""
    if row.status is not Status.RUNNING:
        return False
    lease_until = row.lease_until
    if lease_until is None or lease_until + settings.store.kill_grace_seconds < now:
        return True
    folder = run_folder(settings, row.run_id)
    was_here = (row.owner or "").partition("/")[0] == socket.gethostname()
    return was_here and folder is not None and not is_live(folder)


def row_words(row: RunRow, now: float, *, is_lost: bool) -> str:
    """How a run that is not over stands, in one line, with what to type."""
    cancelled = "" if row.cancel_reason is None else f"; to be cancelled: {shown_line(row.cancel_reason, 200)}"
    resume = f"`loopwarden resume {row.run_id}`"
    queue = row.queue or DEFAULT_QUEUE
    match row.status:
        case Status.QUEUED:
            due = f", due {shown_time(row.not_before)}" if row.not_before > now else ""
            back = "was given back, and " if row.epoch else ""
            return f"{back}waits in the queue {queue}{due}{cancelled}"
        case Status.HELD:
            reason = shown_line(row.reason or "no reason is recorded", 300)
            return f"held: {reason}. {mending(row.run_id, row.failure_code)}"
        case Status.RUNNING if is_lost:
            return (
                f"did not end: its host was killed; {resume} goes on with it, and so does a host of the queue "
                f"{queue}{cancelled}"
            )
        case Status.RUNNING:
            return f"still running, on {shown_line(row.owner or 'a host', 200)}{cancelled}"
        case Status.FINISHED:
            return f"{row.failure_code}: {shown_line(row.reason or '', 300)}" if row.failure_code else "completed"
