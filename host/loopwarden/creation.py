"""The first entry of a run's journal, made from its plan: all that any host of the deployment needs to drive it."""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from loopwarden.journal.entries import CheckSpec, Created, OpeningRecord
from loopwarden.plan import Plan
from loopwarden.replay_version import contract_digest, replay_version
from loopwarden.store.runs import NewRun
from loopwarden_engine.plain import canonical_bytes, digest

DEFAULT_QUEUE: Final = "default"
"""Of runs that name none."""
_NOT_CONTENT: Final = {
    "at", "run_id", "key", "by", "queue", "priority", "replay", "settings_digest", "contract_digest",
}  # fmt: skip
"""What may differ between two submissions of the same run under one key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Booking:
    """What a store needs to know of a run beside its plan."""

    queue: str = DEFAULT_QUEUE
    key: str | None = None
    """The same key gives the same run."""
    priority: int = 0
    """Higher ones are claimed first."""
    not_before: float = 0.0
    """Unix time in seconds; 0 for at once."""
    labels: Mapping[str, str] = field(default_factory=dict)
    scopes: Sequence[str] = ()
    by: str = ""
    keep_prompts: bool = False


def new_run(plan: Plan[Any, Any], run_id: str, booking: Booking) -> NewRun:
    """What is committed when a run is created."""
    opening = plan.opening
    created = Created(
        at=time.time(),
        run_id=run_id,
        script=plan.script.name,
        source=plan.script.source,
        source_digest=plan.script.digest,
        contract_digest=contract_digest(plan.script.contract),
        args=plan.script.contract.args_json(plan.args),
        limits=dataclasses.asdict(plan.limits),
        provider=plan.provider,
        workspace=plan.workspace_name or (None if plan.workspace is None else str(plan.workspace)),
        share_workspace=plan.share_workspace,
        isolation=plan.isolation,
        checks=[CheckSpec(argv=list(check.argv)) for check in plan.checks],
        opening=None
        if opening is None
        else OpeningRecord(run_id=opening.run_id, handoff=opening.handoff, failed_checks=opening.failed_checks),
        settings_digest=plan.deployment.settings_digest,
        replay=replay_version(),
        keep_prompts=booking.keep_prompts,
        scopes=sorted(set(booking.scopes), key=lambda name: name.encode()),
        queue=booking.queue,
        key=booking.key,
        labels=dict(booking.labels),
        priority=booking.priority,
        by=booking.by,
    )
    content = created.model_dump(mode="json", by_alias=False, exclude=_NOT_CONTENT)
    return NewRun(created=created, content_digest=digest(canonical_bytes(content)), not_before=booking.not_before)
