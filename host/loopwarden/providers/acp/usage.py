"""What an agent that speaks the Agent Client Protocol says about its usage.

An unstable part of the protocol: taken where it is there, never relied on.
"""

from typing import Final

from acp import schema

from loopwarden.usage import Usage

MAX_TOKENS: Final = 2**53 - 1


def tokens_of(reported: schema.Usage | None) -> Usage | None:
    """The tokens of a turn; None when they are not known.

    The protocol does not say whether tokens of a cache are part of the input, nor whether thinking is part of the
    output. The sum that the agent gives does.
    """
    if reported is None or max(reported.total_tokens, reported.input_tokens, reported.output_tokens) > MAX_TOKENS:
        return None
    cached = (reported.cached_read_tokens or 0) + (reported.cached_write_tokens or 0)
    thought = reported.thought_tokens or 0
    beside = reported.total_tokens - reported.input_tokens - reported.output_tokens
    has_both = beside == cached + thought
    return Usage(
        input_tokens=reported.input_tokens + (cached if has_both or beside == cached else 0),
        cached_input_tokens=reported.cached_read_tokens,
        output_tokens=reported.output_tokens + (thought if has_both or beside == thought != cached else 0),
    )
