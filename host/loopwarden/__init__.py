"""Loopwarden: run vetted agent loops in confined workers, under an exact agent budget.

async with Host(providers={"default": reply}, limits=Limits(max_total_agents=50)) as host:
    outcome = await host.run(Script.from_text(source), {"n": 3})
"""

from loopwarden.approvals import Approvals, ApprovedSources, LockApprovals
from loopwarden.checks import Check
from loopwarden.contract import (
    AgentOutcome,
    CallFacts,
    Conclusion,
    Contract,
    ContractBroken,
    Delivery,
    Facts,
    Opening,
    PlainContract,
    ProvenanceBroken,
    Standing,
)
from loopwarden.failure_class import FailureClass
from loopwarden.failures import (
    ArgsInvalid,
    Code,
    ConfinementUnavailable,
    Failure,
    InvalidRequest,
    LaunchFailed,
    LoopwardenError,
    ProviderUnfit,
    RunCancelled,
    RunFailed,
    ScriptRejected,
    SettingsInWorkspace,
    StartRefused,
    WorkspaceBusy,
)
from loopwarden.host import Host
from loopwarden.jobs.request import JobRequest
from loopwarden.limits import LimitOverrides, Limits
from loopwarden.one_run import run_sync
from loopwarden.outcome import Outcome
from loopwarden.policy import BreakerRule, Policy, Retry, Wait
from loopwarden.provider import (
    AgentFailed,
    AgentReply,
    AgentRequest,
    Capabilities,
    FunctionProvider,
    Provider,
    ProviderStartError,
)
from loopwarden.providers.command import CommandProvider
from loopwarden.receipt import Receipt
from loopwarden.run import Run
from loopwarden.script import Loop, Script
from loopwarden.usage import Usage
from loopwarden_engine.plain import JsonObject, JsonValue

__all__ = [
    "AgentFailed",
    "AgentOutcome",
    "AgentReply",
    "AgentRequest",
    "Approvals",
    "ApprovedSources",
    "ArgsInvalid",
    "BreakerRule",
    "CallFacts",
    "Capabilities",
    "Check",
    "Code",
    "CommandProvider",
    "Conclusion",
    "ConfinementUnavailable",
    "Contract",
    "ContractBroken",
    "Delivery",
    "Facts",
    "Failure",
    "FailureClass",
    "FunctionProvider",
    "Host",
    "InvalidRequest",
    "JobRequest",
    "JsonObject",
    "JsonValue",
    "LaunchFailed",
    "LimitOverrides",
    "Limits",
    "LockApprovals",
    "Loop",
    "LoopwardenError",
    "Opening",
    "Outcome",
    "PlainContract",
    "Policy",
    "ProvenanceBroken",
    "Provider",
    "ProviderStartError",
    "ProviderUnfit",
    "Receipt",
    "Retry",
    "Run",
    "RunCancelled",
    "RunFailed",
    "Script",
    "ScriptRejected",
    "SettingsInWorkspace",
    "Standing",
    "StartRefused",
    "Usage",
    "Wait",
    "WorkspaceBusy",
    "run_sync",
]
