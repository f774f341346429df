"""A request turned into what a run will do: everything that can be refused is refused here, before anything starts."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

from loopwarden.agent_reply import provider_words
from loopwarden.approvals import Approvals
from loopwarden.checks import Check
from loopwarden.contract import AgentOutcome, Contract, Delivery, Opening
from loopwarden.failures import ArgsInvalid, InvalidRequest, ProviderUnfit, ScriptRejected, StartRefused
from loopwarden.limits import LimitOverrides, Limits
from loopwarden.policy import NO_POLICY, Policy
from loopwarden.provider import Capabilities, Provider
from loopwarden.receipt import Receipt
from loopwarden.run_folder import RunFolderError
from loopwarden.script import Script
from loopwarden.spending import Spending
from loopwarden.workspace import lock_folder, refuse_inside, resolve_workspace
from loopwarden_engine.plain import JsonObject, compact_json, copy_object

ArgsT = TypeVar("ArgsT")
ResultT = TypeVar("ResultT")
AnswerT = TypeVar("AnswerT")

_CAPABILITY_WORDS: Final = {
    "structured_output": "give structured output",
    "fresh_context": "start each agent with a fresh context",
    "streams": "report progress while an agent works",
}


Isolation: TypeAlias = Literal["worktree"]
"""Where agents work: in a git worktree of their own, made for the run; otherwise in the workspace itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """What the deployment decided, for every run of a host."""

    providers: Mapping[str, Provider]
    policies: Mapping[str, Policy]
    """What each provider is granted beyond one ask a call; a provider without an entry gets nothing."""
    default_provider: str
    limits: Limits
    state_folder: Path | None
    settings_digest: str | None
    allow_weak_confinement: bool
    has_store: bool = False
    """Runs are journaled: an agent that a crash interrupts may be asked again."""
    workspaces: Mapping[str, Path] = field(default_factory=dict)
    """Workspaces by the names that all hosts of a store know them by."""
    approvals: Approvals | None = None
    """What may run; None: anything."""
    require_bound: bool = False
    """Run only what cannot start more agents than its cap, as vetting finds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Generic[ArgsT, ResultT]):
    """One run as it will be: checked, resolved, complete."""

    script: Script[ArgsT, ResultT]
    args: ArgsT
    script_args: JsonObject
    limits: Limits
    workspace: Path | None
    workspace_name: str | None
    """By which several hosts know the workspace; None for a path of this machine."""
    share_workspace: bool
    isolation: Isolation | None
    provider: str
    checks: tuple[Check, ...]
    opening: Opening | None
    deployment: Deployment


def make_plan(
    deployment: Deployment,
    script: Script[ArgsT, ResultT],
    args: object,
    *,
    workspace: Path | str | None,
    share_workspace: bool,
    isolation: Isolation | None,
    provider: str | None,
    checks: Sequence[Check],
    continues: Receipt | None,
    overrides: LimitOverrides,
) -> Plan[ArgsT, ResultT]:
    """Check a request. Raises a subclass of `StartRefused`."""
    contract = script.contract
    limits = deployment.limits.resolved(has_store=deployment.has_store).lowered(overrides)
    check_source(script, limits)
    refuse_unapproved(script, deployment)
    decoded = _from_contract(lambda: contract.decode_args(args))
    limits = _cap_agents(_from_contract(lambda: contract.max_total_agents(decoded)), limits, overrides)
    if deployment.limits.max_extra_attempts is None and overrides.get("max_extra_attempts") is None:
        limits = replace(limits, max_extra_attempts=None).resolved(has_store=deployment.has_store)
    provider_name = _choose_provider(deployment, provider, contract.requires)
    _check_grants(deployment, provider_name, contract.requires, limits)
    name = str(workspace) if workspace is not None and str(workspace) in deployment.workspaces else None
    if name is not None:
        workspace = deployment.workspaces[name]
    folder = None if workspace is None else resolve_workspace(Path(workspace))
    if folder is not None:
        refuse_ours_inside(folder, deployment)
        refuse_inside(folder, _lock_folder(deployment), "the folder of locks")
    if checks and folder is None:
        raise InvalidRequest("checks run in the workspace; give the run a workspace")
    if isolation is not None:
        _check_isolation(isolation, folder, deployment.state_folder)
    opening = None if continues is None else _opening(contract, decoded, script.name, continues)
    script_args = _from_contract(lambda: copy_object(contract.script_args(decoded, opening), "args"))
    if len(compact_json(script_args).encode("utf-8")) > limits.max_args_bytes:
        raise ArgsInvalid(f"the arguments take more than {limits.max_args_bytes} bytes of JSON (maxArgsBytes)")
    return Plan(
        script=script,
        args=decoded,
        script_args=script_args,
        limits=limits,
        workspace=folder,
        workspace_name=name,
        share_workspace=share_workspace,
        isolation=isolation,
        provider=provider_name,
        checks=tuple(checks),
        opening=opening,
        deployment=deployment,
    )


def _from_contract(question: Callable[[], AnswerT]) -> AnswerT:
    """Ask a contract. It is code of others, and whoever starts a run is promised a `StartRefused`."""
    try:
        return question()
    except StartRefused:
        raise
    except Exception as error:
        raise InvalidRequest(
            f"the contract of the loop failed with {type(error).__name__}: {provider_words(error)}; "
            "its author has to mend it"
        ) from error


def _lock_folder(deployment: Deployment) -> Path:
    try:
        return lock_folder(deployment.state_folder)
    except RunFolderError as error:
        raise InvalidRequest(str(error)) from None


TOO_LARGE: Final = "too-large"
"""The rule that a source breaks which has too many bytes to be looked at."""


def check_source(script: Script[Any, Any], limits: Limits) -> None:
    """Raises `ScriptRejected` for a source that is no Unicode text, or too large."""
    try:
        size = len(script.source.encode("utf-8"))
    except UnicodeEncodeError:
        raise ScriptRejected(f"the script {script.name!r} is not Unicode text: it holds a lone surrogate") from None
    if size > limits.max_source_bytes:
        raise ScriptRejected(
            f"the script {script.name!r} has {size} bytes; maxSourceBytes allows {limits.max_source_bytes}: move data "
            "out of it, into its arguments",
            details={"rule": TOO_LARGE},
        )


def refuse_unapproved(script: Script[Any, Any], deployment: Deployment) -> None:
    """A deployment that approves scripts runs no other, wherever it comes from. Raises `ScriptRejected`."""
    if deployment.approvals is not None:
        deployment.approvals.check(script)


def refuse_ours_inside(workspace: Path, deployment: Deployment) -> None:
    """What decides about runs lies where no agent can write. Raises `SettingsInWorkspace`."""
    refuse_inside(workspace, deployment.state_folder, "the state folder")
    for path in () if deployment.approvals is None else deployment.approvals.files:
        refuse_inside(workspace, path, "the lock of approved scripts")


def _cap_agents(fixed: int | None, limits: Limits, overrides: LimitOverrides) -> Limits:
    """Two numbers that mean the same are one number: what the contract fixes is the agent cap."""
    if fixed is None:
        return limits
    asked = overrides.get("max_total_agents")
    if asked is not None and asked != fixed:
        raise InvalidRequest(
            f"max_total_agents {asked} contradicts the arguments, from which {fixed} follows; leave it out"
        )
    return limits.lowered({"max_total_agents": fixed})


def _choose_provider(deployment: Deployment, asked: str | None, needed: Capabilities) -> str:
    name = asked if asked is not None else deployment.default_provider
    if name not in deployment.providers:
        known = ", ".join(sorted(deployment.providers)) or "none"
        raise InvalidRequest(f"the provider {name[:100]!r} does not exist; configured: {known}")
    _refuse_unfit(deployment, name, needed)
    return name


def _refuse_unfit(deployment: Deployment, name: str, needed: Capabilities) -> None:
    capabilities = deployment.providers[name].capabilities
    lacking = [
        words
        for capability, words in _CAPABILITY_WORDS.items()
        if getattr(needed, capability) and not getattr(capabilities, capability)
    ]
    if lacking:
        raise ProviderUnfit(f"the provider {name!r} cannot {' and cannot '.join(lacking)}, which this loop needs")


def _check_grants(deployment: Deployment, name: str, needed: Capabilities, limits: Limits) -> None:
    """What the policy of the provider grants must be possible, and a cap must be measured: never silently off."""
    policy = deployment.policies.get(name, NO_POLICY)
    if policy.repeats and not deployment.limits.resolved(has_store=deployment.has_store).max_extra_attempts:
        raise InvalidRequest(
            f"the policy of the provider {name!r} asks again, and maxExtraAttempts is 0; say how many repeats a run "
            "may make: max_extra_attempts under [limits], or --max-extra-attempts N"
        )
    names = [name] if policy.fallback is None else [name, policy.fallback]
    spending = Spending(cap_usd=limits.max_cost_usd)
    for each in names:
        _refuse_unfit(deployment, each, needed)
        problem = spending.cannot_measure(each, deployment.providers[each])
        if problem is not None:
            raise ProviderUnfit(problem)


def _check_isolation(isolation: str, workspace: Path | None, state_folder: Path | None) -> None:
    if isolation != "worktree":
        raise InvalidRequest(f"{isolation!r} is no isolation; there is: worktree")
    if workspace is None:
        raise InvalidRequest("a worktree is made of the workspace; give the run a workspace")
    if state_folder is None:
        raise InvalidRequest("worktrees are kept under the state folder; give the host a state_folder")


def _opening(contract: Contract[ArgsT, Any], args: ArgsT, name: str, receipt: Receipt) -> Opening:
    """What a continued run begins with. A receipt is a file, so its handoff is checked like any report."""
    if not contract.continues:
        raise InvalidRequest(f"a run of {name!r} cannot be continued: it has no handoff")
    if receipt.script != name:
        raise InvalidRequest(f"run {receipt.run_id} was a run of {receipt.script!r}, not of {name!r}")
    if receipt.stop_reason is None and receipt.ended_at is not None:
        raise InvalidRequest(f"the receipt of run {receipt.run_id} contradicts itself")
    if receipt.standing == "complete" and receipt.verified is not False:
        verified = "and its checks passed" if receipt.verified else "and no check contradicts it"
        raise InvalidRequest(f"run {receipt.run_id} is complete {verified}; there is nothing to continue")
    handoff = receipt.last_handoff
    if handoff is not None:
        delivery = Delivery(seq=1, outcome=AgentOutcome.COMPLETED, value=handoff)
        if _from_contract(lambda: contract.last_handoff(args, [delivery])) is None:
            raise InvalidRequest(
                f"the last handoff in the receipt of run {receipt.run_id} breaks the rules of the loop"
            )
    return Opening(run_id=receipt.run_id, handoff=handoff, failed_checks=_failed_checks(receipt))


def _failed_checks(receipt: Receipt) -> str | None:
    if receipt.verified is not False:
        return None
    parts = [
        f"$ {shlex.join(check.argv)}\n{check.problem or f'exit {check.exit}'}\n{check.output_tail}".rstrip()
        for check in receipt.checks
        if not check.passed
    ]
    return "\n\n".join(parts) or None
