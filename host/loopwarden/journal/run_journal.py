"""The pen of a run's owner: entries go to the store in order, and what follows from them happens once they are in."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, assert_never

from loopwarden.journal.entries import Chained, Entry
from loopwarden.lease_view import LeaseView
from loopwarden.store.api import Store
from loopwarden.store.appends import (
    Append,
    Appended,
    AppendFailed,
    AppendResult,
    CancelPending,
    CapReached,
    Charge,
    FencedOut,
    LeaseExpired,
    RowChange,
    ScopeSpent,
    Spent,
)

AskRefused: TypeAlias = CancelPending | ScopeSpent | CapReached
Loss: TypeAlias = FencedOut | AppendFailed


class RunJournal:
    """The journal of one run that this host owns. Once it is lost, nothing is written and nothing follows any more.

    While the lease has ended, for all that the host knows, entries wait here, in order: a machine that slept renews
    first, and only then says what happened meanwhile. `on_fault` is told when what follows from an entry fails.
    """

    def __init__(
        self,
        store: Store,
        run_id: str,
        epoch: int,
        head: tuple[int, str],
        *,
        lease: LeaseView,
        observe: Callable[[Chained], None],
        on_lost: Callable[[Loss], None],
        on_fault: Callable[[BaseException], None],
    ) -> None:
        self.store = store
        self.run_id = run_id
        self.epoch = epoch
        self.seq, self.hash = head
        """Of the head, as far as it is committed."""
        self.is_lost = False
        self._lease = lease
        self._returned: list[Append] = []
        """Came back because the lease had expired in the store: they go before those that are held."""
        self._held: list[Append] = []
        self._on_way = 0
        """Appends that the store has not answered."""
        self._generation = 0
        self._may_send_again = False
        """A renewal was granted since something came back."""
        self._observe = observe
        self._on_lost = on_lost
        self._on_fault = on_fault
        self._end_subscription = lease.subscribe(self._renewed)

    def write(
        self,
        *entries: Entry,
        then: Callable[[], None] | None = None,
        spent: Spent | None = None,
        change: RowChange = "none",
    ) -> None:
        """Append entries. Once they are committed, observers see them, and then `then` is called."""

        def done(result: AppendResult) -> None:
            if not self._came_back(append, result) and self._took(result, entries) and then is not None:
                self._follow(then)

        append = Append(run_id=self.run_id, epoch=self.epoch, entries=entries, done=done, spent=spent, change=change)
        self._append(append)

    def ask(
        self,
        *entries: Entry,
        is_repeat: bool,
        then: Callable[[Mapping[str, str]], None],
        refused: Callable[[AskRefused], None],
        spent: Spent | None = None,
    ) -> None:
        """Append entries of which the last is an `Asked`, and charge it. `then` gets its budget windows."""

        def done(result: AppendResult) -> None:
            if self._came_back(append, result):
                return
            if isinstance(result, CancelPending | ScopeSpent | CapReached):
                if not self.is_lost:
                    self._follow(lambda: refused(result))
            elif self._took(result, entries):
                assert isinstance(result, Appended)
                self._follow(lambda: then(result.windows))

        charge = Charge(is_repeat=is_repeat)
        append = Append(run_id=self.run_id, epoch=self.epoch, entries=entries, done=done, charge=charge, spent=spent)
        self._append(append)

    def lose(self) -> None:
        """Write nothing more, and let nothing follow from what is on its way."""
        self.is_lost = True
        self._returned.clear()
        self._held.clear()
        self._end_subscription()

    def _append(self, append: Append) -> None:
        if self.is_lost:
            return
        if self._returned or self._held or not self._lease.is_alive():
            self._held.append(append)
        else:
            self._send(append)

    def _came_back(self, append: Append, result: AppendResult) -> bool:
        """Take note that an append was answered. True when the lease had expired in the store, so that it is kept."""
        self._on_way -= 1
        is_returned = isinstance(result, LeaseExpired) and not self.is_lost
        if is_returned:
            self._returned.append(append)
        self._send_again()
        return is_returned

    def _send(self, append: Append) -> None:
        self._on_way += 1
        append.generation = self._generation
        self.store.append(append)

    def _renewed(self) -> None:
        self._may_send_again = True
        self._send_again()

    def _send_again(self) -> None:
        """Hand over what waits, in order: once all that was on its way has come back, and the lease was renewed."""
        waiting = [*self._returned, *self._held]
        if self._on_way or not waiting or not self._may_send_again or not self._lease.is_alive():
            return
        self._returned.clear()
        self._held.clear()
        self._may_send_again = False
        self._generation += 1
        for append in waiting:
            self._send(append)

    def _follow(self, consequence: Callable[[], None]) -> None:
        try:
            consequence()
        except BaseException as error:  # A mistake of ours ends this run, and leaves the others alone.
            self._on_fault(error)
            if isinstance(error, KeyboardInterrupt):
                raise

    def _took(self, result: AppendResult, entries: Sequence[Entry]) -> bool:
        """Take note of a result. True when the entries are in the journal and the run is still ours."""
        if self.is_lost:
            return False
        match result:
            case Appended(seq=seq, hash=digest):
                self.seq, self.hash = seq, digest
                for number, entry in enumerate(entries, seq - len(entries) + 1):
                    # No observer needs the hash of an entry that is not the head.
                    chained = Chained(number, entry, digest if number == seq else "")
                    self._follow(functools.partial(self._observe, chained))
                return not self.is_lost
            case FencedOut() | AppendFailed():
                self.lose()
                self._on_lost(result)
                return False
            case CancelPending() | ScopeSpent() | CapReached() | LeaseExpired():
                raise AssertionError("only an ask is refused, and what is returned is sent again")
            case _:
                assert_never(result)
