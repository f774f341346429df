"""Who decided how a run ended, in words for its receipt."""

from collections.abc import Mapping
from typing import Final

from loopwarden.failures import Code

_DECIDED_BY: Final[Mapping[Code, str]] = {
    Code.SCRIPT_ERROR: "the script failed",
    Code.INVALID_ARGUMENT: "the host: the script misused a hook",
    Code.UNSUPPORTED_OPTION: "the host: the script misused a hook",
    Code.UNSUPPORTED_SCHEMA: "the host: the script misused a hook",
    Code.AGENT_CAP: "the host: a limit",
    Code.COST_CAP: "the host: a limit",
    Code.ITEM_CAP: "the host: a limit",
    Code.AGENT_START: "the provider",
    Code.AGENT_RESULT: "the provider",
    Code.CPU_LIMIT: "the host: a limit",
    Code.MEMORY_LIMIT: "the host: a limit",
    Code.NARRATION_LIMIT: "the host: a limit",
    Code.DEADLINE: "the host: a limit",
    Code.SCOPE_BUDGET: "the host: a budget across runs",
    Code.CANCELLED: "the operator",
    Code.WORKER_LOST: "the machine: the worker died",
}


def decided_by(code: Code | None) -> str:
    """Who ended a run with this failure; None: it completed."""
    if code is None:
        return "the script; its result was accepted by the contract"
    return _DECIDED_BY.get(code, "the host: what came from the worker was refused")
