"""What a deployment decides: providers, limits, defaults of loops, script folders. Read from one `loopwarden.toml`.

    default_provider = "claude"
    state_folder = "~/runs"
    script_folders = ["~/loops"]
    allow_weak_confinement = false

    [providers.claude]
    type = "command"
    argv = ["claude", "-p", "--output-format", "text"]
    env = { CI = "1" }
    pass_env = ["ANTHROPIC_API_KEY"]

    [limits]
    max_total_agents = 50

    [loops.ralph]
    default_rounds = 10

Every refusal names the file, the key and the line. The file comes from `--config` or from the user's config folder,
never from a workspace, and nobody else may be able to write it.
"""

import math
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from loopwarden.failures import InvalidRequest
from loopwarden.limits import Limits
from loopwarden.ownership import why_untrusted
from loopwarden.run_folder import default_state_folder
from loopwarden.toml_lines import line_of_key
from loopwarden_engine.plain import MAX_SAFE_INTEGER, canonical_bytes, digest

FILE_NAME: Final = "loopwarden.toml"
COMMAND_LINE_PROVIDER: Final = "command-line"
"""The name of the program that stands after `--`; no provider of the settings may have it."""

_MAX_BYTES: Final = 1024 * 1024
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LIMIT_NAMES: Final = tuple(item.name for item in fields(Limits))


def _no_null(text: str) -> str:
    if "\0" in text:
        raise ValueError("a null character cannot be passed to a program")
    return text


def _variable(text: str) -> str:
    if _VARIABLE.fullmatch(text) is None:
        raise ValueError(f"{text!r} cannot name an environment variable")
    return text


Argument = Annotated[str, AfterValidator(_no_null)]
Variable = Annotated[str, AfterValidator(_variable)]


class ProviderSettings(BaseModel):
    """One `[providers.NAME]`: a program that takes a prompt on stdin and prints its answer."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    type: Literal["command"]
    argv: Annotated[list[Argument], Field(min_length=1)]
    env: dict[Variable, Argument] = {}
    """Variables with their values. Values are never shown, logged or put into a receipt."""
    pass_env: list[Variable] = []
    """Variables of the host that the program gets too."""


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    default_provider: str | None = None
    state_folder: Argument | None = None
    script_folders: list[Argument] = []
    allow_weak_confinement: bool = False
    providers: dict[str, ProviderSettings] = {}
    limits: dict[str, Any] = {}
    loops: dict[str, dict[str, Any]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings in force, resolved. `path` is None when there is no file: then these are the shipped defaults."""

    path: Path | None = None
    text: str = field(default="", repr=False)
    """The text of the file, for the lines in errors."""
    providers: Mapping[str, ProviderSettings] = field(default_factory=dict)
    default_provider: str | None = None
    limits: Limits = field(default_factory=Limits)
    limits_given: frozenset[str] = frozenset()
    """The limits that the file names."""
    loops: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """`[loops.NAME]` as written; `loopwarden.loops` checks each against the loop's own model."""
    script_folders: tuple[Path, ...] = ()
    state_folder: Path = field(default_factory=default_state_folder)
    allow_weak_confinement: bool = False

    def refusal(self, path: Sequence[str | int], reason: str) -> InvalidRequest:
        """A refusal that names file, key and line."""
        if self.path is None:
            return InvalidRequest(f"settings: {_key(path)}: {reason}")
        return _refusal(self.path, self.text, path, reason)

    def to_json(self) -> dict[str, Any]:
        """The settings for a reader. Of environment variables the names alone."""
        return {
            "file": None if self.path is None else str(self.path),
            "defaultProvider": self.default_provider,
            "providers": {
                name: {
                    "type": provider.type,
                    "argv": provider.argv,
                    "env": sorted(provider.env),
                    "passEnv": provider.pass_env,
                }
                for name, provider in self.providers.items()
            },
            "limits": {to_camel(name): getattr(self.limits, name) for name in _LIMIT_NAMES},
            "loops": {name: _plain(loop) for name, loop in self.loops.items()},
            "scriptFolders": [str(folder) for folder in self.script_folders],
            "stateFolder": str(self.state_folder),
            "allowWeakConfinement": self.allow_weak_confinement,
        }

    @property
    def digest(self) -> str:
        """SHA-256 of the resolved settings, without the place of the file and without the values of variables."""
        shown = self.to_json()
        del shown["file"]
        return digest(canonical_bytes(shown))


def default_settings_path() -> Path:
    """`$XDG_CONFIG_HOME/loopwarden/loopwarden.toml`, else under `~/.config`. Raises `InvalidRequest`."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    try:
        folder = Path(base) if base.startswith("/") else Path.home() / ".config"
    except RuntimeError:
        raise InvalidRequest("this user has no home folder; set HOME, or XDG_STATE_HOME and XDG_CONFIG_HOME") from None
    return folder / "loopwarden" / FILE_NAME


def load_settings(config: Path | None = None) -> Settings:
    """Read the settings: `config`, else the file of the user's config folder, else the shipped defaults.

    Raises `InvalidRequest` with file, key and line.
    """
    path = default_settings_path() if config is None else config
    if config is None and not os.path.lexists(path):
        return Settings()
    text = _read(path)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidRequest(f"{path} is not TOML: {error}") from None
    except RecursionError:
        raise InvalidRequest(f"{path} is not TOML that can be read: it is nested too deep") from None
    try:
        file = _File.model_validate(document)
    except ValidationError as error:
        place, reason = describe_problem(error, _File)
        raise _refusal(path, text, place, reason) from None
    return _resolve(file, path, text)


def _read(path: Path) -> str:
    try:
        untrusted = why_untrusted(path)
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        raise InvalidRequest(f"the settings file {path} does not exist") from None
    except (OSError, ValueError, RuntimeError) as error:
        reason = (getattr(error, "strerror", None) or "the path cannot be used").lower()
        raise InvalidRequest(f"the settings file {path} cannot be read: {reason}") from None
    if untrusted is not None:
        raise InvalidRequest(f"the settings file {path} cannot be trusted: {untrusted}")
    if len(data) > _MAX_BYTES:
        raise InvalidRequest(f"the settings file {path} is larger than {_MAX_BYTES // 1024} KiB")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidRequest(f"{path}, line {line}: the settings file is not UTF-8 text", line=line) from None


def _resolve(file: _File, path: Path, text: str) -> Settings:
    for name in file.providers:
        if _NAME.fullmatch(name) is None or name == COMMAND_LINE_PROVIDER:
            reason = "a provider cannot have this name; use letters, digits, - and _"
            raise _refusal(path, text, ("providers", name), reason)
    if file.default_provider is not None and file.default_provider not in file.providers:
        known = ", ".join(sorted(file.providers)) or "none"
        reason = f"there is no provider {file.default_provider!r}; the file has: {known}"
        raise _refusal(path, text, ("default_provider",), reason)
    for name in file.limits:
        if name not in _LIMIT_NAMES:
            reason = f"there is no such limit; there are: {', '.join(_LIMIT_NAMES)}"
            raise _refusal(path, text, ("limits", name), reason)
    try:
        limits = Limits(**file.limits)
    except ValueError as error:
        name = str(error).split(" ", 1)[0]
        raise _refusal(path, text, ("limits", name), str(error)) from None
    script_folders = tuple(
        _folder(path, text, ("script_folders", index), folder) for index, folder in enumerate(file.script_folders)
    )
    if file.state_folder is None:
        state_folder = default_state_folder()
    else:
        state_folder = _folder(path, text, ("state_folder",), file.state_folder)
    return Settings(
        path=path,
        text=text,
        providers=file.providers,
        default_provider=file.default_provider or (next(iter(file.providers)) if len(file.providers) == 1 else None),
        limits=limits,
        limits_given=frozenset(file.limits),
        loops=file.loops,
        script_folders=script_folders,
        state_folder=state_folder,
        allow_weak_confinement=file.allow_weak_confinement,
    )


def _folder(file: Path, text: str, key: Sequence[str | int], folder: str) -> Path:
    """A folder as the file means it: `~` is the user's home, a relative one lies beside the file."""
    try:
        given = Path(folder).expanduser()
    except RuntimeError:
        user = folder.split("/", 1)[0]
        raise _refusal(file, text, key, f"{user} names no home folder; write the whole path") from None
    return Path(os.path.abspath(file)).parent / given


def describe_problem(error: ValidationError, model: type[BaseModel]) -> tuple[tuple[str | int, ...], str]:
    """Place and reason of the first problem of a table that `model` checked."""
    first = error.errors(include_url=False, include_context=True)[0]
    place = tuple(part for part in first["loc"] if part != "[key]")
    match first["type"]:
        case "extra_forbidden":
            keys = ", ".join(_keys_of_table(model, place[:-1]))
            return place, "there is no such key" + (f"; there are: {keys}" if keys else "")
        case "missing":
            return place, "this key is missing"
        case "value_error":
            return place, str(first["msg"]).removeprefix("Value error, ")
        case _:
            message = str(first["msg"]).replace("valid dictionary", "table").replace("valid list", "list")
            return place, message[:1].lower() + message[1:]


def _keys_of_table(model: type[BaseModel], path: Sequence[str | int]) -> tuple[str, ...]:
    """The keys of the table at `path` in what `model` describes; none when that cannot be told."""
    kind: Any = model
    for part in path:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            kinds = [item.annotation for name, item in kind.model_fields.items() if part in (name, item.alias)]
            kind = kinds[0] if kinds else None
        else:  # a mapping or a list of tables
            kind = (get_args(kind) or (None,))[-1]
        kind = _table_kind(kind)
    if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return ()
    return tuple(item.alias or name for name, item in kind.model_fields.items())


def _table_kind(kind: Any) -> Any:
    """`kind` without `Annotated` and without the None beside it; None when several kinds are left."""
    if get_origin(kind) is Annotated:
        return _table_kind(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        kinds = [item for item in get_args(kind) if item is not type(None)]
        return _table_kind(kinds[0]) if len(kinds) == 1 else None
    return kind


def _refusal(file: Path, text: str, path: Sequence[str | int], reason: str) -> InvalidRequest:
    line = line_of_key(text, path)
    place = f"{file}, line {line}" if line is not None else str(file)
    return InvalidRequest(f"{place}: {_key(path)}: {reason}", line=line, details={"file": str(file), "key": _key(path)})


def _key(path: Sequence[str | int]) -> str:
    shown = ""
    for part in path:
        if isinstance(part, int):
            shown += f"[{part}]"
        else:
            shown += ("." if shown else "") + (part if _NAME.fullmatch(part) else repr(part))
    return shown


def _plain(value: object) -> object:
    """TOML has values that JSON does not (dates, inf, nan, huge integers), here in a loop's settings: they are text."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    match value:
        case str() | bool():
            return value
        case int() if abs(value) <= MAX_SAFE_INTEGER:
            return value
        case float() if math.isfinite(value):
            return value
        case _:
            return str(value)
