"""The corpus of journals that earlier versions wrote, and what a reader of any version has to find in them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from loopwarden.journal.chain import decode_rows
from loopwarden.journal.export import Exported
from loopwarden.journal.fold import fold
from loopwarden.journal.observed import Observed
from loopwarden.journal.receipt_fold import receipt_of
from loopwarden.journal.verify import verify

FOLDER = Path(__file__).parents[1] / "replay" / "journals"


def old_journals() -> Iterator[Path]:
    """Every export in the corpus."""
    yield from sorted(FOLDER.glob("*.journal"))


def expected(path: Path) -> dict[str, Any]:
    """What stands beside an export."""
    found: dict[str, Any] = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    return found


def essentials(exported: Exported) -> dict[str, Any]:
    """What must never change about a journal that was written: who reads an old one sees the same run."""
    chained = decode_rows(exported.run_id, exported.rows, exported.blobs)
    state = fold(exported.run_id, chained)
    receipt = receipt_of(state)
    verdict = verify(exported.rows, exported.blobs, head=exported.head_hash)
    observed = Observed(run_id=exported.run_id)
    return {
        "stage": state.stage.name,
        "segment": state.segment,
        "epoch": state.epoch,
        "seq": state.seq,
        "head": state.hash,
        "stopReason": receipt.stop_reason,
        "failureCode": None if receipt.failure is None else receipt.failure.code,
        "standing": receipt.standing,
        "result": receipt.result,
        "verified": receipt.verified,
        "limits": receipt.limits,
        "args": receipt.args,
        "startedAt": receipt.started_at,
        "endedAt": receipt.ended_at,
        "agentsStarted": receipt.agents_started,
        "attempts": receipt.attempts,
        "extra": state.extra,
        "usage": None if receipt.usage is None else receipt.usage.model_dump(by_alias=True),
        "attemptsOfUnknownCost": receipt.attempts_of_unknown_cost,
        "lastHandoff": receipt.last_handoff,
        "decidedBy": receipt.decided_by,
        "agents": [
            {
                "seq": agent.seq,
                "label": agent.label,
                "outcome": agent.outcome,
                "failureClass": agent.failure_class,
                "asks": [[ask.kind, ask.provider, ask.outcome] for ask in agent.asks],
            }
            for agent in receipt.agents
        ],
        "ends": [end.seq for end in state.ends],
        "events": [[event.number, event.kind] for one in chained for event in observed.events_of(one)],
        "findings": list(verdict.findings),
        "provenance": verdict.provenance,
    }
