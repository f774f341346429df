"""Appends: a compare-and-swap on (epoch, head) under a live lease, with caps, cancels and budgets. The hot path.

All appends of a batch are done together: the rows of their runs are read and locked in one query, everything is
checked and chained in Python, and the changes are written by a few statements for all of them. Appends of one run see
those before them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from loopwarden.journal.codec import Codec
from loopwarden.journal.entries import Asked, Entry, Held, LimitsRaised, Reopened, Stopping
from loopwarden.store.appends import (
    Append,
    Appended,
    AppendFailed,
    AppendResult,
    CancelPending,
    CapReached,
    FencedOut,
    LeaseExpired,
    ScopeSpent,
    Spent,
)
from loopwarden.store.budgets import refusal
from loopwarden.store.errors import StoreCorrupt, StoreError
from loopwarden.store.runs import Status
from loopwarden.store.sql.append_rows import RunState, load_states, save_states
from loopwarden.store.sql.journal_rows import Written, chain
from loopwarden.store.sql.rows import shown_text
from loopwarden.store.sql.scope_rows import ScopeBook, scope_use
from loopwarden.store.sql.transaction import Transaction

Expired: TypeAlias = dict[tuple[str, int], int]
"""By run and epoch: the generation of appends that came back because the lease had expired."""


def append_all(tx: Transaction, appends: Sequence[Append], codec: Codec, expired: Expired) -> list[AppendResult]:
    """Do appends in order; the result of each. `expired` is kept from one transaction to the next."""
    states = load_states(tx, {append.run_id for append in appends})
    work = _Work(tx, states, _scope_book(tx, appends, states), tx.now(), codec, Written(), expired)
    results = [work.append(append) for append in appends]
    appended = [state for state in states.values() if isinstance(state, RunState) and state.is_appended]
    work.written.insert(tx)
    save_states(tx, appended)
    work.book.save()
    for state in appended:
        tx.touched.add(state.run_id)
        if state.status == Status.QUEUED and state.queue:
            tx.run_waits(state.run_id, queue=state.queue, priority=state.priority, not_before=state.not_before)
    return results


def _scope_book(tx: Transaction, appends: Sequence[Append], states: Mapping[str, RunState | StoreCorrupt]) -> ScopeBook:
    charged: set[str] = set()
    spent: set[tuple[str, str]] = set()
    for append in appends:
        state = states.get(append.run_id)
        if append.charge is not None and isinstance(state, RunState):
            charged.update(state.scopes)
        if append.spent is not None:
            spent.update(append.spent.windows.items())
    return ScopeBook(tx, charged, spent)


@dataclass(slots=True)
class _Work:
    tx: Transaction
    states: Mapping[str, RunState | StoreCorrupt]
    book: ScopeBook
    now: float
    codec: Codec
    written: Written
    expired: Expired

    def append(self, append: Append) -> AppendResult:
        state = self.states.get(append.run_id)
        if isinstance(state, StoreCorrupt):
            return AppendFailed(state)
        fence = self._fence(state, append)
        if state is None or fence is not None:
            return fence or FencedOut()
        problem = self._problem(state, append)
        if problem is not None:
            return AppendFailed(StoreError(f"nothing was stored for run {state.run_id}: {problem}"))
        refused = self._refused(state, append)
        if refused is not None:
            return refused
        windows = {name: self._window(name) for name in state.scopes} if append.charge is not None else {}
        entries = _with_windows(append.entries, windows) if windows else append.entries
        try:
            head = chain(self.written, state.run_id, (state.head_seq, state.head_hash), entries, self.codec)
        except StoreError as error:
            return AppendFailed(error)
        state.head_seq, state.head_hash = head
        state.is_appended = True
        self._charge(state, append)
        if append.spent is not None:
            _spend(self.book, append.spent)
        for entry in append.entries:
            _project(state, entry)
        _change(state, append, self.now)
        return Appended(state.head_seq, state.head_hash, windows)

    def _fence(self, state: RunState | None, append: Append) -> FencedOut | LeaseExpired | None:
        """Why nothing of this owner may be appended now; None when it may."""
        key = append.run_id, append.epoch
        if state is None or not state.is_owned(append.epoch):
            self.expired.pop(key, None)
            return FencedOut()
        last = self.expired.get(key, -1)
        if append.generation <= last or not state.is_leased(self.now):
            self.expired[key] = max(last, append.generation)
            return LeaseExpired()
        self.expired.pop(key, None)
        return None

    def _problem(self, state: RunState, append: Append) -> str | None:
        asks = sum(type(entry) is Asked for entry in append.entries)
        if append.charge is None:
            if asks:
                return "an agent was asked for without being charged"
        elif asks != 1:
            return f"{asks} agents were asked for with a charge for one"
        else:
            problem = self.book.problem(state.scopes)
            if problem is not None:
                return problem
        return None if append.spent is None else self.book.problem(append.spent.windows)

    def _refused(self, state: RunState, append: Append) -> CancelPending | CapReached | ScopeSpent | None:
        if append.charge is None:
            return None
        if state.cancel_reason is not None:
            return CancelPending(state.cancel_reason)
        if append.charge.is_repeat:
            if state.extra >= state.max_extra:
                return CapReached("extra")
        elif state.calls >= state.max_calls:
            return CapReached("calls")
        for name in state.scopes:
            scope, window, use = self.book.current(name)
            spent = refusal(scope, scope_use(scope, window, use))
            if spent is not None:
                return spent
        return None

    def _window(self, name: str) -> str:
        return self.book.current(name)[1].name

    def _charge(self, state: RunState, append: Append) -> None:
        if append.charge is None:
            return
        if append.charge.is_repeat:
            state.extra += 1
        else:
            state.calls += 1
        for name in state.scopes:
            self.book.charge(state.run_id, name)


def _with_windows(entries: Sequence[Entry], windows: dict[str, str]) -> list[Entry]:
    return [entry.model_copy(update={"windows": windows}) if isinstance(entry, Asked) else entry for entry in entries]


def _spend(book: ScopeBook, spent: Spent) -> None:
    usage = spent.usage
    tokens = cost = None
    if usage is not None:
        cost = usage.cost_usd
        if usage.input_tokens is not None and usage.output_tokens is not None:
            tokens = usage.input_tokens + usage.output_tokens
        elif usage.input_tokens is not None or usage.output_tokens is not None:
            tokens = (usage.input_tokens or 0) + (usage.output_tokens or 0)
    for name, window in spent.windows.items():
        book.spend(name, window, tokens=tokens, cost_usd=cost)


def _project(state: RunState, entry: Entry) -> None:
    """What an entry makes of the row, beside the change that the append names."""
    match entry:
        case Stopping():
            state.stop_reason = entry.stop_reason
            state.failure_code = None if entry.failure is None else shown_text(entry.failure.code)
            state.reason = None if entry.failure is None else shown_text(entry.failure.message)
            state.is_changed = True
        case Held():
            state.failure_code, state.reason = shown_text(entry.code), shown_text(entry.reason)
            state.is_changed = True
        case Reopened():
            state.stop_reason = state.failure_code = state.reason = state.finished_at = None
            state.max_calls = _raised(entry, "max_total_agents", state.max_calls)
            state.max_extra = _raised(entry, "max_extra_attempts", state.max_extra)
            state.is_changed = True
        case LimitsRaised():
            state.max_calls = _raised(entry, "max_total_agents", state.max_calls)
            state.max_extra = _raised(entry, "max_extra_attempts", state.max_extra)
            state.is_changed = True
        case _:
            pass


def _raised(entry: Reopened | LimitsRaised, name: str, now: int) -> int:
    value = entry.limits.get(name)
    return value if type(value) is int else now


def _change(state: RunState, append: Append, now: float) -> None:
    match append.change:
        case "none" | "stopping":  # `_project` has done it
            return
        case "finished":
            state.status = Status.FINISHED
            state.finished_at = now
        case "held":
            state.status = Status.HELD
        case "queued":
            state.status = Status.QUEUED
        case _:
            assert_never(append.change)
    state.owner = state.lease_until = None
    state.is_changed = True
