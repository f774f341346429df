"""What a deployment decides: providers, limits, defaults of loops, script folders. Read from one `loopwarden.toml`.

    default_provider = "claude"
    state_folder = "~/runs"
    script_folders = ["~/loops"]
    allow_weak_confinement = false
    require_approved = true

    [providers.claude]
    type = "claude"
    pass_env = ["ANTHROPIC_API_KEY"]
    policy = { retry = { times = 2 }, fallback = "mine" }

    [providers.mine]
    type = "command"
    argv = ["my-agent", "--print"]

    [limits]
    max_total_agents = 50

    [loops.ralph]
    default_rounds = 10

    [store]
    url = "postgresql://loopwarden@db.example.com/loopwarden"

    [queues.nightly]
    drive = 4

    [scopes.nightly]
    max_agents = 200
    per = "day"
    queues = ["nightly"]

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
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from loopwarden.failures import InvalidRequest
from loopwarden.limits import Limits
from loopwarden.lock_file import LOCK_NAME
from loopwarden.ownership import why_untrusted
from loopwarden.provider_settings import AGENT_PROGRAMS, Argument, CommandSettings, OpenAISettings, ProviderSettings
from loopwarden.regular_file import open_regular_file
from loopwarden.run_folder import default_state_folder
from loopwarden.store_settings import (
    QueueName,
    QueueSettings,
    ScopeName,
    ScopeSettings,
    StoreSettings,
    WorkspaceName,
    WorkspaceSettings,
)
from loopwarden.table_problem import describe_problem
from loopwarden.toml_lines import line_of_key
from loopwarden_engine.plain import MAX_SAFE_INTEGER, canonical_bytes, digest

FILE_NAME: Final = "loopwarden.toml"
COMMAND_LINE_PROVIDER: Final = "command-line"
"""The name of the program that stands after `--`; no provider of the settings may have it."""

_MAX_BYTES: Final = 1024 * 1024
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_LIMIT_NAMES: Final = tuple(item.name for item in fields(Limits))


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    default_provider: str | None = None
    state_folder: Argument | None = None
    script_folders: list[Argument] = []
    allow_weak_confinement: bool = False
    require_approved: bool = False
    approve_shipped: bool = True
    require_bound: bool = False
    lock: Argument | None = None
    providers: dict[str, ProviderSettings] = {}
    limits: dict[str, Any] = {}
    loops: dict[str, dict[str, Any]] = {}
    store: StoreSettings = StoreSettings()
    scopes: dict[ScopeName, ScopeSettings] = {}
    queues: dict[QueueName, QueueSettings] = {}
    workspaces: dict[WorkspaceName, WorkspaceSettings] = {}


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
    require_approved: bool = False
    """Run only what the lock names."""
    approve_shipped: bool = True
    """The lock that came with Loopwarden counts too, for its own loops."""
    require_bound: bool = False
    """Run only what cannot start more agents than it may."""
    lock: Path | None = None
    """The lock of approved scripts, see `loopwarden.lock_file`. None without a file: see `default_lock`."""
    store: StoreSettings = field(default_factory=StoreSettings)
    """With the path of an SQLite store as an absolute one."""
    scopes: Mapping[str, ScopeSettings] = field(default_factory=dict)
    queues: Mapping[str, QueueSettings] = field(default_factory=dict)
    workspaces: Mapping[str, Path] = field(default_factory=dict)
    """Folders on this machine by the names that runs give."""

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
            "providers": {name: _plain(provider.to_json()) for name, provider in self.providers.items()},
            "limits": {to_camel(name): getattr(self.limits, name) for name in _LIMIT_NAMES},
            "loops": {name: _plain(loop) for name, loop in self.loops.items()},
            "scriptFolders": [str(folder) for folder in self.script_folders],
            "stateFolder": str(self.state_folder),
            "allowWeakConfinement": self.allow_weak_confinement,
            "requireApproved": self.require_approved,
            "approveShipped": self.approve_shipped,
            "requireBound": self.require_bound,
            "lock": None if self.lock is None else str(self.lock),
            "store": self.store.to_json(),
            "scopes": {name: scope.to_json() for name, scope in self.scopes.items()},
            "queues": {name: queue.to_json() for name, queue in self.queues.items()},
            "workspaces": {name: str(folder) for name, folder in self.workspaces.items()},
        }

    @property
    def digest(self) -> str:
        """SHA-256 of the resolved settings, without the places of file and lock and the values of variables."""
        shown = self.to_json()
        del shown["file"]
        del shown["lock"]
        return digest(canonical_bytes(shown))


def default_settings_path() -> Path:
    """`$XDG_CONFIG_HOME/loopwarden/loopwarden.toml`, else under `~/.config`. Raises `InvalidRequest`."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    try:
        folder = Path(base) if base.startswith("/") else Path.home() / ".config"
    except RuntimeError:
        raise InvalidRequest("this user has no home folder; set HOME, or XDG_STATE_HOME and XDG_CONFIG_HOME") from None
    return folder / "loopwarden" / FILE_NAME


def default_lock() -> Path:
    """The lock of who has no settings: where it would lie beside them. Raises `InvalidRequest`."""
    return default_settings_path().with_name(LOCK_NAME)


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
        with open_regular_file(path) as file:
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
    _check_names(file, path, text)
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
    lock = _folder(path, text, ("lock",), LOCK_NAME if file.lock is None else file.lock)
    if file.state_folder is None:
        state_folder = default_state_folder()
    else:
        state_folder = _folder(path, text, ("state_folder",), file.state_folder)
    return Settings(
        path=path,
        text=text,
        providers={name: _with_whole_paths(name, given, path, text) for name, given in file.providers.items()},
        default_provider=file.default_provider or (next(iter(file.providers)) if len(file.providers) == 1 else None),
        limits=limits,
        limits_given=frozenset(file.limits),
        loops=file.loops,
        script_folders=script_folders,
        state_folder=state_folder,
        allow_weak_confinement=file.allow_weak_confinement,
        require_approved=file.require_approved,
        approve_shipped=file.approve_shipped,
        require_bound=file.require_bound,
        lock=lock,
        store=_with_whole_path(file.store, path, text),
        scopes=file.scopes,
        queues=file.queues,
        workspaces={
            name: _folder(path, text, ("workspaces", name, "path"), given.path)
            for name, given in file.workspaces.items()
        },
    )


def _check_names(file: _File, path: Path, text: str) -> None:
    """Refuse names of providers that cannot be, and those that nobody has."""
    for name, given in file.providers.items():
        if _NAME.fullmatch(name) is None or name == COMMAND_LINE_PROVIDER:
            reason = "a provider cannot have this name; use letters, digits, - and _"
            raise _refusal(path, text, ("providers", name), reason)
        fallback = given.policy.fallback
        place = ("providers", name, "policy", "fallback")
        if fallback == name:
            raise _refusal(path, text, place, "a provider cannot be its own fallback; name another one")
        if fallback is not None and fallback not in file.providers:
            others = ", ".join(sorted(file.providers.keys() - {name})) or "none"
            reason = f"there is no [providers.{fallback[:100]}]; the other providers of the file are: {others}"
            raise _refusal(path, text, place, reason)
    default = file.default_provider
    if default is not None and default not in file.providers and default not in AGENT_PROGRAMS:
        known = ", ".join(sorted(file.providers)) or "none"
        reason = f"there is no provider {default!r}; the file has: {known}"
        raise _refusal(path, text, ("default_provider",), reason)
    for name, scope in file.scopes.items():
        for queue in scope.queues:
            if queue not in file.queues:  # a typo would leave runs without their budget
                known = ", ".join(sorted(file.queues)) or "none"
                reason = f"there is no [queues.{_key((queue,))}]; the queues of the file are: {known}"
                raise _refusal(path, text, ("scopes", name, "queues"), reason)


def _with_whole_paths(name: str, given: ProviderSettings, path: Path, text: str) -> ProviderSettings:
    """The provider with the files of its credentials as absolute paths."""
    if isinstance(given, CommandSettings | OpenAISettings) or not given.credential_files:
        return given
    place = ("providers", name, "credential_files")
    files = {
        inside: str(_folder(path, text, (*place, inside), file)) for inside, file in given.credential_files.items()
    }
    return given.model_copy(update={"credential_files": files})


def _with_whole_path(given: StoreSettings, path: Path, text: str) -> StoreSettings:
    """The store with the path of its database as an absolute one, when the settings name one."""
    if not given.url.startswith("sqlite:"):
        return given
    whole = _folder(path, text, ("store", "url"), given.url.removeprefix("sqlite:"))
    return given.model_copy(update={"url": f"sqlite:{whole}"})


def _folder(file: Path, text: str, key: Sequence[str | int], folder: str) -> Path:
    """A folder, or a file, as the settings mean it: `~` is the user's home, a relative one lies beside the file."""
    try:
        given = Path(folder).expanduser()
    except RuntimeError:
        user = folder.split("/", 1)[0]
        raise _refusal(file, text, key, f"{user} names no home folder; write the whole path") from None
    return Path(os.path.abspath(file)).parent / given


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
