"""What a journal proves, from its rows alone: a second opinion that shares no rule with the fold.

    the chain      each row fits its hash and follows on the row before; blobs are the ones that were named
    the promises   asks within the limits in force, one end per call, at most two redos, no ask once a run stops
    the owners     epochs rise, and nothing but the first entry comes before a claim
    the result     a report in it is, byte for byte in canonical JSON, what an agent delivered before

All problems are collected. A journal that is damaged in one place is read on behind it.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from loopwarden.journal.chain import RowDamaged, decode_row
from loopwarden.journal.codec import PLAIN, Codec
from loopwarden.journal.entries import (
    Asked,
    AttemptEnded,
    Claimed,
    Created,
    Ended,
    Entry,
    Finished,
    Held,
    LimitsRaised,
    Reopened,
    Stopping,
)
from loopwarden.store.runs import StoredEntry
from loopwarden_engine.plain import canonical_bytes

NOT_PROVED: Final = (
    "This finds damage, edits and, with a head that was noted before, a journal that was cut off. Without such a head "
    "it does not find a journal that was rewritten as a whole by somebody who owns the store."
)
NOTHING_TO_TRACE: Final = "no report in the result to trace"
MAX_FINDINGS: Final = 100
MAX_REDOS: Final = 2
_BEFORE_THE_FIRST: Final = "sha256:" + "0" * 64
_REPORTS: Final = ("report", "lastReport")


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What was counted on the way."""

    entries: int = 0
    calls: int = 0
    attempts: int = 0
    extra: int = 0
    """Asks beyond the first of a call."""
    redos: int = 0
    ended: int = 0
    """Calls whose script got an end."""
    claims: int = 0
    segments: int = 0
    """1, and one more for each time the run was reopened; 0 without an entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a journal proves, and what not."""

    run_id: str | None
    findings: tuple[str, ...]
    """What is wrong, as sentences with the number of the entry. Empty: the journal keeps all promises."""
    counts: Counts
    head: str | None
    """The hash of the last entry."""
    known_head_at: int | None
    """The number of the entry with the head that was given; None when none was given, or it was not found."""
    provenance: str
    """Where the report in the last result comes from, as a sentence."""
    not_proved: str = NOT_PROVED

    @property
    def is_sound(self) -> bool:
        """True when nothing is wrong."""
        return not self.findings

    def to_json(self) -> dict[str, Any]:
        """The JSON form, camelCase."""
        counts = self.counts
        return {
            "runId": self.run_id,
            "isSound": self.is_sound,
            "findings": list(self.findings),
            "entries": counts.entries,
            "calls": counts.calls,
            "attempts": counts.attempts,
            "extra": counts.extra,
            "redos": counts.redos,
            "ended": counts.ended,
            "claims": counts.claims,
            "segments": counts.segments,
            "head": self.head,
            "knownHeadAt": self.known_head_at,
            "provenance": self.provenance,
            "notProved": self.not_proved,
        }


def verify(
    rows: Iterable[StoredEntry],
    blobs: Mapping[str, bytes],
    *,
    head: str | None = None,
    codec: Codec = PLAIN,
) -> Verdict:
    """Verify one journal. `head`: a hash that was noted before, of any of its entries. Raises nothing."""
    wanted = None if head is None else head if head.startswith("sha256:") else f"sha256:{head}"
    witness = _Witness()
    expected, previous, known_head_at = 1, _BEFORE_THE_FIRST, None
    for row in rows:
        if not _is_row(row):
            witness.find(expected, "is not stored as a number, bytes and a hash")
            expected += 1
            continue
        if row.seq != expected:
            witness.find(row.seq, f"stands where entry {expected} belongs")
        if "sha256:" + hashlib.sha256(previous.encode() + row.body).hexdigest() != row.hash:
            witness.find(row.seq, "does not fit its hash: it, or an entry before it, was changed")
        expected, previous = row.seq + 1, row.hash
        if row.hash == wanted:
            known_head_at = row.seq
        try:
            entry = decode_row(row, blobs, codec)
        except RowDamaged as damage:
            witness.find(row.seq, str(damage))
        else:
            witness.see(row.seq, entry)
        witness.entries += 1
    if witness.entries == 0:
        witness.findings.append("the journal is empty")
    if wanted is not None and known_head_at is None:
        witness.findings.append(
            f"no entry has the hash {wanted[:80]} that was noted before: the journal was cut off, or rewritten"
        )
    return witness.verdict(previous, known_head_at)


def _is_row(row: StoredEntry) -> bool:
    return type(row.seq) is int and type(row.body) is bytes and type(row.hash) is str and row.hash.isascii()


@dataclass(slots=True)
class _Witness:
    """Sees the entries one by one and keeps its own books."""

    entries: int = 0
    findings: list[str] = field(default_factory=list)
    unsaid: int = 0
    """Findings beyond what a person reads."""
    run_id: str | None = None
    limits: dict[str, int | float | None] = field(default_factory=dict)
    epoch: int = 0
    claims: int = 0
    segments: int = 1
    is_stopping: bool = False
    is_held: bool = False
    is_finished: bool = False
    attempts: int = 0
    asked: Counter[int] = field(default_factory=Counter)
    """Asks by call."""
    ends: Counter[int] = field(default_factory=Counter)
    """Ends for the script, by call."""
    ended_attempts: set[tuple[int, int]] = field(default_factory=set)
    redos: int = 0
    redos_of: Counter[int] = field(default_factory=Counter)
    """By call, in this segment."""
    delivered: dict[bytes, str] = field(default_factory=dict)
    """By digest of the canonical bytes: who gave that value."""
    provenance: str = NOTHING_TO_TRACE

    def find(self, seq: int, what: str) -> None:
        """Note what is wrong with an entry."""
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(f"entry {seq} {what}")
        else:
            self.unsaid += 1

    def see(self, seq: int, entry: Entry) -> None:
        """Look at one entry."""
        if (seq == 1) is not isinstance(entry, Created):
            self.find(seq, f"is {entry.entry!r}; a journal begins with 'created', and has it once")
        elif seq > 1 and self.claims == 0 and not isinstance(entry, Claimed | Held):
            self.find(seq, f"is {entry.entry!r}, but no host had claimed the run")
        if isinstance(entry, Created):
            self._created(entry)
        elif isinstance(entry, Claimed):
            self._claimed(seq, entry)
        elif isinstance(entry, Asked):
            self._asked(seq, entry)
        elif isinstance(entry, AttemptEnded | Ended):
            self._ended(seq, entry)
        elif isinstance(entry, Stopping):
            self._stopping(seq, entry)
        elif isinstance(entry, Finished):
            self._finished(seq, entry)
        elif isinstance(entry, Reopened):
            self._reopened(seq, entry)
        elif isinstance(entry, LimitsRaised):
            self.limits.update(entry.limits)
        elif isinstance(entry, Held):
            # From here on an ask needs `reopened`; one that was held while it ended may be ended once more.
            self.is_held, self.is_stopping = True, False

    def _created(self, created: Created) -> None:
        self.run_id = created.run_id
        self.limits = dict(created.limits)
        if created.opening is not None and created.opening.handoff is not None:
            self._deliver(created.opening.handoff, f"the handoff of run {created.opening.run_id}")

    def _claimed(self, seq: int, claimed: Claimed) -> None:
        if claimed.epoch <= self.epoch:
            self.find(seq, f"claims the run with epoch {claimed.epoch}, but epoch {self.epoch} was there before")
        self.epoch = max(self.epoch, claimed.epoch)
        self.claims += 1

    def _asked(self, seq: int, asked: Asked) -> None:
        call = asked.seq
        if self.is_stopping:
            self.find(seq, f"asks call {call} after the run had begun to end")
        if self.is_held:
            self.find(seq, f"asks call {call} while the run was held")
        if self.ends[call]:
            self.find(seq, f"asks call {call} again, which had its end")
        self.attempts += 1
        self.asked[call] += 1
        if asked.attempt != self.asked[call]:
            self.find(seq, f"asks call {call} as attempt {asked.attempt}; it is its ask number {self.asked[call]}")
        if self.asked[call] == 1:
            agents = len(self.asked)
            self._hold_against(
                seq, "max_total_agents", agents, f"asks call {call}, agent {agents} of the run; maxTotalAgents"
            )
        else:
            extra = self._extra
            self._hold_against(
                seq,
                "max_extra_attempts",
                extra,
                f"asks call {call} again, extra attempt {extra} of the run; maxExtraAttempts",
            )
        if asked.ask == "redo":
            self.redos += 1
            self.redos_of[call] += 1
            if self.redos_of[call] > MAX_REDOS:
                self.find(seq, f"is redo number {self.redos_of[call]} of call {call}; {MAX_REDOS} are allowed")

    def _hold_against(self, seq: int, limit: str, count: int, what: str) -> None:
        if self.run_id is None:
            return  # the entry with the limits is damaged, which is a finding already
        allowed = self.limits.get(limit)
        if type(allowed) is not int or count > allowed:
            self.find(seq, f"{what} was {'not set' if allowed is None else allowed}")

    def _ended(self, seq: int, end: AttemptEnded | Ended) -> None:
        call = end.seq
        if not 1 <= end.attempt <= self.asked[call]:
            self.find(seq, f"ends attempt {end.attempt} of call {call}, which was not asked")
        if self.is_finished:
            self.find(seq, f"ends attempt {end.attempt} of call {call} after the end of the run")
        self.ended_attempts.add((call, end.attempt))
        if not isinstance(end, Ended):
            return
        self.ends[call] += 1
        if self.ends[call] > 1:
            self.find(seq, f"ends call {call} a second time")
        if end.outcome == "completed":
            self._deliver(end.value, f"what the agent of call {call} delivered (entry {seq})")

    def _deliver(self, value: object, by: str) -> None:
        self.delivered[hashlib.sha256(canonical_bytes(value)).digest()] = by

    def _stopping(self, seq: int, stopping: Stopping) -> None:
        if self.is_stopping:
            self.find(seq, "ends this segment of the run a second time")
        self.is_stopping = True
        self.provenance = NOTHING_TO_TRACE
        result = stopping.result
        for name in _REPORTS if isinstance(result, dict) else ():
            if isinstance(result.get(name), dict):
                giver = self.delivered.get(hashlib.sha256(canonical_bytes(result[name])).digest())
                if giver is None:
                    self.find(seq, f"has a result whose {name} was given by no agent of the run")
                    self.provenance = f"the {name} in the result was given by no agent of the run"
                else:
                    self.provenance = f"the {name} in the result is {giver}"

    def _reopened(self, seq: int, reopened: Reopened) -> None:
        if not (self.is_finished or self.is_held):
            self.find(seq, "reopens the run, which had not ended and was not held")
        self.limits.update(reopened.limits)
        self.segments += 1
        self.is_stopping = self.is_held = self.is_finished = False
        self.redos_of.clear()

    def _finished(self, seq: int, finished: Finished) -> None:
        if self.is_finished or not self.is_stopping:
            self.find(seq, "finishes a run that was not about to end")
        self.is_finished = True
        counted = (len(self.asked), self.attempts)
        if (finished.agents_started, finished.attempts) != counted:
            self.find(
                seq,
                f"says {finished.agents_started} agents and {finished.attempts} attempts; "
                f"the journal holds {counted[0]} and {counted[1]}",
            )
        for call, asks in self.asked.items():
            if (call, asks) not in self.ended_attempts:
                self.find(seq, f"ends the run while attempt {asks} of call {call} has no end")

    @property
    def _extra(self) -> int:
        return self.attempts - len(self.asked)

    def verdict(self, head: str, known_head_at: int | None) -> Verdict:
        """What was found."""
        more = [f"and {self.unsaid} more findings"] if self.unsaid else []
        return Verdict(
            run_id=self.run_id,
            findings=(*self.findings, *more),
            counts=Counts(
                entries=self.entries,
                calls=len(self.asked),
                attempts=self.attempts,
                extra=self._extra,
                redos=self.redos,
                ended=len(self.ends),
                claims=self.claims,
                segments=self.segments if self.entries else 0,
            ),
            head=head if self.entries else None,
            known_head_at=known_head_at,
            provenance=self.provenance,
        )
