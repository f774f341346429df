"""An agent for tests: it gives the replies that the test wrote down, and remembers what it was asked."""

from collections.abc import Mapping
from typing import Any, Final

from loopwarden.failures import LoopwardenError
from loopwarden.provider import FUNCTION_CAPABILITIES, AgentFailed, AgentReply, AgentRequest, Capabilities
from loopwarden.testing.replies import NoReplyError, Replies, Reply, no_reply, source_of

_SHOWN_PROMPT_CHARS: Final = 80


class RepliesDiffer(LoopwardenError, AssertionError):
    """The script asked something else than the test has replies for. The message names each difference."""


class FakeAgent:
    """A provider with scripted replies. One fake agent serves one run.

    - A list: call n of the run gets reply n, whatever runs in parallel. Each reply has to be asked for.
    - A table: the longest key that stands in the prompt decides; the key "" stands in every prompt. A key may hold a
      list: its prompts get one reply after the other as they come, and each reply has to be asked for.
    - A function, plain or async: gets the `AgentRequest` and returns the reply.

    A reply is a text, a dict for a call with a schema, an `AgentReply`, None when the agent fails, or an exception to
    raise: `AgentFailed` fails the one agent, as None does, any other ends the run. A call for which nothing is written
    down ends its run (AGENT_RESULT). Raises TypeError for other replies: at once, when they are no function's.
    """

    def __init__(self, replies: Replies = (), *, capabilities: Capabilities = FUNCTION_CAPABILITIES) -> None:
        """`capabilities`: what it claims; by default structured output and a fresh context."""
        self._source = source_of(replies)
        self._capabilities = capabilities
        self._unanswered: list[str] = []
        self.requests: list[AgentRequest] = []
        """What it was asked, in order."""
        self.error: Exception | None = None
        """The first exception that was no `AgentFailed`: what a function raised, or what the test wrote down."""

    @property
    def capabilities(self) -> Capabilities:
        """What it claims to be able to do."""
        return self._capabilities

    async def reply(self, request: AgentRequest) -> AgentReply:
        """Answer one call. Raises what the test wrote down, and `RepliesDiffer` when it wrote nothing down for it."""
        self.requests.append(request)
        try:
            return _as_reply(await self._source.answer(request))
        except NoReplyError as error:
            prompt = request.prompt
            shown = prompt if len(prompt) <= _SHOWN_PROMPT_CHARS else prompt[:_SHOWN_PROMPT_CHARS] + "…"
            self._unanswered.append(f"call {request.seq} ({request.label!r}) has no reply: {error}; it asks {shown!r}")
            raise RepliesDiffer(self._unanswered[-1]) from None
        except AgentFailed:
            raise
        except Exception as error:
            self.error = self.error or error
            raise

    @property
    def lacks_reply(self) -> bool:
        """A call was made that has no reply."""
        return bool(self._unanswered)

    @property
    def differences(self) -> list[str]:
        """Calls that have no reply, and lists of which something was never asked for: a phrase for each."""
        return [*self._unanswered, *self._source.left_over()]

    def check(self) -> None:
        """Raise `RepliesDiffer` unless every call had its reply and every list was used up. `Lab.run` does it."""
        if self.differences:
            raise RepliesDiffer("; ".join(self.differences))


def _as_reply(reply: Reply) -> AgentReply:
    match reply:
        case AgentReply():
            return reply
        case str():
            return AgentReply(text=reply)
        case None:
            raise AgentFailed("the test says that this agent fails")
        case Exception():
            raise reply
        case Mapping():
            value: dict[str, Any] = dict(reply)  # the host looks at every value of it
            return AgentReply(value=value)
        case _:
            raise no_reply(reply)
