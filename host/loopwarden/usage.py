"""What agents used: tokens and money, as far as the provider measures it. Unknown stays unknown, it is never zero."""

from dataclasses import dataclass
from typing import Any, TypeVar

NumberT = TypeVar("NumberT", int, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What one attempt used, or a sum. None: not known."""

    input_tokens: int | None = None
    """All tokens that the model read, those from a cache included."""
    cached_input_tokens: int | None = None
    """The part of `input_tokens` that came from a cache."""
    output_tokens: int | None = None
    """All tokens that the model wrote, thinking included."""
    cost_usd: float | None = None
    """Money in US dollars, as the provider computes it."""

    def __add__(self, other: "Usage") -> "Usage":
        """The sum of what is known on either side."""
        return Usage(
            input_tokens=_sum(self.input_tokens, other.input_tokens),
            cached_input_tokens=_sum(self.cached_input_tokens, other.cached_input_tokens),
            output_tokens=_sum(self.output_tokens, other.output_tokens),
            cost_usd=_sum(self.cost_usd, other.cost_usd),
        )

    def to_json(self) -> dict[str, Any]:
        """The form of receipts: camelCase, unknown as null."""
        return {
            "inputTokens": self.input_tokens,
            "cachedInputTokens": self.cached_input_tokens,
            "outputTokens": self.output_tokens,
            "costUsd": None if self.cost_usd is None else round(self.cost_usd, 6),
        }


def _sum(one: NumberT | None, other: NumberT | None) -> NumberT | None:
    if one is None:
        return other
    return one if other is None else one + other
