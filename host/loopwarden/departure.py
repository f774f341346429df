"""A run that leaves this host before its end: given back, or lost to another host. Its end is followed in the store."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from loopwarden.broker import Broker
from loopwarden.event_log import EventLog
from loopwarden.failures import Code, Failure
from loopwarden.following import Following, outcome_of
from loopwarden.journal.run_journal import Loss
from loopwarden.outcome import Outcome
from loopwarden.session import Session
from loopwarden.store.appends import AppendFailed, FencedOut
from loopwarden.store.errors import StoreError
from loopwarden.tenure import Tenure

if TYPE_CHECKING:
    from loopwarden.live_run import LiveRun

_LOOK_SECONDS: Final = 0.5


async def until_gone(run: "LiveRun[Any]") -> None:
    """Wait until nothing of a run is left; on its store no longer than its lease lasts, then others take the run."""
    while not await run.is_gone_within(_LOOK_SECONDS):
        if run.tenure is not None and not run.tenure.lease.is_alive():
            run.tenure.lost(FencedOut())


class Departure:
    """At most one per run. `gone` is called once nothing of the run is left here, `settle` with its real end."""

    def __init__(
        self,
        *,
        session: Session,
        broker: Broker,
        events: EventLog,
        gone: Callable[[], None],
        settle: Callable[[Outcome[Any] | Failure], None],
    ) -> None:
        self._session = session
        self._broker = broker
        self._events = events
        self._gone = gone
        self._settle = settle
        self._damage: Failure | None = None
        self._task: asyncio.Task[None] | None = None
        self.has_left = False
        """Another host decides how the run ends."""

    def give_back(self, tenure: Tenure, drain_seconds: float, has_ended: Callable[[], bool]) -> None:
        """Let agents finish for so long, interrupt the rest, and give the run back to its store."""
        if self.has_left:
            return
        self._broker.leave(drain_seconds=drain_seconds)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._give_back(tenure, has_ended))

    def lose(self, tenure: Tenure, loss: Loss) -> None:
        """Another host owns the run, or its rows are damaged. Nothing is written or asked here any more."""
        if self.has_left:
            return
        self.has_left = True
        if isinstance(loss, AppendFailed):
            self._damage = Failure(code=Code.STORE_CORRUPT, message=str(loss.error))
        self._session.close()
        self._broker.abandon()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._leave(tenure))

    def stop_following(self) -> None:
        """The host is closed: wait no longer for what another one makes of the run."""
        if self.has_left and self._task is not None:
            self._task.cancel()

    async def _give_back(self, tenure: Tenure, has_ended: Callable[[], bool]) -> None:
        await self._broker.ended()
        if has_ended():
            return  # The script came to its end while its last agents finished.
        self._session.close()
        if not self.has_left:
            self.has_left = True
            await tenure.give_back()
        await self._leave(tenure)

    async def _leave(self, tenure: Tenure) -> None:
        await self._broker.ended()
        await self._session.gone()
        self._gone()
        if self._damage is None:
            try:
                self._settle(outcome_of(await _following(tenure).until_over(self._events.add_new)))
                return
            except StoreError as error:
                self._damage = Failure(code=Code.STORE_CORRUPT, message=str(error))
            except asyncio.CancelledError:
                message = "another host drives this run, and this one was closed before the run had ended"
                self._damage = Failure(code=Code.HOST_LOST, message=message)
        self._settle(self._damage)


def _following(tenure: Tenure) -> Following:
    # From the beginning: only the store knows which of this host's last entries it took.
    return Following(tenure.store, tenure.run_id)
