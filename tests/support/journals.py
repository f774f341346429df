"""Journals for tests: entries with plausible content, chained into rows as a store would do it."""

from collections.abc import Iterable, Mapping
from typing import Any

from loopwarden.journal.chain import START, chain_hash, encode_entry
from loopwarden.journal.codec import PLAIN, Codec
from loopwarden.journal.entries import (
    Asked,
    AttemptEnded,
    Chained,
    Claimed,
    ConclusionRecord,
    Created,
    Ended,
    Entry,
    Finished,
    Held,
    Logged,
    PhaseNamed,
    Reopened,
    ReplayVersion,
    Stopping,
    Waiting,
)
from loopwarden.receipt import FailureRecord, UsageRecord
from loopwarden.store.runs import StoredEntry

RUN = "run-1"
BEGAN = 1_796_000_000.0
"""Unix time of the first entry; each later one comes a second after."""
USAGE = UsageRecord(input_tokens=100, cached_input_tokens=None, output_tokens=20, cost_usd=0.25)
REPORT: Mapping[str, Any] = {
    "status": "complete",
    "summary": "All tests pass.",
    "evidence": ["42 passed"],
    "nextSteps": [],
    "blocker": "",
}


class Journal:
    """A journal that grows. Nothing is checked: tests write what no owner would, too."""

    def __init__(self, run_id: str = RUN, codec: Codec = PLAIN) -> None:
        self.run_id = run_id
        self.codec = codec
        self.entries: list[Entry] = []
        self.rows: list[StoredEntry] = []
        self.blobs: dict[str, bytes] = {}
        self.head = START

    @property
    def at(self) -> float:
        """The time of the next entry."""
        return BEGAN + len(self.entries)

    @property
    def chained(self) -> list[Chained]:
        """The entries with their places."""
        return [Chained(row.seq, entry, row.hash) for row, entry in zip(self.rows, self.entries, strict=True)]

    def add(self, *entries: Entry) -> "Journal":
        """Append entries."""
        for entry in entries:
            encoded = encode_entry(entry, len(self.rows) + 1, self.codec)
            self.head = chain_hash(self.head, encoded.body)
            self.rows.append(StoredEntry(seq=len(self.rows) + 1, body=encoded.body, hash=self.head))
            self.blobs.update(encoded.blobs)
            self.entries.append(entry)
        return self

    # ---- entries, one by one

    def created(self, **content: Any) -> "Journal":
        limits = {"max_total_agents": 10, "max_extra_attempts": 3, "run_deadline_seconds": 86400.0}
        known: dict[str, Any] = {
            "run_id": self.run_id,
            "script": "ralph",
            "source": "async def main(args): ...",
            "source_digest": "sha256:" + "a" * 64,
            "contract_digest": "sha256:" + "b" * 64,
            "args": {"objective": "Make it work", "maxRounds": 10},
            "limits": limits,
            "provider": "claude",
            "replay": ReplayVersion(python="3.11", restricted_python="8.0", policy="sha256:" + "c" * 64),
        }
        return self.add(Created(at=self.at, **(known | content)))

    def claimed(self, epoch: int = 1, host: str = "host-a") -> "Journal":
        return self.add(Claimed(at=self.at, epoch=epoch, host=host))

    def asked(self, seq: int, attempt: int = 1, **content: Any) -> "Journal":
        known: dict[str, Any] = {
            "key": f"0.{seq}",
            "digest": "sha256:" + f"{seq:064x}",
            "ask": "first" if attempt == 1 else "retry",
            "provider": "claude",
            "label": f"round {seq}",
        }
        return self.add(Asked(at=self.at, seq=seq, attempt=attempt, **(known | content)))

    def ended(self, seq: int, value: Any = "done", attempt: int = 1, **content: Any) -> "Journal":
        known: dict[str, Any] = {"outcome": "completed", "usage": USAGE, "seconds": 1.0}
        return self.add(Ended(at=self.at, seq=seq, attempt=attempt, value=value, **(known | content)))

    def attempt_ended(self, seq: int, attempt: int = 1, outcome: Any = "failed", **content: Any) -> "Journal":
        return self.add(AttemptEnded(at=self.at, seq=seq, attempt=attempt, outcome=outcome, **content))

    def waiting(self, seq: int, seconds: float = 2.0, ask: Any = "retry") -> "Journal":
        return self.add(Waiting(at=self.at, seq=seq, until=self.at + seconds, ask=ask))

    def phase(self, title: str) -> "Journal":
        return self.add(PhaseNamed(at=self.at, title=title))

    def log(self, message: str) -> "Journal":
        return self.add(Logged(at=self.at, message=message))

    def completed(self, result: Any = None, conclusion: ConclusionRecord | None = None) -> "Journal":
        return self.add(Stopping(at=self.at, stop_reason="completed", result=result, conclusion=conclusion))

    def failed(self, code: str, message: str = "It did not end well.") -> "Journal":
        failure = FailureRecord(code=code, message=message)
        reason: Any = "cancelled" if code == "CANCELLED" else "error"
        return self.add(Stopping(at=self.at, stop_reason=reason, failure=failure))

    def finished(self, **content: Any) -> "Journal":
        asks = [entry for entry in self.entries if isinstance(entry, Asked)]
        known: dict[str, Any] = {"agents_started": len({ask.seq for ask in asks}), "attempts": len(asks)}
        return self.add(Finished(at=self.at, **(known | content)))

    def reopened(self, **content: Any) -> "Journal":
        return self.add(Reopened(at=self.at, **({"by": "olga", "why": "more rounds"} | content)))

    def held(self, code: str = "REPLAY_DIVERGED", reason: str = "Call 2 is another call now.") -> "Journal":
        return self.add(Held(at=self.at, code=code, reason=reason))


def begun(**content: Any) -> Journal:
    """A journal whose run was created and claimed."""
    return Journal().created(**content).claimed()


def rechained(bodies: Iterable[bytes]) -> list[StoredEntry]:
    """Rows with these bodies and hashes that fit: what somebody makes who owns the store."""
    rows: list[StoredEntry] = []
    head = START
    for seq, body in enumerate(bodies, 1):
        head = chain_hash(head, body)
        rows.append(StoredEntry(seq=seq, body=body, hash=head))
    return rows
