"""The breakers of a host, watched: what runs report, and whether an agent starts that must not."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from loopwarden import BreakerRule, FailureClass
from loopwarden.breaker import BreakerBoard, BreakerState
from loopwarden.policy import NEVER_REPEATED
from support.broker_lab import VirtualClock


@dataclass
class _Rule:
    """What docs/policies.md says of one breaker, written down once more."""

    rule: BreakerRule
    closed: bool = True
    reopens_at: float = 0.0
    in_a_row: list[FailureClass] = field(default_factory=list)
    tried_by: object | None = None


class WatchedBoard(BreakerBoard):
    """Notes what the runs report, and whether an agent starts that must not."""

    def __init__(self, rules: Mapping[str, BreakerRule], clock: VirtualClock, fault: Callable[[str], None]) -> None:
        super().__init__(rules, None, clock.wall)
        self.clock = clock
        self.fault = fault
        self.rules = {name: _Rule(rule) for name, rule in rules.items()}
        self.started: Counter[str] = Counter()
        self.reported: list[tuple[str, str]] = []
        """Of every attempt that ended: its provider, and what the breaker was told."""

    def starts(self, provider: str, who: object) -> None:
        """An agent starts."""
        self.started[provider] += 1
        rule = self.rules.get(provider)
        if rule is not None and not rule.closed:
            if self.clock.time < rule.reopens_at:
                self.fault(f"an agent of {provider} started, which is out of use")
            if rule.tried_by is not None:
                self.fault(f"two agents tried {provider} out")
            rule.tried_by = who
        super().starts(provider, who)

    def succeeded(self, provider: str) -> None:
        """An answer."""
        self.reported.append((provider, "answered"))
        rule = self.rules.get(provider)
        if rule is not None:
            rule.closed, rule.in_a_row, rule.tried_by = True, [], None
        super().succeeded(provider)

    def failed(
        self,
        provider: str,
        who: object,
        failure_class: FailureClass,
        evidence: str | None,
        *,
        is_repeated: bool = False,
    ) -> BreakerState | None:
        """A failure."""
        if failure_class not in NEVER_REPEATED:
            self.reported.append((provider, failure_class.value))
        elif provider not in self.rules:  # where there is a breaker, it goes on to `undecided`
            self.reported.append((provider, "undecided"))
        state = super().failed(provider, who, failure_class, evidence, is_repeated=is_repeated)
        rule = self.rules.get(provider)
        if rule is None or failure_class in NEVER_REPEATED:
            return state
        if rule.closed and is_repeated and failure_class not in {FailureClass.AUTH, FailureClass.BILLING}:
            opens = False
        elif rule.closed:
            rule.in_a_row.append(failure_class)
            last = rule.in_a_row[-rule.rule.failures :]
            same = len(last) == rule.rule.failures and len(set(last)) == 1
            opens = same or failure_class in {FailureClass.AUTH, FailureClass.BILLING}
        else:
            opens = rule.tried_by is who
        if opens:
            rule.closed, rule.tried_by = False, None
            rule.reopens_at = self.clock.time + rule.rule.reopen_seconds
        if (state is not None) != (not rule.closed and self.clock.time < rule.reopens_at):
            self.fault(f"after {failure_class.value} of {provider} the board says {state}")
        return state

    def undecided(self, provider: str, who: object) -> None:
        """Nothing is known."""
        self.reported.append((provider, "undecided"))
        rule = self.rules.get(provider)
        if rule is not None and rule.tried_by is who:
            rule.tried_by = None
        super().undecided(provider, who)

    @property
    def nobody_waits(self) -> bool:
        """True when nobody tries a provider out and nobody waits for that."""
        return all(breaker.prober is None and not breaker.waiting for breaker in self._breakers.values())

    def is_asked_by(self, when_decided: Callable[[str], None]) -> bool:
        """True while somebody waits for what is found out."""
        return any(when_decided in breaker.waiting for breaker in self._breakers.values())

    def prober(self, provider: str) -> object | None:
        """Who tries a provider out."""
        return self._breakers[provider].prober
