"""Journals that owners may write: they come back exactly, and no change to their rows goes unseen."""

import io
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from loopwarden.journal.chain import decode_rows
from loopwarden.journal.entries import WaitCancelled
from loopwarden.journal.export import read_export, write_export
from loopwarden.journal.fold import RunState, fold
from loopwarden.journal.moves import Stage
from loopwarden.journal.observed import Observed
from loopwarden.journal.receipt_fold import receipt_of
from loopwarden.journal.verify import verify
from loopwarden.receipt import Receipt
from loopwarden.store.errors import StoreCorrupt
from loopwarden.store.runs import StoredEntry
from loopwarden_engine.json_decoding import decode_json
from loopwarden_engine.plain import canonical_bytes, compact_json
from support.journals import RUN, Journal

MAX_AGENTS, MAX_EXTRA = 4, 6
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("aé😀", max_size=3), inner, max_size=3),
    max_leaves=8,
)


class Owner:
    """Writes what a host may write, by turns that are drawn; keeps its own books of what may come next."""

    def __init__(self, values: list[Any]) -> None:
        limits = {"max_total_agents": MAX_AGENTS, "max_extra_attempts": MAX_EXTRA}
        self.journal = Journal().created(limits=limits).claimed()
        self.values = values
        self.stage = "live"
        self.epoch = 1
        self.calls: dict[int, str] = {}
        """open, between or closed, by call; `ended` has an end for its script."""
        self.attempts: dict[int, int] = {}
        self.redos: dict[int, int] = {}
        self.extra = 0

    def moves(self) -> list[tuple[str, int]]:
        calls = self.calls.items()
        opened = [seq for seq, state in calls if state == "open"]
        between = [seq for seq, state in calls if state == "between"]
        over = (
            [("end", seq) for seq in opened]
            + [("last", seq) for seq in opened]
            + [("cancelWait", seq) for seq in between]
        )
        match self.stage:
            case "live":
                found = [("phase", 0), ("log", 0), ("claim", 0), ("stop", 0), ("hold", 0), ("fail", 0), *over]
                if len(self.calls) < MAX_AGENTS:
                    found.append(("ask", len(self.calls) + 1))
                found += [("attemptEnd", seq) for seq in opened] + [("wait", seq) for seq in between]
                if self.extra < MAX_EXTRA:
                    found += [("retry", seq) for seq in between]
                    found += [("redo", seq) for seq in opened if self.redos.get(seq, 0) < 2]
                return found
            case "stopping":
                return [("claim", 0), *over, *([] if opened else [("finish", 0)])]
            case "finished":
                return [("claim", 0), ("reopen", 0)]
            case _:
                return [("claim", 0), ("reopen", 0), ("fail", 0)]

    def turn(self, choice: int) -> None:
        moves = self.moves()
        move, seq = moves[choice % len(moves)]
        journal, attempt = self.journal, self.attempts.get(seq, 0)
        value = self.values[choice % len(self.values)]
        match move:
            case "phase":
                journal.phase(compact_json(value))
            case "log":
                journal.log(compact_json(value))
            case "claim":
                self.epoch += 1 + choice % 3
                journal.claimed(self.epoch, f"host-{self.epoch}")
            case "stop":
                journal.completed(value)
                self.stage = "stopping"
            case "fail":
                journal.failed("CANCELLED")
                self.stage = "stopping"
            case "hold":
                journal.held()
                self.stage = "held"
            case "finish":
                journal.finished()
                self.stage = "finished"
            case "reopen":
                journal.reopened()
                self.stage = "live"
                self.calls = {seq: "between" if state == "closed" else state for seq, state in self.calls.items()}
                self.redos.clear()
            case "ask" | "retry":
                journal.asked(seq, attempt + 1)
                self.asked(seq)
            case "redo":
                journal.attempt_ended(seq, attempt, "interrupted").asked(seq, attempt + 1, ask="redo")
                self.redos[seq] = self.redos.get(seq, 0) + 1
                self.asked(seq)
            case "attemptEnd":
                journal.attempt_ended(seq, attempt)
                self.calls[seq] = "between"
            case "last":
                journal.attempt_ended(seq, attempt, "cancelled", is_last=True)
                self.calls[seq] = "closed"
            case "end":
                journal.ended(seq, value, attempt)
                self.calls[seq] = "ended"
            case "wait":
                journal.waiting(seq)
            case "cancelWait":
                journal.add(WaitCancelled(at=journal.at, seq=seq))
                self.calls[seq] = "closed"
            case _:
                raise AssertionError(move)

    def asked(self, seq: int) -> None:
        self.extra += seq in self.attempts
        self.attempts[seq] = self.attempts.get(seq, 0) + 1
        self.calls[seq] = "open"


@st.composite
def owners(draw: st.DrawFn) -> Owner:
    owner = Owner(draw(st.lists(PLAIN, min_size=1, max_size=4)))
    for choice in draw(st.lists(st.integers(0, 10_000), max_size=40)):
        owner.turn(choice)
    return owner


def is_seen(rows: list[StoredEntry], blobs: dict[str, bytes], head: str) -> bool:
    """True when both readers notice that these rows are not the journal with this head."""
    try:
        chained = decode_rows(RUN, rows, blobs)
        is_read = bool(chained) and chained[-1].hash == head
    except StoreCorrupt:
        is_read = False
    return not is_read and not verify(rows, blobs, head=head).is_sound


@settings(max_examples=150, deadline=None)
@given(owners())
def test_what_an_owner_writes_comes_back_exactly_and_is_sound(owner: Owner) -> None:
    journal = owner.journal
    found = decode_rows(RUN, journal.rows, journal.blobs)
    assert found == journal.chained
    for one, wanted in zip(found, journal.entries, strict=True):
        assert canonical_bytes(one.entry.model_dump()) == canonical_bytes(wanted.model_dump())
    verdict = verify(journal.rows, journal.blobs, head=journal.head)
    assert verdict.findings == ()
    assert verdict.known_head_at == len(journal.rows)

    state = fold(RUN, found)
    assert {"live": Stage.LIVE, "held": Stage.HELD, "stopping": Stage.STOPPING, "finished": Stage.FINISHED}[
        owner.stage
    ] is state.stage
    assert (state.agents_started, state.attempts, state.extra) == (
        len(owner.calls),
        sum(owner.attempts.values()),
        owner.extra,
    )
    assert (verdict.counts.calls, verdict.counts.attempts, verdict.counts.extra) == (
        state.agents_started,
        state.attempts,
        state.extra,
    )
    assert {seq for seq, known in owner.calls.items() if known == "ended"} == {end.seq for end in state.ends}


@settings(max_examples=75, deadline=None)
@given(owners(), st.integers(0, 100))
def test_a_fold_may_go_on_from_any_place(owner: Owner, cut: int) -> None:
    chained = owner.journal.chained
    state: RunState = fold(RUN, chained[:cut])
    for one in chained[cut:]:
        state.apply(one)
    assert state == fold(RUN, chained)


@settings(max_examples=75, deadline=None)
@given(owners())
def test_observers_see_one_event_an_entry_at_most_and_one_end_an_agent(owner: Owner) -> None:
    observed = Observed(run_id=RUN)
    live: set[int] = set()
    last = 0
    for chained in owner.journal.chained:
        events = observed.events_of(chained)
        assert len(events) <= 1
        for event in events:
            assert event.number == chained.seq > last
            last = event.number
            match event.kind:
                case "agentStarted":
                    assert event.seq not in live  # type: ignore[union-attr]
                    live.add(event.seq)  # type: ignore[union-attr]
                case "agentEnded":
                    live.remove(event.seq)  # type: ignore[union-attr]
                case "agentProgress":
                    assert event.seq in live  # type: ignore[union-attr]
                case "runEnded":
                    live.clear()


@settings(max_examples=75, deadline=None)
@given(owners())
def test_a_receipt_can_be_made_at_any_time_and_read_back(owner: Owner) -> None:
    made = receipt_of(fold(RUN, owner.journal.chained))
    assert Receipt.model_validate(decode_json(compact_json(made.to_json()))) == made
    assert len(made.agents) == made.agents_started
    assert sum(len(agent.asks) for agent in made.agents) == made.attempts


@settings(max_examples=200, deadline=None)
@given(owners(), st.data())
def test_a_byte_that_was_flipped_is_seen(owner: Owner, data: st.DataObject) -> None:
    journal = owner.journal
    index = data.draw(st.integers(0, len(journal.rows) - 1))
    row = journal.rows[index]
    place = data.draw(st.integers(0, len(row.body) - 1))
    body = bytearray(row.body)
    body[place] ^= data.draw(st.integers(1, 255))
    rows = [*journal.rows[:index], replace(row, body=bytes(body)), *journal.rows[index + 1 :]]
    assert is_seen(rows, journal.blobs, journal.head)


@settings(max_examples=100, deadline=None)
@given(owners(), st.data())
def test_a_row_that_was_dropped_doubled_swapped_or_cut_off_is_seen(owner: Owner, data: st.DataObject) -> None:
    journal = owner.journal
    rows = journal.rows
    index = data.draw(st.integers(0, len(rows) - 2))
    for changed in (
        [*rows[:index], *rows[index + 1 :]],
        [*rows[: index + 1], *rows[index:]],
        [*rows[:index], rows[index + 1], rows[index], *rows[index + 2 :]],
        rows[: index + 1],
        [],
    ):
        assert is_seen(changed, journal.blobs, journal.head)


@settings(max_examples=75, deadline=None)
@given(owners())
def test_an_export_gives_the_exact_rows_back(owner: Owner) -> None:
    journal, file = owner.journal, io.BytesIO()
    write_export(
        file, run_id=RUN, rows=journal.rows, blobs=journal.blobs, head_seq=len(journal.rows), head_hash=journal.head
    )
    file.seek(0)
    found = read_export(file)
    assert (found.rows, found.blobs, found.head_hash) == (journal.rows, journal.blobs, journal.head)
