"""`loopwarden.lock`: which scripts somebody approved, by content. Made to be read over in a diff.

    version = 1

    [[script]]
    name = "votes"
    source = "sha256:…"
    contract = "sha256:…"
    policy = "RestrictedPython 9.0, sha256:…"
    bound = "agents <= 3 * len(args.files)"
    approved_by = "ann"
    approved_at = 2026-11-30T17:05:00Z

Entries are sorted by name, then by source; keys have one order and a line each. So the same approvals are the same
text, and a change shows where it is. Nobody but this user and root may be able to write the file.
"""

import contextlib
import fcntl
import os
import secrets
import stat
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from loopwarden.code_digest import NO_CONTRACT
from loopwarden.display import shown_line
from loopwarden.failures import InvalidRequest
from loopwarden.loop_package import module_name
from loopwarden.ownership import why_untrusted
from loopwarden.replay_version import replay_version
from loopwarden.table_problem import describe_problem

LOCK_NAME: Final = "loopwarden.lock"
"""Of a lock whose place nobody chose."""
MAX_LOCK_BYTES: Final = 1024 * 1024
MAX_NAME_CHARS: Final = 200
MAX_BOUND_CHARS: Final = 1000

_HEAD: Final = (
    "# What may run here, by content. Written by `loopwarden approve`; a change of this file is an approval.\n"
    "# Each `loopwarden approve` writes all of it anew: in this order, and without comments of yours.\n"
    "version = 1\n"
)
_DIGEST: Final = r"sha256:[0-9a-f]{64}"


def _utc_seconds(moment: datetime) -> datetime:
    if moment.utcoffset() is None or moment.utcoffset() != UTC.utcoffset(None) or moment.microsecond:
        raise ValueError("this is a moment in UTC with whole seconds, such as 2026-11-30T17:05:00Z")
    return moment.astimezone(UTC)


_Line = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)]


class Approval(BaseModel):
    """One script that somebody approved."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    name: _Line
    source: Annotated[str, Field(pattern=f"^{_DIGEST}$")]
    """Digest of the source."""
    contract: Annotated[str, Field(pattern=f"^({_DIGEST}|{NO_CONTRACT})$")]
    """Digest of the code of its contract; "none" where it has none."""
    policy: _Line
    """The language policy under which it was vetted, see `policy_version`."""
    bound: Annotated[str, Field(min_length=1, max_length=MAX_BOUND_CHARS)]
    """How many agents it may start, as vetting found it."""
    approved_by: _Line
    approved_at: Annotated[datetime, AfterValidator(_utc_seconds)]

    def is_of(self, name: str) -> bool:
        """It was made for the script of that name. A loop `a-b` is also called as its folder is, `a_b`."""
        return module_name(self.name) == module_name(name)

    @property
    def when(self) -> str:
        """The day of the approval."""
        return self.approved_at.strftime("%Y-%m-%d")


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    version: Literal[1]
    script: list[Approval] = []


def policy_version() -> str:
    """The language policy of this installation, for people: what an approval was made under."""
    version = replay_version()
    return f"RestrictedPython {version.restricted_python}, {version.policy}"


def bound_line(bound: str) -> str:
    """A bound, as vetting found it, as a lock has it."""
    return shown_line(bound, MAX_BOUND_CHARS)


def now() -> datetime:
    """This moment, as a lock has it."""
    return datetime.now(UTC).replace(microsecond=0)


# ---- text


def encode_lock(approvals: Iterable[Approval]) -> str:
    """The one text that these approvals have."""
    parts = [_HEAD]
    for each in sorted(approvals, key=lambda approval: (approval.name, approval.source, approval.contract)):
        parts.append("\n[[script]]\n")
        parts += [f"{name} = {_toml(getattr(each, name))}\n" for name in Approval.model_fields]
    return "".join(parts)


def decode_lock(text: str) -> tuple[Approval, ...]:
    """The approvals of a lock, in their order. Raises ValueError with a clause that says what is wrong."""
    try:
        file = _File.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"it is not TOML: {error}") from None
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except ValidationError as error:
        place, reason = describe_problem(error, _File)
        shown = "".join(f"[{part + 1}]" if isinstance(part, int) else f".{part}" for part in place).removeprefix(".")
        raise ValueError(f"{shown}: {reason}") from None
    seen: set[tuple[str, str]] = set()
    for each in file.script:
        if (each.name, each.source) in seen:
            raise ValueError(f"two entries of the name {each.name!r} have the same source; remove one of them")
        seen.add((each.name, each.source))
    return tuple(file.script)


def _toml(value: object) -> str:
    """A value of an approval as TOML. What could mislead a reader of a diff is an escape, which means the same."""
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%SZ")
    assert isinstance(value, str)
    return '"' + shown_line(value.replace("\\", "\\\\").replace('"', '\\"')) + '"'


# ---- file


def lock_trouble(path: Path, reason: str) -> InvalidRequest:
    """A refusal that names the file. `reason` is a clause."""
    return InvalidRequest(f"the lock {path} cannot be used: {reason}", details={"lock": str(path)})


def read_lock(path: Path, *, is_ours: bool = False) -> str:
    """The text of a lock. Raises FileNotFoundError when there is none, and `InvalidRequest`.

    `is_ours`: it was installed with the code that runs here, and is trusted as far as that is.
    """
    try:
        untrusted = None if is_ours else why_untrusted(path)
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would be waited for
            raise lock_trouble(path, "it is not a file")
        with path.open("rb") as file:
            data = file.read(MAX_LOCK_BYTES + 1)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        reason = (getattr(error, "strerror", None) or "the path cannot be used").lower()
        raise lock_trouble(path, reason) from None
    if untrusted is not None:
        raise lock_trouble(path, untrusted)
    if len(data) > MAX_LOCK_BYTES:
        raise lock_trouble(path, f"it is larger than {MAX_LOCK_BYTES // 1024} KiB")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise lock_trouble(path, f"line {line} is not UTF-8 text") from None


def approvals_in(path: Path, *, is_ours: bool = False) -> tuple[Approval, ...]:
    """The approvals of a lock. Raises FileNotFoundError when there is none, and `InvalidRequest`."""
    try:
        return decode_lock(read_lock(path, is_ours=is_ours))
    except ValueError as error:
        raise lock_trouble(path, str(error)) from None


def write_lock(path: Path, approvals: Sequence[Approval]) -> None:
    """Replace a lock in one step; through a symbolic link, what it means. Raises `InvalidRequest`.

    Everybody may read it: there is no secret in it, and reviewers are often others than the user who runs hosts.
    """
    data = encode_lock(approvals).encode("utf-8")
    if len(data) > MAX_LOCK_BYTES:
        raise lock_trouble(path, f"it would be larger than {MAX_LOCK_BYTES // 1024} KiB; withdraw what is not used")
    unfinished: Path | None = None
    try:
        target = path.resolve()
        unfinished = target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}")
        fd = os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        with os.fdopen(fd, "wb") as file:
            os.fchmod(fd, 0o644)  # whatever the umask says: who may write it is what hosts look at
            file.write(data)
            file.flush()
            os.fsync(fd)
        unfinished.rename(target)
    except (OSError, RuntimeError) as error:
        if unfinished is not None:
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)
        raise lock_trouble(path, (getattr(error, "strerror", None) or "the path cannot be used").lower()) from None


@contextlib.contextmanager
def changing(path: Path, *, makes_folder: bool = False) -> Iterator[None]:
    """Read and write a lock inside: of two commands that do so at once, the second sees what the first wrote.

    Raises `InvalidRequest`, also when its folder is not there: a place that somebody named may be a slip of the pen.
    `makes_folder`: nobody named the place.
    """
    try:
        folder = path.resolve().parent
        if makes_folder:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        elif not folder.exists():
            raise lock_trouble(path, f"its folder {folder} does not exist; make it first, or name another place")
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (OSError, RuntimeError) as error:
        raise lock_trouble(path, (getattr(error, "strerror", None) or "the path cannot be used").lower()) from None
    try:
        with contextlib.suppress(OSError):  # some network disks know no locks
            fcntl.flock(fd, fcntl.LOCK_EX)
        untrusted = why_untrusted(folder)
        if untrusted is not None:
            raise lock_trouble(path, untrusted)
        yield
    finally:
        os.close(fd)
