"""The store against a model: counters of what was charged, and the set of calls that ended.

Whatever hosts, operators and accidents do to runs in whatever order: nothing is charged that is not in the journal,
nothing that is in the journal is not charged, no cap is exceeded, and only the owner appends.
"""

import asyncio
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from loopwarden.journal.entries import Asked, Ended, Held, Reopened
from loopwarden.store.appends import (
    Appended,
    CancelPending,
    CapReached,
    FencedOut,
    LeaseExpired,
    ScopeSpent,
)
from loopwarden.store.runs import (
    MAX_IDLE_CLAIMS,
    Claim,
    Owner,
    RunRow,
    Status,
)
from loopwarden.store.shared import Scope
from support.store_lab import (
    ALICE,
    BOB,
    GRACE,
    LABS,
    append,
    ask,
    end,
    finished,
    journal,
    new_run,
    started,
    stopping,
    wanted,
)

OWNERS = st.sampled_from([ALICE, BOB])
PICKS = st.integers(0, 3)
RARELY = st.sampled_from([False, False, False, True])
"""What ends what is going on is done less often, so that runs come far."""
EXAMPLES = {"memory": 40, "sqlite": 12}
"""Of each store; others get a few."""
SCOPE = "team"


@dataclass(slots=True)
class Model:
    """What one run must be."""

    status: Status = Status.QUEUED
    epoch: int = 0
    owner: Owner | None = None
    is_alive: bool = False
    """The lease has not expired."""
    calls: int = 0
    extra: int = 0
    max_calls: int = 3
    max_extra: int = 1
    is_cancelled: bool = False
    idle_claims: int = 0
    ended: list[int] = field(default_factory=list)

    def owns(self, epoch: int) -> bool:
        return self.status is Status.RUNNING and self.is_alive and self.epoch == epoch

    def refusal(self, epoch: int) -> FencedOut | LeaseExpired:
        return LeaseExpired() if self.status is Status.RUNNING and self.epoch == epoch else FencedOut()

    def claimed_by(self, owner: Owner) -> None:
        self.idle_claims = self.idle_claims + 1 if self.status in (Status.QUEUED, Status.RUNNING) else 1
        if self.status is Status.FINISHED:
            self.is_cancelled = False
        self.status, self.owner, self.is_alive = Status.RUNNING, owner, True
        self.epoch += 1

    def given_back(self, status: Status) -> None:
        self.status, self.owner, self.is_alive, self.idle_claims = status, None, False, 0


class StoreMachine(RuleBasedStateMachine):
    """Two hosts and an operator on one store with a few runs that share a budget."""

    lab_name = "memory"

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory()
        self.opened = LABS[self.lab_name](Path(self.folder.name))
        self.lab = self.runner.run(self.opened.__aenter__())
        self.store = self.lab.store
        self.models: dict[str, Model] = {}
        self.made = 0
        self.budget = 4
        self.agents = 0
        self.pruned: dict[str, int] = {}

    def teardown(self) -> None:
        self.runner.run(self.opened.__aexit__(None, None, None))
        self.runner.close()
        self.folder.cleanup()

    def do(self, awaitable: Any) -> Any:
        return self.runner.run(awaitable)

    def pick(self, number: int) -> tuple[str, Model]:
        run_ids = sorted(self.models)
        run_id = run_ids[number % len(run_ids)]
        return run_id, self.models[run_id]

    @initialize()
    def begin(self) -> None:
        self.do(self.store.set_scope(Scope(name=SCOPE, max_agents=self.budget), "ops"))

    @precondition(lambda self: len(self.models) < 3)
    @rule(is_started=st.booleans(), owner=OWNERS)
    def create(self, *, is_started: bool, owner: Owner) -> None:
        self.made += 1
        run_id = f"r{self.made}"
        model = self.models[run_id] = Model()
        if is_started:
            self.do(started(self.store, run_id, owner, scopes=[SCOPE]))
            model.claimed_by(owner)
        else:
            self.do(self.store.create([new_run(run_id, scopes=[SCOPE])]))

    @rule(owner=OWNERS, limit=st.integers(1, 3))
    def claim(self, owner: Owner, limit: int) -> None:
        due = [
            run_id
            for run_id in sorted(self.models, key=lambda run_id: int(run_id[1:]))
            if self.models[run_id].status is Status.QUEUED
            or (self.models[run_id].status is Status.RUNNING and not self.models[run_id].is_alive)
        ][:limit]
        claims: list[Claim] = self.do(self.store.claim(owner, wanted(), limit=limit))
        expected = []
        for run_id in due:
            model = self.models[run_id]
            if model.idle_claims >= MAX_IDLE_CLAIMS:
                model.given_back(Status.HELD)
            else:
                model.claimed_by(owner)
                expected.append((run_id, model.epoch))
        assert [(claim.row.run_id, claim.row.epoch) for claim in claims] == expected

    @precondition(lambda self: self.models)
    @rule(owner=OWNERS, number=PICKS)
    def claim_one(self, owner: Owner, number: int) -> None:
        run_id, model = self.pick(number)
        result = self.do(self.store.claim_one(owner, run_id, kill_grace_seconds=GRACE))
        if model.status is Status.RUNNING and model.is_alive and model.owner is not owner:
            assert isinstance(result, RunRow)
        else:
            assert isinstance(result, Claim)
            model.claimed_by(owner)
            assert result.row.epoch == model.epoch

    @precondition(lambda self: self.models)
    @rule(number=PICKS, lag=st.sampled_from([0, 0, 0, 1]), repeats=st.lists(st.booleans(), min_size=1, max_size=3))
    def accept(self, number: int, lag: int, repeats: list[bool]) -> None:
        for is_repeat in repeats:
            self.accept_one(number, lag, is_repeat=is_repeat)

    def accept_one(self, number: int, lag: int, *, is_repeat: bool) -> None:
        run_id, model = self.pick(number)
        seq, attempt = (1, model.extra + 2) if is_repeat else (model.calls + 1, 1)
        result = self.do(ask(self.store, run_id, seq, epoch=model.epoch - lag, attempt=attempt))
        if not model.owns(model.epoch - lag):
            assert result == model.refusal(model.epoch - lag)
        elif model.is_cancelled:
            assert isinstance(result, CancelPending)
        elif is_repeat and model.extra >= model.max_extra:
            assert result == CapReached("extra")
        elif not is_repeat and model.calls >= model.max_calls:
            assert result == CapReached("calls")
        elif self.agents >= self.budget:
            assert isinstance(result, ScopeSpent)
            assert (result.used, result.limit) == (self.agents, self.budget)
        else:
            assert isinstance(result, Appended)
            self.agents += 1
            model.idle_claims = 0
            if is_repeat:
                model.extra += 1
            else:
                model.calls += 1

    @precondition(lambda self: self.models)
    @rule(number=PICKS, lag=st.sampled_from([0, 0, 1]), seq=st.integers(1, 3))
    def end(self, number: int, lag: int, seq: int) -> None:
        """In time, late, or once more: the fence alone decides, and nothing is charged."""
        run_id, model = self.pick(number)
        result = self.do(end(self.store, run_id, seq, epoch=model.epoch - lag, windows={SCOPE: "forever"}))
        if model.owns(model.epoch - lag):
            assert isinstance(result, Appended)
            model.ended.append(seq)
            model.idle_claims = 0
        else:
            assert result == model.refusal(model.epoch - lag)

    @precondition(lambda self: self.models)
    @rule(number=PICKS, change=st.sampled_from(["none", "none", "none", "finished", "held", "queued"]))
    def give_back(self, number: int, change: str) -> None:
        run_id, model = self.pick(number)
        entries = {
            "finished": [stopping(), finished()],
            "held": [Held(at=1.0, code="REPLAY_DIVERGED", reason="x")],
            "queued": [],
            "none": [],
        }[change]
        result = self.do(append(self.store, run_id, model.epoch, *entries, change=change))
        if model.owns(model.epoch):
            assert isinstance(result, Appended)
            model.idle_claims = 0
            if change != "none":
                model.given_back(Status(change))
        else:
            assert result == model.refusal(model.epoch)

    @rule(is_long=RARELY)
    def expire(self, *, is_long: bool) -> None:
        if not is_long:
            return
        self.do(self.lab.pass_seconds(1000))
        for model in self.models.values():
            model.is_alive = False

    @precondition(lambda self: self.models)
    @rule(owner=OWNERS, number=PICKS, lag=st.sampled_from([0, 0, 1]))
    def renew(self, owner: Owner, number: int, lag: int) -> None:
        run_id, model = self.pick(number)
        kept = self.do(self.store.renew(owner, {run_id: model.epoch - lag}))
        may = model.status is Status.RUNNING and model.owner is owner and lag == 0
        assert kept == ({run_id} if may else set())
        model.is_alive = model.is_alive or may

    @precondition(lambda self: self.models)
    @rule(number=PICKS, is_meant=RARELY)
    def cancel(self, number: int, *, is_meant: bool) -> None:
        if not is_meant:
            return
        run_id, model = self.pick(number)
        self.do(self.store.request(run_id, "cancel", {"reason": "enough"}, "ops"))
        model.is_cancelled = model.is_cancelled or model.status is not Status.FINISHED

    @precondition(lambda self: self.models)
    @rule(number=PICKS, more=st.integers(0, 2))
    def reopen(self, number: int, more: int) -> None:
        """Resume, or raise the limits of a run that lives."""
        run_id, model = self.pick(number)
        limits = {"max_total_agents": model.max_calls + more, "max_extra_attempts": model.max_extra + more}
        entry = Reopened(at=1.0, by="ops", why="more", limits=limits)
        result = self.do(append(self.store, run_id, model.epoch, entry))
        if model.owns(model.epoch):
            assert isinstance(result, Appended)
            model.max_calls, model.max_extra = model.max_calls + more, model.max_extra + more
            model.idle_claims = 0
        else:
            assert result == model.refusal(model.epoch)

    @rule(more=st.integers(0, 3))
    def raise_budget(self, more: int) -> None:
        self.budget += more
        self.do(self.store.set_scope(Scope(name=SCOPE, max_agents=self.budget), "ops"))

    @rule()
    def prune(self) -> None:
        over = sorted(run_id for run_id, model in self.models.items() if model.status is Status.FINISHED)
        before = self.do(self.store.now()) + 1
        assert sorted(self.do(self.store.prune(finished_before=before))) == over
        for run_id in over:
            model = self.models.pop(run_id)
            self.pruned[run_id] = model.calls + model.extra

    @invariant()
    def every_row_is_what_the_model_says(self) -> None:
        for run_id, model in self.models.items():
            row = self.do(self.store.get(run_id))
            assert row is not None
            assert (row.status, row.epoch, row.calls, row.extra) == (
                model.status,
                model.epoch,
                model.calls,
                model.extra,
            )
            assert (row.max_calls, row.max_extra, row.idle_claims) == (
                model.max_calls,
                model.max_extra,
                model.idle_claims,
            )
            assert row.owner == (None if model.owner is None else model.owner.host_id)
            assert (row.cancel_reason is not None) == model.is_cancelled

    @invariant()
    def every_journal_says_what_was_charged_and_what_ended(self) -> None:
        for run_id, model in self.models.items():
            entries = [link.entry for link in self.do(journal(self.store, run_id))]
            asks = [entry for entry in entries if isinstance(entry, Asked)]
            assert sum(entry.attempt == 1 for entry in asks) == model.calls <= model.max_calls
            assert sum(entry.attempt > 1 for entry in asks) == model.extra <= model.max_extra
            assert [entry.seq for entry in entries if isinstance(entry, Ended)] == model.ended

    @invariant()
    def the_budget_is_the_sum_over_all_runs_that_ever_were(self) -> None:
        [use] = self.do(self.store.scopes())
        tombstones = self.do(self.store.tombstones())
        assert {tombstone.run_id: tombstone.attempts for tombstone in tombstones} == self.pruned
        assert {
            tombstone.run_id: sum(tombstone.charges.get(SCOPE, {}).values()) for tombstone in tombstones
        } == self.pruned
        living = sum(model.calls + model.extra for model in self.models.values())
        assert use.agents == self.agents == living + sum(self.pruned.values())
        assert use.agents <= self.budget


def _machine(name: str) -> type[StoreMachine]:
    return type(f"StoreMachineOf{name.title()}", (StoreMachine,), {"lab_name": name})


def _case(name: str) -> Any:
    case = _machine(name).TestCase
    case.settings = settings(
        max_examples=EXAMPLES.get(name, 8),
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    return case


TestMemoryStore = _case("memory")
TestSqliteStore = _case("sqlite")
TestPostgresStore = _case("postgres")
