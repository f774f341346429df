"""One session with an agent that speaks the Agent Client Protocol, from `initialize` to the end of its turn.

The client that the agent sees offers nothing: no files, no terminals. The agent works by itself in the workspace. Every
task that is started here, those of the SDK too, has ended when `close` returns.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, TypeVar

from acp import PROTOCOL_VERSION, schema
from acp.connection import Connection
from acp.exceptions import RequestError
from acp.meta import AGENT_METHODS, CLIENT_METHODS
from pydantic import BaseModel, ValidationError

from loopwarden.failure_class import FailureClass
from loopwarden.provider import ProviderStartError
from loopwarden.providers.acp.choice import find_login, find_model
from loopwarden.providers.acp.failures import AUTH_REQUIRED, TalkFailed, failed_request
from loopwarden.providers.acp.permissions import PermissionDesk
from loopwarden.providers.acp.turn import Turn
from loopwarden.providers.acp.usage import tokens_of
from loopwarden.providers.acp.wire import AgentWire
from loopwarden.providers.dialect import Trouble
from loopwarden.usage import Usage

ResponseT = TypeVar("ResponseT", bound=BaseModel)
ResultT = TypeVar("ResultT")

HELLO_SECONDS: Final = 120.0
"""How long the first answer may take: a program that speaks something else often waits for the end of its input."""
_KNOWN_METHODS: Final = frozenset(CLIENT_METHODS.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnd:
    """How the agent ended a turn, and what it said in it."""

    stop_reason: schema.StopReason
    text: str


class AcpSession:
    """One session. `progress` is told in words what the agent does.

    Everything that talks to the agent raises `TalkFailed`, or ConnectionError when the agent is gone.
    """

    def __init__(self, wire: AgentWire, workspace: Path, desk: PermissionDesk, progress: Callable[[str], None]) -> None:
        self._wire = wire
        self._workspace = workspace
        self._desk = desk
        self._progress = progress
        self._tasks: set[asyncio.Task[Any]] = set()
        self._id: str | None = None
        self._turn: Turn | None = None
        self._tokens: Usage | None = None
        self._cost_usd: float | None = None
        self._is_ending_turn = False
        self._unread_updates = 0
        self._not_offered: Counter[str] = Counter()
        self._connection = Connection(self._serve, wire)

    @property
    def usage(self) -> Usage | None:
        """What the session used so far: tokens are said for each turn, money for the whole session."""
        if self._cost_usd is None:
            return self._tokens
        return replace(self._tokens or Usage(), cost_usd=self._cost_usd)

    def notes(self) -> tuple[str, ...]:
        """What a reader of the receipt should know about the conversation."""
        notes = [*self._desk.notes()]
        notes += [
            f"it asked for {method} {_times(count)}, which is not offered"
            for method, count in self._not_offered.items()
        ]
        if self._unread_updates:
            notes.append(f"{self._unread_updates} of its updates could not be read")
        return (*notes, *self._wire.notes())

    # ---- asking the agent

    async def open(self, *, model: str | None, login: str | None, variables: frozenset[str]) -> None:
        """Begin the session. Raises `ProviderStartError` for what no further attempt can change."""
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                hello = await self._hello()
        except TimeoutError:
            reason = (
                f"did not answer initialize within {HELLO_SECONDS:g} s; "
                "check that its arguments make it speak the Agent Client Protocol"
            )
            raise TalkFailed(Trouble(failure_class=FailureClass.CRASHED, reason=reason)) from None
        if hello.protocol_version != PROTOCOL_VERSION:
            raise ProviderStartError(
                f"the agent speaks version {hello.protocol_version} of the Agent Client Protocol, and this host speaks "
                f"version {PROTOCOL_VERSION}; use another version of the agent"
            )
        answer = await self._new_session(hello, login, variables)
        session = _decoded(answer, schema.NewSessionResponse, "session_new")
        self._id = session.session_id
        if model is not None:
            method, parameters = find_model(model, session, answer)
            await self._request(method, {"sessionId": self._id, **parameters}, f"take the model {model!r}")

    async def _hello(self) -> schema.InitializeResponse:
        return await self._ask(
            "initialize",
            schema.InitializeRequest(
                protocol_version=PROTOCOL_VERSION,
                client_capabilities=schema.ClientCapabilities(
                    fs=schema.FileSystemCapabilities(read_text_file=False, write_text_file=False), terminal=False
                ),
                client_info=schema.Implementation(name="loopwarden", version=version("loopwarden")),
            ),
            schema.InitializeResponse,
            "begin the conversation",
        )

    async def prompt(self, text: str) -> TurnEnd:
        """Have the agent work on `text`, and wait for the end of its turn."""
        assert self._id is not None
        turn = self._turn = Turn(self._workspace)
        self._is_ending_turn = False
        try:
            answer = await self._ask(
                "session_prompt",
                schema.PromptRequest(session_id=self._id, prompt=[schema.TextContentBlock(type="text", text=text)]),
                schema.PromptResponse,
                "work on the prompt",
            )
        finally:
            self._turn = None
            self._cost_usd = turn.cost_usd if turn.cost_usd is not None else self._cost_usd
        tokens = tokens_of(answer.usage)
        if tokens is not None:
            self._tokens = tokens if self._tokens is None else self._tokens + tokens
        return TurnEnd(stop_reason=answer.stop_reason, text=turn.text)

    async def end_turn(self) -> None:
        """Ask the agent to end its turn now. Its answer to the prompt still follows. Never raises, never waits."""
        if self._turn is None or self._is_ending_turn or self._id is None:
            return
        self._is_ending_turn = True
        with contextlib.suppress(ConnectionError):
            await self._connection.send_notification(AGENT_METHODS["session_cancel"], {"sessionId": self._id})

    def task(self, coroutine: Coroutine[Any, Any, ResultT]) -> asyncio.Task[ResultT]:
        """A task that `close` ends."""
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        return task

    async def close(self) -> None:
        """End every task. A cancellation meanwhile is raised when none is left."""
        self._wire.end()
        closing = asyncio.create_task(self._close())
        cancelled: asyncio.CancelledError | None = None
        while not closing.done():
            try:
                await asyncio.wait([closing])
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled
        closing.result()

    async def _close(self) -> None:
        # The connection first: it rejects what is still asked, and whoever asked ends by himself.
        await self._connection.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _ask(self, name: str, parameters: BaseModel, response: type[ResponseT], doing: str) -> ResponseT:
        return _decoded(await self._request(AGENT_METHODS[name], _plain(parameters), doing), response, name)

    async def _request(self, method: str, parameters: dict[str, Any], doing: str) -> object:
        try:
            return await self._connection.send_request(method, parameters)
        except RequestError as error:
            raise failed_request(error, doing) from None

    async def _new_session(
        self, hello: schema.InitializeResponse, login: str | None, variables: frozenset[str]
    ) -> object:
        """The answer to `session/new`, after `authenticate` if the agent demands it and it can be done."""
        parameters = _plain(schema.NewSessionRequest(cwd=str(self._workspace), mcp_servers=[]))
        try:
            return await self._connection.send_request(AGENT_METHODS["session_new"], parameters)
        except RequestError as error:
            if error.code != AUTH_REQUIRED:
                raise failed_request(error, "begin a session") from None
            refusal = failed_request(error, "begin a session").trouble
        method = find_login(hello.auth_methods or [], login, variables)
        if method is None:
            offered = ", ".join(found.id[:100] for found in (hello.auth_methods or [])[:10]) or "no way to log in"
            advice = f"it offers {offered}; give it credentials by pass_env or credential_files"
            raise TalkFailed(replace(refusal, reason=f"{refusal.reason}; {advice}"))
        try:
            await self._request(AGENT_METHODS["authenticate"], {"methodId": method}, f"log in by {method!r}")
        except TalkFailed as failed:
            if failed.trouble.failure_class is not FailureClass.UNKNOWN:
                raise
            raise TalkFailed(replace(failed.trouble, failure_class=FailureClass.AUTH)) from None
        return await self._request(AGENT_METHODS["session_new"], parameters, "begin a session")

    # ---- serving the agent

    async def _serve(self, method: str, parameters: object, is_notification: bool) -> object:  # noqa: FBT001 - the SDK's
        """Raises nothing but `RequestError`, and for notifications nothing: the SDK prints stack traces of the rest."""
        if is_notification:
            if method == CLIENT_METHODS["session_update"]:
                self._take_update(parameters)
            return None
        if method == CLIENT_METHODS["session_request_permission"]:
            return self._answer_permission(parameters)
        name = method if method in _KNOWN_METHODS else "other methods"
        self._not_offered[name] += 1
        raise RequestError.method_not_found(method[:100])

    def _take_update(self, parameters: object) -> None:
        try:
            notification = schema.SessionNotification.model_validate(parameters)
        except ValidationError:
            self._unread_updates += 1
            return
        if self._turn is not None and notification.session_id == self._id:
            words = self._turn.take(notification.update)
            if words is not None:
                self._progress(words)

    def _answer_permission(self, parameters: object) -> schema.RequestPermissionResponse:
        try:
            request = schema.RequestPermissionRequest.model_validate(parameters)
        except ValidationError:
            self._unread_updates += 1
            raise RequestError.invalid_params() from None
        action = (self._turn or Turn(self._workspace)).action(request.tool_call)
        self._progress(action)
        chosen = self._desk.choose(request.options, action, is_ending=self._is_ending_turn or self._turn is None)
        if chosen is None:
            return schema.RequestPermissionResponse(outcome=schema.DeniedOutcome(outcome="cancelled"))
        return schema.RequestPermissionResponse(outcome=schema.AllowedOutcome(outcome="selected", option_id=chosen))


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _plain(parameters: BaseModel) -> dict[str, Any]:
    """As it goes over the wire: what was set, and nothing that is only a default of this version of the SDK."""
    return parameters.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)


def _decoded(answer: object, response: type[ResponseT], name: str) -> ResponseT:
    try:
        return response.model_validate(answer)
    except ValidationError:
        reason = f"answered {AGENT_METHODS[name]} with something that is not the protocol"
        raise TalkFailed(Trouble(failure_class=FailureClass.CRASHED, reason=reason)) from None
