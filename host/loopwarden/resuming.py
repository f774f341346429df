"""A run's plan, made again from its journal: a row supplies data, the deployment supplies code and providers."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from loopwarden.checks import Check
from loopwarden.contract import AgentOutcome, Delivery, Opening, PlainContract
from loopwarden.failures import InvalidRequest, StartRefused
from loopwarden.journal.fold import RunState
from loopwarden.limits import Limits
from loopwarden.plan import Deployment, Plan, refuse_ours_inside, refuse_unapproved
from loopwarden.replay_version import contract_digest, replay_version
from loopwarden.script import Script
from loopwarden.workspace import resolve_workspace
from loopwarden_engine.plain import copy_object

PLAIN_DIGEST: Final = contract_digest(PlainContract())
"""Of scripts without a contract."""
_FIELDS: Final = frozenset(field.name for field in dataclasses.fields(Limits))


def plan_from(state: RunState, scripts: Mapping[str, Script[Any, Any]], deployment: Deployment) -> Plan[Any, Any]:
    """The plan of a run by its journal. Raises a subclass of `StartRefused` when this host cannot drive it.

    `scripts`: by name, those whose contracts this host has; the source is the one that the journal holds.
    """
    created = state.created
    script = script_of(state, scripts)
    refuse_unapproved(script, deployment)
    if created.replay != replay_version():
        raise InvalidRequest(
            f"the run needs Python {created.replay.python} with the language policy that it was created under; this "
            f"host has Python {replay_version().python}, or another policy"
        )
    if created.provider not in deployment.providers:
        raise InvalidRequest(f"this host has no provider {created.provider[:100]!r}")
    contract = script.contract
    try:
        args = contract.decode_args(state.args)
        opening = opening_of(state)
        script_args = copy_object(contract.script_args(args, opening), "args")
    except StartRefused:
        raise
    except Exception as error:
        raise InvalidRequest(
            f"the contract of the loop failed with {type(error).__name__} at the recorded arguments"
        ) from error
    name = created.workspace if created.workspace in deployment.workspaces else None
    workspace = workspace_of(state, deployment)
    return Plan(
        script=script,
        args=args,
        script_args=script_args,
        limits=limits_from(state.limits),
        workspace=workspace,
        workspace_name=name,
        share_workspace=created.share_workspace,
        isolation=created.isolation,
        provider=created.provider,
        checks=tuple(Check(argv=tuple(check.argv)) for check in created.checks),
        opening=opening,
        deployment=deployment,
    )


def script_of(
    state: RunState, scripts: Mapping[str, Script[Any, Any]], *, any_version: bool = False
) -> Script[Any, Any]:
    """The script of a run: the source that its journal holds, under the contract that this host has for it.

    A script without a contract needs nothing of the host. `any_version`: the contract may have changed since. Raises
    `InvalidRequest` when this host does not have the contract.
    """
    created = state.created
    known = scripts.get(created.script)
    if known is not None and (any_version or contract_digest(known.contract) == created.contract_digest):
        contract = known.contract
    elif created.contract_digest == PLAIN_DIGEST:
        contract = PlainContract()
    elif known is None:
        raise InvalidRequest(f"this host has no loop {created.script[:100]!r}; start a host that has it")
    else:
        raise InvalidRequest(f"the contract of the loop {created.script!r} changed since the run was created")
    return Script(name=created.script, source=created.source, contract=contract)


def handoff_of(state: RunState, scripts: Mapping[str, Script[Any, Any]]) -> dict[str, Any] | None:
    """The last handoff among the recorded ends, by the contract that this host has; None when there is none."""
    deliveries = [Delivery(seq=end.seq, outcome=AgentOutcome(end.outcome), value=end.value) for end in state.ends]
    try:
        contract = script_of(state, scripts, any_version=True).contract
        handoff = contract.last_handoff(contract.decode_args(state.args), deliveries)
    except Exception:  # noqa: BLE001 -- a contract is foreign code, and the run has to come to its end without it, too
        return None
    return None if handoff is None else dict(handoff)


def limits_from(recorded: Mapping[str, int | float | None]) -> Limits:
    """Limits as a journal holds them; what it does not name keeps its default. Raises `InvalidRequest`."""
    try:
        return Limits(**{name: value for name, value in recorded.items() if name in _FIELDS})  # type: ignore[arg-type]
    except ValueError as error:
        raise InvalidRequest(f"the limits of the run cannot be: {error}") from None


def opening_of(state: RunState) -> Opening | None:
    """What the run continues; None for one that begins afresh."""
    opening = state.created.opening
    if opening is None:
        return None
    return Opening(run_id=opening.run_id, handoff=opening.handoff, failed_checks=opening.failed_checks)


def workspace_of(state: RunState, deployment: Deployment) -> Path | None:
    """The folder of the run on this machine; None when it has none. Raises `InvalidRequest`."""
    recorded = state.created.workspace
    if recorded is None:
        return None
    if recorded in deployment.workspaces:
        path = deployment.workspaces[recorded]
    elif "/" in recorded:
        path = Path(recorded)
    else:
        raise InvalidRequest(f"this host declares no workspace {recorded[:100]!r}; see [workspaces] in the settings")
    folder = resolve_workspace(path)
    refuse_ours_inside(folder, deployment)
    return folder
