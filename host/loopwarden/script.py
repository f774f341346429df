"""A script as the host holds it: source text that is never parsed here, with the contract that gives it meaning."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from loopwarden.code_digest import contract_code
from loopwarden.contract import Contract, PlainContract
from loopwarden.failures import ScriptRejected
from loopwarden.regular_file import open_regular_file
from loopwarden_engine.plain import JsonObject, JsonValue, digest
from loopwarden_engine.violation import Violation

ArgsT = TypeVar("ArgsT")
ResultT = TypeVar("ResultT")

_READ_CAP_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Script(Generic[ArgsT, ResultT]):
    """Vetted orchestration source and its contract."""

    name: str
    source: str
    contract: Contract[ArgsT, ResultT]

    def __post_init__(self) -> None:
        contract_code(self.contract)  # remembered: later its files may be others than those that were imported

    @property
    def digest(self) -> str:
        """SHA-256 of the source in UTF-8, as `sha256:…`."""
        return digest(self.source.encode("utf-8", "surrogatepass"))

    @staticmethod
    def from_text(source: str, *, name: str = "script") -> "Script[JsonObject, JsonValue]":
        """A script of one's own, without a contract."""
        return Script(name=name, source=source, contract=PlainContract())

    @staticmethod
    def from_file(path: str | Path) -> "Script[JsonObject, JsonValue]":
        """Read a script of one's own. Raises `ScriptRejected` when it cannot be read as UTF-8 text."""
        return Script(name=Path(path).stem, source=read_source(Path(path)), contract=PlainContract())


def read_source(path: Path) -> str:
    """Read the source of a script. Raises `ScriptRejected` with a sentence."""
    try:
        with open_regular_file(path) as file:
            data = file.read(_READ_CAP_BYTES + 1)
    except OSError as error:
        raise ScriptRejected(f"the script {path} cannot be read: {(error.strerror or 'input error').lower()}") from None
    if len(data) > _READ_CAP_BYTES:
        cap = f"{_READ_CAP_BYTES // 1024 // 1024} MiB"
        raise ScriptRejected(f"the script {path} is larger than {cap}: move data out of it, into its arguments")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ScriptRejected(
            f"the script {path} is not UTF-8 text: line {line} holds the byte 0x{data[error.start]:02x}", line=line
        ) from None


def rejection(name: str, violations: Sequence[Violation]) -> ScriptRejected:
    """The refusal of a script that breaks the language policy: the first violation in words, all of them as details."""
    first = violations[0]
    more = f" (and {len(violations) - 1} more)" if len(violations) > 1 else ""
    hint = f"; {first.hint}" if first.hint else ""
    return ScriptRejected(
        f"the script {name!r} is refused: line {first.line}: {first.message}{hint}{more}",
        line=first.line,
        details={"violations": [asdict(violation) for violation in violations]},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """A loop as a distribution ships it: the object behind an entry point of the group `loopwarden.scripts`."""

    name: str
    summary: str
    settings_model: type[BaseModel]
    """What a deployment may set for it, under `[loops.NAME]` in loopwarden.toml."""
    build: Callable[[Any], Script[Any, Any]]
    """Make the script from an instance of `settings_model`."""
    readme: str = field(default="")
