"""What the settings say about the store: `[store]`, `[scopes.NAME]`, `[queues.NAME]` and `[workspaces.NAME]`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from pydantic import AfterValidator, AliasGenerator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic.alias_generators import to_camel

from loopwarden.store.names import check_name
from loopwarden.store.shared import Scope
from loopwarden.store.windows import Per, zone_of
from loopwarden_engine.plain import MAX_SAFE_INTEGER

JOURNAL_FILE: Final = "journal.sqlite3"
"""The database of `url = "sqlite"`, in the state folder."""

StoreKind: TypeAlias = Literal["sqlite", "postgres", "memory", "none"]

_SQLITE: Final = "sqlite:"
_POSTGRES: Final = ("postgresql://", "postgres://")
_SECRET_PARAMETERS: Final = ("password", "sslpassword")  # of libpq, section "Parameter Key Words"
_PLACE_OF_PASSWORDS: Final = (
    "a password does not belong here; put it into ~/.pgpass (or the file that passfile= names) or into a service file, "
    "and leave it out of the URL"
)


def _store_url(text: str) -> str:
    # What is refused is never shown: it may hold a password in a place where nobody looks for one.
    if "\0" in text:
        raise ValueError("a null character cannot be part of the URL of a store")
    if text in ("sqlite", "memory", "none"):
        return text
    if text.startswith(_SQLITE):
        if text.startswith(f"{_SQLITE}//"):
            raise ValueError(
                'write the path right after the colon, such as "sqlite:/var/lib/loopwarden/journal.sqlite3"'
            )
        if not text.removeprefix(_SQLITE).strip():
            raise ValueError('the path is missing; write "sqlite:PATH", or "sqlite" for the file of the state folder')
        return text
    if text.startswith(_POSTGRES):
        return _postgres_url(text)
    raise ValueError('there is no such store; write "sqlite", "sqlite:PATH", "postgresql://…", "memory" or "none"')


def _postgres_url(text: str) -> str:
    before_host = text.split("://", 1)[1].rpartition("@")[0]
    try:
        urlsplit(text)
        # libpq knows no fragments: parameters are whatever follows the first question mark.
        names = [name.lower() for name, _ in parse_qsl(text.partition("?")[2], keep_blank_values=True)]
    except ValueError:  # such as brackets that are not closed
        raise ValueError(
            "this is no URL of Postgres; write one such as postgresql://user@db.example.com/loopwarden"
        ) from None
    if ":" in before_host or any(name in _SECRET_PARAMETERS for name in names):
        raise ValueError(_PLACE_OF_PASSWORDS)
    return text


def _zone(text: str) -> str:
    zone_of(text)
    return text


def _name_of(what: str) -> AfterValidator:
    def check(text: str) -> str:
        check_name(text, what)
        return text

    return AfterValidator(check)


ScopeName = Annotated[str, _name_of("a budget")]
QueueName = Annotated[str, _name_of("a queue")]
WorkspaceName = Annotated[str, _name_of("a workspace")]
LoopName = Annotated[str, Field(min_length=1, max_length=200)]
_Whole = Annotated[int, Field(ge=0, le=MAX_SAFE_INTEGER)]
_Places = Annotated[int, Field(ge=1, le=1_000_000)]
_Seconds = Annotated[float, Field(gt=0, le=86400)]


class _Table(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        alias_generator=AliasGenerator(serialization_alias=to_camel),
    )

    def to_json(self) -> dict[str, Any]:
        """The table for a reader, without what is not set."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class StoreSettings(_Table):
    """`[store]`: where journals, queues, budgets and schedules rest, and how hosts hold their runs."""

    url: Annotated[str, AfterValidator(_store_url), Field(repr=False)] = "sqlite"
    """`sqlite` (in the state folder), `sqlite:PATH`, `postgresql://…`, `memory`, or `none` for no journal at all."""
    lease_seconds: _Seconds = 30.0
    """So long a host owns a run without saying that it lives."""
    kill_grace_seconds: Annotated[_Seconds, Field(validate_default=True)] = 5.0
    """So long agents may outlive the lease of their host; only then another host claims the run."""
    poll_seconds: Annotated[_Seconds, Field(validate_default=True)] = 2.0
    """How often a host with free places looks for runs."""
    lease_lost: Literal["kill", "hold"] = "kill"
    """What becomes of live agents when their host cannot renew its lease."""
    keep_prompts: bool = False
    """Keep prompts in journals; else their digests alone."""

    @field_validator("kill_grace_seconds", "poll_seconds")
    @classmethod
    def _is_below_the_lease(cls, value: float, info: ValidationInfo) -> float:
        lease = info.data.get("lease_seconds")
        if lease is not None and value >= lease:
            raise ValueError(
                f"{info.field_name} ({value:g}) must be lower than lease_seconds ({lease:g}); lower the one or raise "
                "the other"
            )
        return value

    @property
    def kind(self) -> StoreKind:
        """Which store it is."""
        match self.url:
            case "memory":
                return "memory"
            case "none":
                return "none"
            case _:
                return "postgres" if self.url.startswith(_POSTGRES) else "sqlite"

    def sqlite_path(self, state_folder: Path) -> Path:
        """The database of a store of kind `sqlite`."""
        path = self.url.removeprefix("sqlite").removeprefix(":")
        return Path(path) if path else state_folder / JOURNAL_FILE

    def to_json(self) -> dict[str, Any]:
        """The table for a reader; of a database's URL neither user nor parameters."""
        return {**super().to_json(), "url": shown_store_url(self.url)}


class ScopeSettings(_Table):
    """`[scopes.NAME]`: a budget that spans runs, and which runs it is attached to."""

    max_agents: _Whole | None = None
    """Agents that may start in one window, repeats included. Exact on any number of hosts."""
    max_tokens: _Whole | None = None
    """Tokens in one window, as providers report them. Looked at before each ask."""
    max_cost_usd: Annotated[float, Field(ge=0, le=1e12)] | None = None
    """Money in one window, as providers report it. Looked at before each ask."""
    per: Per = "forever"
    """The window: `forever`, `day`, `week` (from Monday) or `month`."""
    zone: Annotated[str, AfterValidator(_zone)] = "UTC"
    """The IANA time zone in which days, weeks and months begin at midnight."""
    on_budget: Literal["end", "wait"] = "end"
    """What becomes of a run whose next agent is refused."""
    queues: list[QueueName] = []
    """Runs of these queues are charged to it."""
    loops: list[LoopName] = []
    """Runs of these loops are charged to it."""

    def to_scope(self, name: str) -> Scope:
        """The scope as a store keeps it."""
        return Scope(
            name=name,
            max_agents=self.max_agents,
            max_tokens=self.max_tokens,
            max_cost_usd=self.max_cost_usd,
            per=self.per,
            zone=self.zone,
            on_budget=self.on_budget,
        )


class QueueSettings(_Table):
    """`[queues.NAME]`: a queue of runs."""

    max_running: _Places | None = None
    """Runs of this queue that may be live at once, over all hosts."""
    drive: _Places | None = None
    """Runs of this queue that this host drives at once; without it, none."""


class WorkspaceSettings(_Table):
    """`[workspaces.NAME]`: a workspace that this host declares, so that runs can name it."""

    path: Annotated[str, Field(min_length=1)]
    """The folder on this machine."""

    @field_validator("path")
    @classmethod
    def _can_be_a_path(cls, text: str) -> str:
        if "\0" in text:
            raise ValueError("a null character cannot be part of a path")
        return text


def scopes_of(scopes: Mapping[str, ScopeSettings], *, queue: str | None, loop: str) -> list[str]:
    """The names of the scopes that the settings attach to a run, in byte order."""
    return sorted(name for name, scope in scopes.items() if loop in scope.loops or queue in scope.queues)


def shown_store_url(url: str) -> str:
    """The URL of a store for readers: of a database's, neither user nor parameters."""
    if not url.startswith(_POSTGRES):
        return url
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment=""))
