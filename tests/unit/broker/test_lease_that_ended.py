"""A broker whose lease ended: it asks nothing, hands nothing to the store, and goes on when the lease came back."""

import asyncio

from loopwarden.journal.entries import Asked, Ended
from loopwarden.lease_view import LeaseView
from loopwarden.store.appends import FencedOut
from support.broker_lab import ScriptedProvider
from support.journal_closings import over, quick
from support.journal_lab import JournalLab, play


def test_agents_of_a_lease_that_ended_are_interrupted_and_asked_again_with_the_same_key() -> None:
    async def case() -> None:
        provider = ScriptedProvider(["silence", "again"])
        lab = JournalLab(providers={"main": provider}, pen=quick())
        assert lab.lease is not None
        lab.call()
        await lab.settle()
        lab.clock.time = lab.lease.ends_at + 1
        lab.broker.past.interrupt()
        await lab.settle()
        # What is not known to be ours is not asked.
        assert len(provider.requests) == 1
        lab.lease.renew(lab.clock.time + 30)
        await lab.settle()
        assert lab.replies == {1: "again"}
        assert [ask.ask for ask in lab.pen.of(Asked)] == ["first", "redo"]
        assert [request.idempotency_key for request in provider.requests] == ["lab/1/1", "lab/1/1"]
        assert (lab.starts, len(lab.ends)) == ([1], 1)

    play(case)


def test_nothing_is_handed_to_a_store_while_the_lease_is_over_and_nothing_of_it_is_lost() -> None:
    """The store would refuse it, and the run would be lost although nobody else has it."""

    async def case() -> None:
        hold = asyncio.Event()
        lab = JournalLab(providers={"main": ScriptedProvider(["worth a lot"], hold=hold)})
        assert lab.lease is not None
        lab.call()
        lab.pen.commit()
        await lab.settle()
        lab.clock.time = lab.lease.ends_at + 1
        hold.set()
        await lab.settle()
        assert lab.pen.waiting == []
        assert lab.replies == {}
        lab.lease.renew(lab.clock.time + 30)
        await lab.settle()
        lab.pen.commit()
        assert lab.replies == {1: "worth a lot"}

    play(case)


def test_redos_of_a_lease_that_ends_again_and_again_are_bounded() -> None:
    async def case() -> None:
        provider = ScriptedProvider(["silence"] * 9)
        lab = JournalLab(providers={"main": provider}, pen=quick())
        assert isinstance(lab.lease, LeaseView)
        lab.call()
        await lab.settle()
        for _ in range(3):
            lab.clock.time = lab.lease.ends_at + 1
            lab.broker.past.interrupt()
            await lab.settle()
            lab.lease.renew(lab.clock.time + 30)
            await lab.settle()
        assert [ask.ask for ask in lab.pen.of(Asked)] == ["first", "redo", "redo"]
        assert lab.replies == {1: None}
        [end] = lab.pen.of(Ended)
        assert (end.outcome, end.failure_class) == ("failed", "interrupted")
        assert len(lab.pen.spent) == 3
        lab.broker.stop()
        await over(lab)

    play(case)


def test_a_run_that_is_fenced_out_ends_its_agents_and_reports_nothing() -> None:
    async def case() -> None:
        lab = JournalLab(providers={"main": ScriptedProvider(["one", "silence"])})
        lab.call()
        lab.call()
        lab.pen.commit()
        await lab.settle()
        assert lab.pen.waiting == ["ended"]
        lab.pen.answer(FencedOut())
        await over(lab)
        assert lab.lost == [FencedOut()]
        assert (lab.replied, lab.ends) == ([], [])
        lab.assert_nothing_is_left()

    play(case)
