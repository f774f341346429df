"""The keeper of leases: what it does when the store is slow, away, or says that a run is another host's."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from loopwarden.lease_keeper import LeaseKeeper, LeaseRules
from loopwarden.lease_view import LeaseView
from loopwarden.store.appends import FencedOut
from loopwarden.store.errors import StoreUnavailable
from loopwarden.store.runs import Owner, Request

RULES = LeaseRules(lease_seconds=30.0, poll_seconds=0.001)


class Renewals:
    """A store that only keeps leases: it answers, fails, or never answers."""

    def __init__(self) -> None:
        self.asked: list[dict[str, int]] = []
        self.kept: set[str] = {"one", "two"}
        self.is_away = False
        self.is_silent = False
        self.requests: list[Request] = []

    async def renew(self, owner: Owner, runs: Mapping[str, int]) -> set[str]:
        self.asked.append(dict(runs))
        if self.is_silent:
            await asyncio.Event().wait()
        if self.is_away:
            raise StoreUnavailable("the database cannot be reached")
        return self.kept & set(runs)

    async def take_requests(self, owner: Owner) -> list[Request]:
        taken, self.requests = self.requests, []
        return taken


class Tenant:
    """A run, as far as its keeper knows it, and its tenure."""

    def __init__(self, run_id: str, lease: LeaseView) -> None:
        self.run_id, self.lease, self.epoch, self.is_ending = run_id, lease, 1, False
        self.heard: list[Any] = []
        self.has_heard = asyncio.Event()

    def _hear(self, what: Any) -> None:
        self.heard.append(what)
        self.has_heard.set()

    def lost(self, loss: Any) -> None:
        self._hear(loss)

    def lease_ended(self) -> None:
        self._hear("lease ended")

    def cancel(self, reason: str = "") -> None:
        self._hear(f"cancel: {reason}")

    def raise_limits(self, asked: Mapping[str, Any], by: str) -> None:
        self._hear((dict(asked), by))


class World:
    """A keeper on a clock that tests move."""

    def __init__(self, rules: LeaseRules = RULES) -> None:
        self.now = 1000.0
        self.store = Renewals()
        self.notes: list[str] = []
        self.keeper = LeaseKeeper(
            store=self.store,  # type: ignore[arg-type]
            owner=Owner(host_id="alice", lease_seconds=rules.lease_seconds),
            rules=rules,
            note=lambda level, event, **content: self.notes.append(event),
            clock=lambda: self.now,
        )

    def keep(self, run_id: str) -> Tenant:
        tenant = Tenant(run_id, self.keeper.lease_from(self.now))
        self.keeper.keep(tenant, tenant)  # type: ignore[arg-type]
        return tenant

    async def turns(self, until: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not until():
                await asyncio.sleep(0)


def run(case: Callable[[World], Coroutine[Any, Any, None]], rules: LeaseRules = RULES) -> None:
    async def main() -> None:
        world = World(rules)
        try:
            await case(world)
        finally:
            await world.keeper.close()

    asyncio.run(main())


def test_a_lease_is_renewed_from_the_moment_before_it_was_asked_for() -> None:
    async def case(world: World) -> None:
        tenant = world.keep("one")
        await world.turns(lambda: len(world.store.asked) == 1)
        world.now += 9.9
        await asyncio.sleep(0.01)
        assert len(world.store.asked) == 1
        world.now += 0.1
        await world.turns(lambda: len(world.store.asked) == 2)
        await world.turns(lambda: tenant.lease.ends_at == 1000.0 + 10.0 + 30.0)
        assert tenant.heard == []

    run(case)


def test_a_store_that_never_answers_does_not_hide_that_the_lease_has_ended() -> None:
    async def case(world: World) -> None:
        world.store.is_silent = True
        tenant = world.keep("one")
        await world.turns(lambda: len(world.store.asked) == 1)
        world.now += 31.0
        async with asyncio.timeout(10):
            await tenant.has_heard.wait()
        assert tenant.heard == ["lease ended"]
        await asyncio.sleep(0.01)
        assert tenant.heard == ["lease ended"], "it is told once"

    run(case)


def test_agents_may_go_on_when_the_deployment_says_so() -> None:
    async def case(world: World) -> None:
        world.store.is_away = True
        tenant = world.keep("one")
        world.now += 31.0
        await world.turns(lambda: len(world.notes) > 2)
        assert tenant.heard == []
        assert set(world.notes) == {"the store cannot be asked"}

    run(case, LeaseRules(lease_seconds=30.0, poll_seconds=0.001, kills=False))


def test_a_lease_that_comes_back_and_ends_again_is_told_again() -> None:
    async def case(world: World) -> None:
        world.store.is_away = True
        tenant = world.keep("one")
        world.now += 31.0
        await world.turns(lambda: tenant.heard == ["lease ended"])
        world.store.is_away = False
        await world.turns(tenant.lease.is_alive)
        assert tenant.lease.lapses == 1
        world.store.is_away = True
        await asyncio.sleep(0.01)
        world.now += 31.0
        await world.turns(lambda: tenant.heard == ["lease ended"] * 2)

    run(case)


def test_a_run_that_is_another_hosts_is_lost_and_the_others_are_kept() -> None:
    async def case(world: World) -> None:
        world.store.kept = {"two"}
        one, two = world.keep("one"), world.keep("two")
        await world.turns(lambda: bool(one.heard))
        assert one.heard == [FencedOut()]
        assert two.heard == []

    run(case)


def test_all_requests_that_came_before_a_run_was_live_are_handed_on_in_order() -> None:
    async def case(world: World) -> None:
        world.keep("two")

        def asked(number: int, kind: Any, body: dict[str, Any]) -> Request:
            return Request(number=number, run_id="one", kind=kind, body=body, by="olga", at=1.0)

        world.store.requests = [asked(1, "raise", {"max_total_agents": 5}), asked(2, "cancel", {"reason": "enough"})]
        await world.turns(lambda: not world.store.requests)
        await asyncio.sleep(0.01)
        tenant = world.keep("one")
        assert tenant.heard == [({"max_total_agents": 5}, "olga"), "cancel: enough (asked for by olga)"]

    run(case)


def test_what_came_for_a_run_that_never_became_live_is_forgotten_with_it() -> None:
    async def case(world: World) -> None:
        world.keep("two")
        world.store.requests = [
            Request(number=1, run_id="one", kind="cancel", body={"reason": "enough"}, by="olga", at=1.0)
        ]
        await world.turns(lambda: not world.store.requests)
        await asyncio.sleep(0.01)
        world.keeper.release("one")
        assert world.keep("one").heard == []

    run(case)
