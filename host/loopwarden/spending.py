"""What a run has used, and its cap on money. Exact as far as providers measure; unknown stays unknown."""

from dataclasses import dataclass

from loopwarden.provider import Provider
from loopwarden.usage import Usage


@dataclass(slots=True, kw_only=True)
class Spending:
    """The sum over all attempts of one run."""

    cap_usd: float | None
    usage: Usage | None = None
    """None while nothing is known."""
    unknown_attempts: int = 0
    """Attempts that ended without saying what they cost."""

    def add(self, usage: Usage | None) -> None:
        """Add what one attempt used."""
        if usage is None or usage.cost_usd is None:
            self.unknown_attempts += 1
        if usage is not None:
            self.usage = usage if self.usage is None else self.usage + usage

    @property
    def cost_usd(self) -> float:
        """What is known to be spent."""
        return 0.0 if self.usage is None or self.usage.cost_usd is None else self.usage.cost_usd

    @property
    def left_usd(self) -> float | None:
        """What may still be spent; None without a cap."""
        return None if self.cap_usd is None else max(0.0, self.cap_usd - self.cost_usd)

    @property
    def used_up(self) -> str | None:
        """Why no agent may be asked any more, as a sentence; None while one may."""
        if self.cap_usd is None or self.cost_usd < self.cap_usd:
            return None
        return (
            f"the agents of this run have cost ${self.cost_usd:.2f}; maxCostUsd of this run is ${self.cap_usd:.2f}, "
            "so no further agent is asked"
        )

    def cannot_measure(self, name: str, provider: Provider) -> str | None:
        """Why the cap could not be kept with this provider, as a sentence; None when it can, or when there is none."""
        if self.cap_usd is None or provider.capabilities.cost_known:
            return None
        return (
            f"the provider {name!r} does not say what its agents cost, so maxCostUsd cannot be kept; "
            "leave the cap out, or choose another provider"
        )
