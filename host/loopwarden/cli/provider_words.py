"""Providers in words: what they can do, what their policy grants, what they used, whether they are in use."""

from collections.abc import Iterable
from datetime import datetime
from typing import assert_never

from loopwarden.breaker import BreakerState
from loopwarden.display import dollars, duration, plural, shown_line
from loopwarden.policy import Policy
from loopwarden.provider import Capabilities
from loopwarden.provider_settings import (
    AcpSettings,
    AgentProgramSettings,
    CommandSettings,
    OpenAISettings,
    ProviderSettings,
    shown_url,
)
from loopwarden.providers.configured import program_of
from loopwarden.receipt import UsageRecord
from loopwarden.usage import Usage

_EVIDENCE_CHARS = 300


def what_is_asked(given: ProviderSettings) -> str:
    """What a provider starts or calls, on one line."""
    match given:
        case CommandSettings():
            words = " ".join(given.argv)
        case AcpSettings():
            words = " ".join(given.argv) + _model(given.model)
        case AgentProgramSettings():
            words = " ".join([program_of(given) or "", *given.arguments]) + _model(given.model)
        case OpenAISettings():
            words = f"model {given.model} at {shown_url(given.base_url)}"
        case _:
            assert_never(given)
    return shown_line(words)


def _model(name: str | None) -> str:
    return "" if name is None else f", model {name}"


def variables_of(given: ProviderSettings) -> tuple[str, ...]:
    """The names of the variables that a provider gets or reads, besides the usual ones."""
    if isinstance(given, CommandSettings | AgentProgramSettings | AcpSettings):
        return (*sorted(given.env), *given.pass_env)
    return () if given.api_key_env is None else (given.api_key_env,)


def capability_words(capabilities: Capabilities) -> str:
    """What a provider can do."""
    if not capabilities.structured_output:
        structured = "no structured output"
    elif capabilities.native_schema:
        structured = "structured output: held to the schema"
    else:
        structured = "structured output: asked for by the prompt"
    words = [
        structured,
        "a fresh context for each agent" if capabilities.fresh_context else "no fresh context",
        "shows progress" if capabilities.streams else "shows no progress",
        "tokens known" if capabilities.tokens_known else "tokens not known",
        "cost known" if capabilities.cost_known else "cost not known, so --max-cost is refused",
    ]
    return "; ".join(words)


def policy_words(policy: Policy) -> str:
    """What is done about failed attempts."""
    words = []
    if policy.wait is not None:
        words.append(f"waits for the end of a rate limit, at most {duration(policy.wait.max_seconds)}")
    if policy.retry is not None:
        retry = policy.retry
        words.append(
            f"asks again after {_listed(sorted(retry.classes))}, at most {plural(retry.times, 'time')}, "
            f"after {duration(retry.first_seconds)} and then later, at most {duration(retry.max_seconds)}"
        )
    if policy.fallback is not None:
        words.append(f"falls back to {policy.fallback}, once")
    if policy.breaker is not None:
        breaker = policy.breaker
        words.append(
            f"is out of use after {plural(breaker.failures, 'failure')} of one class in a row, for "
            f"{duration(breaker.reopen_seconds)}"
        )
    return "; ".join(words) or "none: a failed attempt is a failed agent"


def breaker_words(policy: Policy, state: BreakerState | None, now: float) -> str | None:
    """Whether a provider is in use; None when its policy has no breaker."""
    if policy.breaker is None:
        return None
    if state is None:
        return "closed"
    evidence = f" ({shown_line(state.evidence, _EVIDENCE_CHARS)})" if state.evidence else ""
    why = f"{state.failure_class.value}{evidence}, {plural(state.failures, 'failure')} in a row"
    if state.phase(now) == "half-open":
        return f"half-open: the next agent tries whether it works again; it was {why}"
    return f"open until {_moment(state.reopens_at)}: {why}"


def usage_words(usage: Usage | UsageRecord | None) -> str | None:
    """What was used, as far as it is known; None when nothing is."""
    if usage is None:
        return None
    words = []
    if usage.input_tokens is not None:
        cached = f" ({usage.cached_input_tokens:,} of them from a cache)" if usage.cached_input_tokens else ""
        words.append(f"{plural(usage.input_tokens, 'token')} read{cached}")
    if usage.output_tokens is not None:
        words.append(f"{plural(usage.output_tokens, 'token')} written")
    if usage.cost_usd is not None:
        words.append(dollars(usage.cost_usd))
    return ", ".join(words) or None


def _listed(names: Iterable[str]) -> str:
    *head, last = names
    return f"{', '.join(head)} or {last}" if head else last


def _moment(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):
        return "an impossible time"
