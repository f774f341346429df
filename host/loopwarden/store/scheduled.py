"""What a schedule submits, in its strict JSON form: `Schedule.request`."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from loopwarden.journal.entries import CheckSpec


class ScheduledRun(BaseModel):
    """The arguments of `Host.submit` that a schedule gives, but for `key`, which names schedule and time."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, strict=True, allow_inf_nan=False
    )

    script: Annotated[str, Field(min_length=1)]
    """The name under which hosts know its contract."""
    args: dict[str, Any] = {}
    queue: Annotated[str, Field(min_length=1)]
    priority: int = 0
    labels: dict[str, str] = {}
    scopes: list[str] = []
    """Those that whoever made the schedule named; the settings attach more."""
    provider: str | None = None
    """None: the default provider of the host that submits."""
    workspace: str | None = None
    """A path on this machine, or the name of a workspace that several hosts declare."""
    share_workspace: bool = False
    isolation: Literal["worktree"] | None = None
    checks: list[CheckSpec] = []
    limits: dict[str, int | float] = {}
    """Limits that the request lowers, by their Python names."""
    by: str = ""
    """Who made the schedule."""

    def to_json(self) -> dict[str, Any]:
        """As a store keeps it, without what is not set."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)

    @classmethod
    def from_json(cls, request: Mapping[str, Any]) -> "ScheduledRun":
        """Take what a store gave. Raises ValueError with a sentence."""
        try:
            return cls.model_validate(dict(request), by_name=False)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(part) for part in first["loc"]) or "it"
            raise ValueError(f"what a schedule submits cannot be read: {place}: {first['msg']}") from None
