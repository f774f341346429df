"""What a caller of Ralph may say (`Args`), and what a deployment may set for it (`RalphSettings`)."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic.alias_generators import to_camel

from loopwarden.failures import ArgsInvalid
from loopwarden.visible import is_visible, trim
from loopwarden_engine.plain import MAX_SAFE_INTEGER, PlainDataError, compact_json, copy_object

SHIPPED_DEFAULT_ROUNDS: Final = 10
SHIPPED_MAX_ROUNDS: Final = 256
MAX_OBJECTIVE_CHARS: Final = 200_000
MAX_OBJECTIVE_BYTES: Final = 350_000
"""Of the objective as JSON in UTF-8: a continued run with the largest handoff still stays within `maxArgsBytes`."""

_ELSEWHERE = "put long material into a file of the workspace and name that file in the objective"


class Args(BaseModel):
    """The arguments of one run; in JSON `objective` and `maxRounds`. Raises pydantic's ValidationError."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        strict=True,
        title="Ralph arguments",
    )

    objective: str = Field(description="What the agents are to reach; the same in every round.")
    max_rounds: int | None = Field(
        default=None,
        description="At most this many rounds, one fresh agent each. The deployment sets a default and a ceiling.",
    )

    @field_validator("objective")
    @classmethod
    def _objective(cls, objective: str) -> str:
        objective = trim(objective)
        if not is_visible(objective):
            raise ValueError("is empty; say what the agents are to reach")
        if len(objective) > MAX_OBJECTIVE_CHARS:
            raise ValueError(
                f"has {len(objective):,} characters, and {MAX_OBJECTIVE_CHARS:,} are allowed; {_ELSEWHERE}"
            )
        try:
            size_bytes = len(compact_json(objective).encode("utf-8"))
        except UnicodeEncodeError:
            raise ValueError("holds a lone surrogate, which is not Unicode text") from None
        if size_bytes > MAX_OBJECTIVE_BYTES:
            raise ValueError(
                f"takes {size_bytes:,} bytes as JSON, and {MAX_OBJECTIVE_BYTES:,} are allowed; {_ELSEWHERE}"
            )
        return objective

    @field_validator("max_rounds")
    @classmethod
    def _max_rounds(cls, max_rounds: int | None) -> int | None:
        if max_rounds is not None and max_rounds < 1:
            raise ValueError("must be at least 1")
        return max_rounds


_Count = Annotated[int, Field(ge=1)]


class RalphSettings(BaseModel):
    """What a deployment sets for Ralph, under `[loops.ralph]`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    max_rounds: _Count = SHIPPED_MAX_ROUNDS
    """The ceiling: a caller who asks for more is refused."""
    default_rounds: _Count = SHIPPED_DEFAULT_ROUNDS
    """The rounds of a caller who names none: 10, or the ceiling when that is lower."""
    max_handoff_chars: _Count = 16_384
    """The longest report, in code points of compact JSON."""
    max_result_chars: _Count = 16_384
    """The longest text for a parent, truncation mark included."""

    @model_validator(mode="before")
    @classmethod
    def _lower_the_shipped_default(cls, settings: Any) -> Any:
        if isinstance(settings, dict) and "default_rounds" not in settings:
            ceiling = settings.get("max_rounds")
            if type(ceiling) is int and 1 <= ceiling < SHIPPED_DEFAULT_ROUNDS:
                return {**settings, "default_rounds": ceiling}
        return settings

    @model_validator(mode="after")
    def _default_within_ceiling(self) -> "RalphSettings":
        if self.default_rounds > self.max_rounds:
            raise ValueError(f"default_rounds is {self.default_rounds}, above max_rounds, which is {self.max_rounds}")
        return self


def decode_args(args: object, settings: RalphSettings) -> Args:
    """Check the arguments of a request and fill in the default. `max_rounds` of the answer is never None.

    Takes `Args` or a dict in JSON form. Raises `ArgsInvalid` with a sentence that names each wrong argument.
    """
    if isinstance(args, Args):
        # A copy made with model_construct() or model_copy() was never checked.
        args = args.model_dump(by_alias=True, exclude_none=True)
    if type(args) is not dict:
        raise ArgsInvalid(f"the arguments of ralph must be an object with objective and maxRounds, not {_kind(args)}")
    _check_ceiling(args.get("maxRounds"), settings)
    try:
        members = copy_object(args, "args", max_chars=64 * 1024 * 1024)
    except PlainDataError as error:
        raise ArgsInvalid(f"{error}; ralph takes objective, a text, and maxRounds, a whole number") from None
    if "max_rounds" in members:
        raise ArgsInvalid("max_rounds is no argument of ralph in JSON; write maxRounds")
    if members.get("maxRounds", 1) is None:
        raise ArgsInvalid("maxRounds must be a whole number, not null; leave it out to get the default")
    try:
        checked = Args.model_validate(members)
    except ValidationError as error:
        raise ArgsInvalid("; ".join(_sentence(problem) for problem in error.errors()[:10])) from None
    rounds = settings.default_rounds if checked.max_rounds is None else checked.max_rounds
    return Args(objective=checked.objective, max_rounds=rounds)


def _check_ceiling(rounds: object, settings: RalphSettings) -> None:
    if type(rounds) is int and rounds > settings.max_rounds:
        shown = str(rounds) if rounds <= MAX_SAFE_INTEGER else "far too large"
        raise ArgsInvalid(
            f"maxRounds is {shown}, above the ceiling of {settings.max_rounds} rounds in this deployment; "
            f"ask for {settings.max_rounds} at most"
        )


def _sentence(problem: Mapping[str, Any]) -> str:
    name = ".".join(str(part) for part in problem["loc"])
    match problem["type"]:
        case "missing":
            return f"{name} is missing; say what the agents are to reach"
        case "extra_forbidden":
            return f"{ascii(name)[:100]} is no argument of ralph, which takes objective and maxRounds"
        case "string_type":
            return f"{name} must be a text, not {_kind(problem['input'])}"
        case "value_error":
            return f"{name} {problem['ctx']['error']}"
        case _:
            return f"{name} must be a whole number such as 10, not {_kind(problem['input'])}"


def _kind(value: object) -> str:
    if value is None:
        return "null"
    if type(value) is float:
        return f"the number {value}"
    names = {bool: "a boolean", int: "a whole number", str: "a text", list: "a list", dict: "an object"}
    return names.get(type(value), f"a {type(value).__name__}")
