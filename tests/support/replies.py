"""Agents that answer from a list or a table, as the corpora describe them."""

from typing import Any

from loopwarden import AgentFailed, AgentReply, AgentRequest


class ScriptedReplies:
    """The n-th accepted call gets the n-th entry of a list; or the longest prompt substring of a table decides."""

    def __init__(self, replies: list[Any] | dict[str, Any]) -> None:
        self._replies = replies

    async def __call__(self, request: AgentRequest) -> AgentReply:
        """Answer one call."""
        reply: Any = "reply"
        if isinstance(self._replies, dict):
            fitting = [key for key in self._replies if key in request.prompt]
            if fitting:
                reply = self._replies[max(fitting, key=len)]
        elif request.seq <= len(self._replies):
            reply = self._replies[request.seq - 1]
        if reply is None:
            raise AgentFailed("the case says that this child fails")
        if isinstance(reply, str):
            return AgentReply(text=reply)
        return AgentReply(value=reply)
