"""What `[providers.NAME]` may say: one model for each kind of provider, told apart by `type`.

    command                               any program that takes a prompt and prints its answer
    claude  codex  opencode  qwen  gemini  an agent program that Loopwarden speaks the language of
    acp                                   any agent that speaks the Agent Client Protocol over its standard streams
    openai                                one answer from a chat-completions endpoint, without tools

The values of variables and headers are kept out of every dump of these models, so nothing can print them by accident.
"""

import re
from pathlib import PurePosixPath
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args
from urllib.parse import urlsplit, urlunsplit

from pydantic import AfterValidator, AliasGenerator, BaseModel, ConfigDict, Field, PlainSerializer
from pydantic.alias_generators import to_camel

from loopwarden.failure_class import FailureClass
from loopwarden.policy import NEVER_REPEATED, BreakerRule, Policy, Retry, Wait

AgentProgramName: TypeAlias = Literal["claude", "codex", "opencode", "qwen", "gemini"]
AGENT_PROGRAMS: Final[tuple[AgentProgramName, ...]] = get_args(AgentProgramName)
"""The agent programs that have a dialect, in the order in which people are told of them."""

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # a token of RFC 9110, section 5.6.2
_HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


def _no_null(text: str) -> str:
    if "\0" in text:
        raise ValueError("a null character cannot be passed to a program")
    return text


def _variable(text: str) -> str:
    if _VARIABLE.fullmatch(text) is None:
        raise ValueError(f"{text!r} cannot name an environment variable")
    return text


def _visible(text: str) -> str:
    if not text.strip():
        raise ValueError("this cannot be empty")
    return text


def _below_home(text: str) -> str:
    path = PurePosixPath(text)
    if path.is_absolute() or not path.parts or ".." in path.parts:
        raise ValueError(f"{text!r} is no path below the agent's home; write one such as .config/agent/auth.json")
    return text


def _http_url(text: str) -> str:
    try:
        url = urlsplit(text)
        host = url.hostname
    except ValueError:  # such as brackets that are not closed
        url, host = urlsplit(""), None
    if not host or url.scheme not in ("http", "https") or url.fragment:
        raise ValueError("this is no URL of HTTP; write one such as https://api.example.com/v1")
    if "@" in url.netloc:
        raise ValueError("a URL is shown to readers, so it can hold no name and no password")
    return text


def shown_url(url: str) -> str:
    """A URL for readers: without its query, which may hold a key."""
    return urlunsplit(urlsplit(url)._replace(query=""))


def _header_name(text: str) -> str:
    if _HEADER.fullmatch(text) is None:
        raise ValueError(f"{text!r} cannot name a header of HTTP")
    return text


def _header_value(text: str) -> str:
    if _HEADER_VALUE.fullmatch(text) is None:
        raise ValueError("this cannot be the value of a header of HTTP")
    return text


def _names(values: dict[str, str]) -> list[str]:
    return sorted(values)


def _repeatable(failure_class: FailureClass) -> FailureClass:
    if failure_class in NEVER_REPEATED:
        raise ValueError(f"{failure_class} is never asked again: somebody wanted the end")
    return failure_class


Argument = Annotated[str, AfterValidator(_no_null)]
Word = Annotated[str, AfterValidator(_no_null), AfterValidator(_visible)]
Variable = Annotated[str, AfterValidator(_variable)]
NAMES_ONLY: Final = PlainSerializer(_names, return_type=list[str])
Variables = Annotated[dict[Variable, Argument], NAMES_ONLY, Field(repr=False)]
HttpUrl = Annotated[str, AfterValidator(_http_url), PlainSerializer(shown_url, return_type=str)]
Headers = Annotated[
    dict[Annotated[str, AfterValidator(_header_name)], Annotated[str, AfterValidator(_header_value)]],
    NAMES_ONLY,
    Field(repr=False),
]
CredentialFiles = dict[Annotated[str, AfterValidator(_no_null), AfterValidator(_below_home)], Word]
# TOML has texts, and a strict enumeration takes its members alone.
Class = Annotated[FailureClass, Field(strict=False), AfterValidator(_repeatable)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Concurrency = Annotated[int, Field(ge=1, le=1_000_000)]
Seconds = Annotated[float, Field(gt=0, le=31 * 86400)]
Usd = Annotated[float, Field(gt=0, le=1e9)]


class _Table(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        alias_generator=AliasGenerator(serialization_alias=to_camel),
    )

    def to_json(self) -> dict[str, Any]:
        """The table for a reader, without what is not set. Of variables and headers the names alone."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


# ---- the policy


class RetrySettings(_Table):
    """`retry`: ask the same provider again after a failure of certain classes."""

    classes: Annotated[list[Class], Field(min_length=1)] = [FailureClass.OVERLOADED, FailureClass.UNAVAILABLE]
    """The classes of failure after which the provider is asked again."""
    times: Count = 3
    """How often at most, for one call."""
    first_seconds: Seconds = 5.0
    """How long to wait before the first repeat."""
    factor: Annotated[float, Field(ge=1, le=100)] = 2.0
    """By how much each wait is longer than the one before."""
    max_seconds: Seconds = 300.0
    """The longest wait."""
    max_server_delay_seconds: Seconds = 600.0
    """A longer delay that a server asks for is not waited for: the attempt then counts as failed."""


class WaitSettings(_Table):
    """`wait`: after a rate limit with a known end, wait for that end within the same call."""

    max_seconds: Seconds = 21600.0
    """The longest wait. A later end is not waited for."""


class BreakerSettings(_Table):
    """`breaker`: stop asking a provider that cannot work."""

    failures: Count = 5
    """Failures of one class in a row that open it. Class `auth` or `billing` opens it at once."""
    reopen_seconds: Seconds = 900.0
    """After that time one agent may try again."""


class PolicySettings(_Table):
    """`[providers.NAME.policy]`: what is done about failed attempts. What is left out is not done."""

    retry: RetrySettings | None = None
    """Ask again after some classes of failure."""
    wait: WaitSettings | None = None
    """Wait for the end of a rate limit."""
    fallback: str | None = None
    """Another provider of this file, asked once for the same call when this one failed."""
    breaker: BreakerSettings | None = None
    """Stop asking after failures that will not pass."""

    def to_policy(self) -> Policy:
        """The policy as the broker follows it."""
        retry, wait, breaker = self.retry, self.wait, self.breaker
        return Policy(
            retry=None
            if retry is None
            else Retry(
                classes=frozenset(retry.classes),
                times=retry.times,
                first_seconds=retry.first_seconds,
                factor=retry.factor,
                max_seconds=retry.max_seconds,
                max_server_delay_seconds=retry.max_server_delay_seconds,
            ),
            wait=None if wait is None else Wait(max_seconds=wait.max_seconds),
            fallback=self.fallback,
            breaker=None
            if breaker is None
            else BreakerRule(failures=breaker.failures, reopen_seconds=breaker.reopen_seconds),
        )


# ---- the providers


class CommandSettings(_Table):
    """`type = "command"`: a program that takes a prompt on stdin and prints its answer."""

    type: Literal["command"]
    argv: Annotated[list[Argument], Field(min_length=1)]
    env: Variables = {}
    """Variables with their values. Values are never shown, logged or put into a receipt."""
    pass_env: list[Variable] = []
    """Variables of the host that the program gets too."""
    max_concurrent: Concurrency | None = None
    """Agents of this provider that may be live at once, over all runs of this host; None: no bound of its own."""
    policy: PolicySettings = PolicySettings()


class AgentProgramSettings(_Table):
    """`type = "claude"` and its like: an agent program with a dialect."""

    type: AgentProgramName
    program: Word | None = None
    """Name or path; None: the usual name of the program."""
    model: Word | None = None
    """None: the program's own default."""
    arguments: list[Argument] = []
    env: Variables = {}
    pass_env: list[Variable] = []
    credential_files: CredentialFiles = {}
    """Path below the agent's home -> path on this machine."""
    project_files: bool = False
    max_turns: Count | None = None
    max_cost_usd: Usd | None = None
    max_concurrent: Concurrency | None = None
    policy: PolicySettings = PolicySettings()


class AcpSettings(_Table):
    """`type = "acp"`: an agent that speaks the Agent Client Protocol."""

    type: Literal["acp"]
    argv: Annotated[list[Argument], Field(min_length=1)]
    permissions: Literal["allow", "deny"]
    """How every request for permission is answered. Nobody sits there to be asked, so this has to be said."""
    model: Word | None = None
    """A number or name that the agent offers; None: its own default."""
    login: Word | None = None
    """The method of logging in; None: one whose variables are set."""
    env: Variables = {}
    pass_env: list[Variable] = []
    credential_files: CredentialFiles = {}
    max_concurrent: Concurrency | None = None
    policy: PolicySettings = PolicySettings()


class OpenAISettings(_Table):
    """`type = "openai"`: a chat-completions endpoint."""

    type: Literal["openai"]
    base_url: Annotated[HttpUrl, Field(repr=False)]
    model: Word
    api_key_env: Variable | None = None
    """The variable of the host that holds the key; None: the endpoint wants none. A key itself cannot stand here."""
    structured_output: Literal["json_schema", "tool", "text"] = "json_schema"
    max_output_tokens: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    output_limit_name: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """Under which name the endpoint takes `max_output_tokens`."""
    asks_usage: bool = True
    """False for endpoints that refuse to be asked for the number of tokens; neither tokens nor cost are known then."""
    headers: Headers = {}
    input_price_usd: Annotated[float, Field(ge=0, le=1e6)] | None = None
    """For a million tokens."""
    output_price_usd: Annotated[float, Field(ge=0, le=1e6)] | None = None
    proxy_url: Annotated[HttpUrl | None, Field(repr=False)] = None
    connect_timeout_seconds: Annotated[float, Field(gt=0, le=600)] = 15.0
    max_concurrent: Concurrency | None = None
    policy: PolicySettings = PolicySettings()


ProviderSettings = Annotated[
    CommandSettings | AgentProgramSettings | AcpSettings | OpenAISettings, Field(discriminator="type")
]
"""One `[providers.NAME]`."""


def preset(name: str) -> AgentProgramSettings | None:
    """The provider that a name stands for without any settings; None when it stands for none."""
    return AgentProgramSettings.model_validate({"type": name}) if name in AGENT_PROGRAMS else None
