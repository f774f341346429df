"""The replies of a test: a list by call number, a table by words of the prompt, or a function."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

from loopwarden.failures import LoopwardenError
from loopwarden.provider import AgentReply, AgentRequest

Reply: TypeAlias = str | Mapping[str, object] | AgentReply | Exception | None
"""A text, a structured value, both, an exception that the provider raises, or None: the agent fails."""

Replies: TypeAlias = (
    Sequence[Reply] | Mapping[str, Reply | Sequence[Reply]] | Callable[[AgentRequest], Reply | Awaitable[Reply]]
)
"""A list, a table or a function. `FakeAgent` says what each means."""


class NoReplyError(LoopwardenError):
    """Nothing is written down for a call. The message says why."""


class Source(ABC):
    """Where replies come from."""

    @abstractmethod
    async def answer(self, request: AgentRequest) -> Reply:
        """The reply to one call. Raises `NoReplyError`."""

    def left_over(self) -> list[str]:
        """A phrase for each list of which something was never asked for."""
        return []


class ByNumber(Source):
    """Call n gets reply n."""

    def __init__(self, replies: Sequence[Reply]) -> None:
        self._replies = _checked(replies, "reply {}")
        self._asked: set[int] = set()

    async def answer(self, request: AgentRequest) -> Reply:
        """The reply with the number of the call."""
        if request.seq > len(self._replies):
            raise NoReplyError(f"the list ends before it, at {len(self._replies)}")
        self._asked.add(request.seq)
        return self._replies[request.seq - 1]

    def left_over(self) -> list[str]:
        """The list, unless all of it was asked for."""
        missed = [str(number) for number in range(1, len(self._replies) + 1) if number not in self._asked]
        return [f"no call asked for {_numbered(missed)}"] if missed else []


class ByPrompt(Source):
    """The longest key that stands in the prompt decides."""

    def __init__(self, table: Mapping[str, Reply | Sequence[Reply]]) -> None:
        self._singles: dict[str, Reply] = {}
        self._lists: dict[str, list[Reply]] = {}
        self._given: dict[str, int] = {}
        for key, entry in table.items():
            if not isinstance(key, str):
                raise TypeError(f"the keys of a table are words of prompts, not {type(key).__name__}")
            if isinstance(entry, Sequence) and not isinstance(entry, str):
                self._lists[key], self._given[key] = _checked(entry, f"reply {{}} for {key!r}"), 0
            else:
                (self._singles[key],) = _checked([entry], f"the reply for {key!r}")
        self._keys = sorted(table, key=len, reverse=True)

    async def answer(self, request: AgentRequest) -> Reply:
        """The reply of the key, or the next one of its list."""
        key = next((key for key in self._keys if key in request.prompt), None)
        if key is None:
            raise NoReplyError("no key of the table stands in its prompt")
        if key in self._singles:
            return self._singles[key]
        replies, given = self._lists[key], self._given[key]
        if given == len(replies):
            raise NoReplyError(f"the list for {key!r} is used up ({given} given)")
        self._given[key] += 1
        return replies[given]

    def left_over(self) -> list[str]:
        """Each list of which something was never asked for."""
        phrases = []
        for key, replies in self._lists.items():
            missed = [str(number) for number in range(self._given[key] + 1, len(replies) + 1)]
            if missed:
                phrases.append(f"no prompt asked for {_numbered(missed)} for {key!r}")
        return phrases


class ByFunction(Source):
    """A function of the test says the reply."""

    def __init__(self, function: Callable[[AgentRequest], Reply | Awaitable[Reply]]) -> None:
        self._function = function

    async def answer(self, request: AgentRequest) -> Reply:
        """What the function returns, or what it returns is awaited for."""
        answer = self._function(request)
        return await answer if inspect.isawaitable(answer) else answer


def source_of(replies: Replies) -> Source:
    """Where the replies of a test come from. Raises TypeError for what is no list, table or function of replies."""
    if isinstance(replies, Mapping):
        return ByPrompt(replies)
    if isinstance(replies, Sequence) and not isinstance(replies, str):
        return ByNumber(replies)
    if callable(replies):
        return ByFunction(replies)
    raise TypeError(f"replies are a list, a table or a function, not {type(replies).__name__}; for one reply: [reply]")


def no_reply(reply: object, where: str = "") -> TypeError:
    """What cannot be a reply, as an exception."""
    place = f"{where}: " if where else ""
    return TypeError(f"{place}{type(reply).__name__} is no reply; give a text, a dict, None or an exception")


def _checked(replies: Sequence[Reply], where: str) -> list[Reply]:
    """The replies as a list. `where` says where one stands, `{}` its number. Raises TypeError."""
    for number, reply in enumerate(replies, 1):
        if reply is not None and not isinstance(reply, str | Mapping | AgentReply | Exception):
            raise no_reply(reply, where.replace("{}", str(number), 1))
    return list(replies)


def _numbered(missed: list[str]) -> str:
    return f"reply {missed[0]}" if len(missed) == 1 else f"the replies {', '.join(missed)}"
