"""Breakers: a provider that fails for everybody is taken out of use, so that no run burns its budget on it.

    closed      agents start
    open        none starts until `reopen_seconds` are over
    half-open   one agent may try: its success closes the breaker, its failure opens it again

What a host learns is kept in `STATE/breakers.json`, for the hosts that come after it and for `loopwarden providers`.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from loopwarden.display import cut, duration, plural
from loopwarden.failure_class import FailureClass
from loopwarden.policy import BreakerRule
from loopwarden.regular_file import open_regular_file
from loopwarden.run_folder import RunFolderError, disk_error, make_private_folder, write_private_file
from loopwarden_engine.json_decoding import decode_object
from loopwarden_engine.plain import PlainDataError, compact_json

FILE_NAME: Final = "breakers.json"
OPENS_AT_ONCE: Final = frozenset({FailureClass.AUTH, FailureClass.BILLING})
"""Nothing but a person can mend these; every further agent would only fail the same way."""
_NOT_COUNTED: Final = frozenset({FailureClass.CANCELLED, FailureClass.INTERRUPTED})
_MAX_BYTES: Final = 1024 * 1024
_LOCK_SECONDS: Final = 0.5
_LOCK_PAUSE_SECONDS: Final = 0.005

Phase: TypeAlias = Literal["closed", "open", "half-open"]


class BreakerState(BaseModel):
    """Why a provider is out of use, and until when. Unix times in seconds."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, allow_inf_nan=False
    )

    failure_class: FailureClass
    failures: int
    """Failures of that class in a row."""
    evidence: str | None
    opened_at: float
    reopens_at: float

    def phase(self, now: float) -> Phase:
        """`open` or `half-open` at the time `now`."""
        return "open" if now < self.reopens_at else "half-open"

    def sentence(self, provider: str, now: float) -> str:
        """Why the provider is out of use, and what to do."""
        failures = plural(self.failures, "failure")
        many = "" if self.failure_class in OPENS_AT_ONCE else f" after {failures} of this class in a row"
        said = f" ({cut(self.evidence, 300)})" if self.evidence else ""
        return (
            f"the provider {provider!r} is out of use{many}: {self.failure_class.value}{said}; it is tried again in "
            f"{duration(max(1.0, self.reopens_at - now))}, or at once by `loopwarden providers --probe {provider}`"
        )


@dataclass(slots=True, eq=False)
class _Breaker:
    rule: BreakerRule
    state: BreakerState | None = None
    """None: closed."""
    last_class: FailureClass | None = None
    in_a_row: int = 0
    prober: object | None = None
    """Who tries the provider out; None while nobody does."""
    waiting: list[Callable[[str], None]] = field(default_factory=list)


class BreakerBoard:
    """The breakers of one host. Without a rule a provider has none. Belongs to the host's event loop.

    `who` is whatever stands for the agent that is asked. An agent that began before the breaker opened may end after
    it: its answer closes the breaker, as any answer does; its failure changes nothing, since only the agent that tries
    the provider out decides when it is tried again.
    """

    def __init__(self, rules: Mapping[str, BreakerRule], state_folder: Path | None, now: Callable[[], float]) -> None:
        self._state_folder = state_folder
        self._now = now
        states = {} if state_folder is None or not rules else read_breakers(state_folder)
        self._breakers = {name: _Breaker(rule, states.get(name)) for name, rule in rules.items()}
        self.problem: str | None = None
        """Why the state could not be kept on disk; it holds in memory all the same."""

    def out_of_use(self, provider: str) -> BreakerState | None:
        """Why no agent of `provider` may start now; None when one may, or one may try."""
        breaker = self._breakers.get(provider)
        if breaker is None or breaker.state is None or breaker.state.phase(self._now()) == "half-open":
            return None
        if self._was_mended(provider):
            self.succeeded(provider)
            return None
        return breaker.state

    def _was_mended(self, provider: str) -> bool:
        """True when another process, such as `providers --probe`, found that the provider works."""
        is_kept = self._state_folder is not None and self.problem is None
        return is_kept and provider not in read_breakers(self._state_folder or Path())

    def is_tried_out(self, provider: str, when_decided: Callable[[str], None]) -> bool:
        """True while one agent tries a provider out: no other may start.

        `when_decided` is then called once, with the provider, when it is known what came of it.
        """
        breaker = self._breakers.get(provider)
        if breaker is None or breaker.prober is None:
            return False
        breaker.waiting.append(when_decided)
        return True

    def withdraw(self, when_decided: Callable[[str], None]) -> None:
        """Do not call `when_decided` any more: its run is over."""
        for breaker in self._breakers.values():
            while when_decided in breaker.waiting:
                breaker.waiting.remove(when_decided)

    def starts(self, provider: str, who: object) -> None:
        """An agent starts, of a provider that is neither out of use nor tried out. Unless closed, `who` tries it."""
        breaker = self._breakers.get(provider)
        if breaker is not None and breaker.state is not None:
            breaker.prober = who

    def succeeded(self, provider: str) -> None:
        """An attempt brought an answer."""
        breaker = self._breakers.get(provider)
        if breaker is None:
            return
        breaker.last_class, breaker.in_a_row = None, 0
        if breaker.state is not None:
            breaker.state = None
            self._keep(provider, None)
        self._decided(provider, breaker)

    def failed(
        self,
        provider: str,
        who: object,
        failure_class: FailureClass,
        evidence: str | None,
        *,
        is_repeated: bool = False,
    ) -> BreakerState | None:
        """An attempt failed. Returns the state when the provider is out of use.

        `is_repeated`: the policy makes it again. That alone does not count towards a row, or a few repeats of one call
        would take the provider from all others; it is the failure that stands in the end that counts.
        """
        breaker = self._breakers.get(provider)
        if breaker is None:
            return None
        if failure_class in _NOT_COUNTED:
            self.undecided(provider, who)
            return None
        if breaker.state is not None and breaker.prober is not who:
            return self.out_of_use(provider)
        if is_repeated and breaker.state is None and failure_class not in OPENS_AT_ONCE:
            return None
        breaker.in_a_row = breaker.in_a_row + 1 if failure_class is breaker.last_class else 1
        breaker.last_class = failure_class
        was_open = breaker.state is not None
        if not was_open and failure_class not in OPENS_AT_ONCE and breaker.in_a_row < breaker.rule.failures:
            return None
        now = self._now()
        breaker.state = BreakerState(
            failure_class=failure_class,
            failures=breaker.in_a_row,
            evidence=evidence,
            opened_at=now,
            reopens_at=now + breaker.rule.reopen_seconds,
        )
        self._keep(provider, breaker.state)
        self._decided(provider, breaker)
        return breaker.state

    def undecided(self, provider: str, who: object) -> None:
        """An attempt ended in a way that says nothing about its provider: if it tried it out, the next one may."""
        breaker = self._breakers.get(provider)
        if breaker is not None and breaker.prober is who:
            self._decided(provider, breaker)

    def _decided(self, provider: str, breaker: _Breaker) -> None:
        breaker.prober = None
        waiting, breaker.waiting = breaker.waiting, []
        for call in waiting:
            call(provider)

    def _keep(self, provider: str, state: BreakerState | None) -> None:
        if self._state_folder is None:
            return
        try:
            write_breaker(self._state_folder, provider, state)
        except RunFolderError as error:
            self.problem = str(error)


def read_breakers(state_folder: Path) -> dict[str, BreakerState]:
    """The providers that are out of use. A file that cannot be read is as good as none: it only saves asks."""
    try:
        with open_regular_file(state_folder / FILE_NAME) as file:
            found = decode_object(file.read(_MAX_BYTES) or b"")
        return {name: BreakerState.model_validate(state) for name, state in found.items()}
    except (OSError, PlainDataError, ValidationError):
        return {}


def write_breaker(state_folder: Path, provider: str, state: BreakerState | None) -> None:
    """Keep the state of one provider, and leave the others as they are. Raises `RunFolderError`."""
    make_private_folder(state_folder)
    with _locked(state_folder):
        states = read_breakers(state_folder)
        states.pop(provider, None)
        if state is not None:
            states[provider] = state
        text = compact_json({name: kept.model_dump(by_alias=True, mode="json") for name, kept in states.items()})
        write_private_file(state_folder / FILE_NAME, f"{text}\n".encode("utf-8", "replace"))


@contextlib.contextmanager
def _locked(state_folder: Path) -> Iterator[None]:
    path = state_folder / f"{FILE_NAME}.lock"
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise disk_error("the lock of the breakers", path, error) from None
    try:
        _lock(descriptor, path)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> None:
    """Other hosts hold it for milliseconds. Whoever holds it for longer must not hold up this one."""
    give_up_at = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() >= give_up_at:
                raise disk_error("the lock of the breakers", path, error) from None
            time.sleep(_LOCK_PAUSE_SECONDS)
        except OSError as error:
            raise disk_error("the lock of the breakers", path, error) from None
        else:
            return
