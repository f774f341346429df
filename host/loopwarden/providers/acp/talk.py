"""One conversation with an agent program, from its start to its end: the prompt, the hand-over, and how it is left.

hold        opens the session, has the agent work, sees it off; ends everything, also when cancelled meanwhile
wrap up     when its time is nearly over, the turn is ended and the agent is asked for one last answer
break off   `session/cancel` first, so that the agent can end what it runs; then the process is ended
"""

import asyncio
from dataclasses import dataclass
from typing import Final, TypeAlias

from loopwarden.provider import AgentRequest
from loopwarden.providers.acp.failures import TalkFailed
from loopwarden.providers.acp.session import AcpSession, TurnEnd
from loopwarden.providers.acp.wire import AgentWire
from loopwarden.providers.candidates import Found, find_value
from loopwarden.providers.dialect import Trouble
from loopwarden.providers.process import Ending, SupervisedProcess
from loopwarden.providers.schema_prompt import with_schema
from loopwarden.schema import UnsupportedSchema, compile_schema
from loopwarden_engine.plain import JsonObject

LEAVE_SECONDS: Final = 3.0
"""How long an agent may take to end by itself after its answer. Measured: Gemini CLI 0.1 s, Qwen Code 2 s."""
DEAF_LEAVE_SECONDS: Final = 0.5
"""The same for one that does not read any more. Most often it is just about to end, and how it ended says more."""
TURN_SHARE: Final = 0.5
"""Of the grace of a cancelled agent: for the end of its turn. The rest is for the end of its processes."""
HAND_OVER: Final = (
    "Time is nearly over. Stop working and hand over now: answer with what is done, what is not, and what comes next."
)

Outcome: TypeAlias = TurnEnd | Trouble | None
"""None: the agent was gone before it had answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionChoices:
    """What the deployment and the call choose."""

    model: str | None
    login: str | None
    variables: frozenset[str]
    """The names of the variables that the agent has."""


class Talk:
    """One conversation. Make it when the program was started; `hold` then sees the end of it."""

    def __init__(self, process: SupervisedProcess, wire: AgentWire, session: AcpSession, request: AgentRequest) -> None:
        self._process = process
        self._wire = wire
        self._session = session
        self._request = request
        self._turn: asyncio.Task[TurnEnd] | None = None
        self._exited = session.task(process.wait())
        self._exited.add_done_callback(lambda _: wire.end())
        self._notes: list[str] = []
        self.cancelled: asyncio.CancelledError | None = None
        self.hung_up: str | None = None
        """Why the host stopped talking to the agent, which still lived; continues "the agent program …"."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the receipt should know."""
        return (*self._notes, *self._session.notes())

    async def hold(self, choices: SessionChoices) -> tuple[Outcome, Ending]:
        """Talk to the agent until it has answered, and end it. A cancellation is kept in `cancelled`.

        Nothing of the agent is left when this returns or raises. Raises `ProviderStartError`.
        """
        outcome: Outcome = None
        try:
            outcome = await self._converse(choices)
        except TalkFailed as failed:
            outcome = failed.trouble
        except ConnectionError:
            pass  # Its program ended, or does not read; the ending tells.
        except asyncio.CancelledError as error:
            self.cancelled = error
        except BaseException:
            await self._end(0)
            raise
        if self.cancelled is None:
            try:
                return outcome, await self._see_off(outcome)
            except asyncio.CancelledError as error:
                self.cancelled = error
        return outcome, await self._break_off()

    async def _converse(self, choices: SessionChoices) -> TurnEnd:
        request = self._request
        await self._session.open(model=choices.model, login=choices.login, variables=choices.variables)
        turn = self._begin(request.prompt)
        if request.wrap_up is None:
            return await _result(turn)
        bell = self._session.task(request.wrap_up.wait())
        await asyncio.wait([turn, bell], return_when=asyncio.FIRST_COMPLETED)
        if turn.done():
            return turn.result()
        return await self._wrap_up(turn)

    def _begin(self, prompt: str) -> asyncio.Task[TurnEnd]:
        schema = self._request.schema
        text = prompt if schema is None else with_schema(prompt, schema)
        self._turn = self._session.task(self._session.prompt(text))
        return self._turn

    async def _wrap_up(self, turn: asyncio.Task[TurnEnd]) -> TurnEnd:
        """End the turn, and ask for the hand-over in the same session. The attempt's deadline bounds both."""
        self._notes.append("its time was nearly over, so it was asked to hand over")
        self._request.remark("time is nearly over, asked to hand over")
        await self._session.end_turn()
        try:
            end = await _result(turn)
        except TalkFailed:
            pass  # Some agents answer a turn that was cancelled with an error.
        else:
            # It may have been done already. Without a schema, nothing tells a whole answer from half a sentence.
            if end.stop_reason == "end_turn" and _holds_value(end.text, self._request.schema):
                return end
        return await _result(self._begin(HAND_OVER))

    async def _see_off(self, outcome: Outcome) -> Ending:
        """The answer is there, or there will be none: let the agent end by itself, and end it otherwise."""
        self._process.close_stdin()
        patience_seconds = LEAVE_SECONDS if self._wire.problem is None else DEAF_LEAVE_SECONDS
        await asyncio.wait([self._exited], timeout=min(patience_seconds, self._request.grace_seconds))
        left_by_itself = self._exited.done()
        ending = await self._end(self._request.grace_seconds)
        if self._wire.problem is not None:
            self.hung_up = None if left_by_itself else self._wire.problem
        elif not left_by_itself:
            self._notes.append("it did not end when its input was closed, and was ended by the host")
        elif isinstance(outcome, TurnEnd) and ending.exit != 0:
            self._notes.append(f"after its answer it {ending.how}")
        return ending

    async def _break_off(self) -> Ending:
        grace_seconds = self._request.grace_seconds
        if self._turn is not None and not self._turn.done():
            loop = asyncio.get_running_loop()
            began = loop.time()
            await self._session.end_turn()
            try:
                await asyncio.wait(
                    [self._turn, self._exited], timeout=grace_seconds * TURN_SHARE, return_when=asyncio.FIRST_COMPLETED
                )
                grace_seconds = max(0.0, grace_seconds - (loop.time() - began))
            except asyncio.CancelledError:
                grace_seconds = 0.0
        return await self._end(grace_seconds)

    async def _end(self, grace_seconds: float) -> Ending:
        """End the program and every task. Cannot be interrupted: a cancellation cuts the grace, and is kept."""
        try:
            while True:
                try:
                    return await self._process.end(grace_seconds)
                except asyncio.CancelledError as error:
                    self.cancelled = self.cancelled or error
                    grace_seconds = 0
        finally:
            try:
                await self._session.close()
            except asyncio.CancelledError as error:
                self.cancelled = self.cancelled or error


async def _result(turn: asyncio.Task[TurnEnd]) -> TurnEnd:
    """Wait for a turn. Unlike awaiting the task, a cancellation does not go through to it: its end is still to come."""
    await asyncio.wait([turn])
    return turn.result()


def _holds_value(text: str, schema: JsonObject | None) -> bool:
    if schema is None:
        return False
    try:
        return isinstance(find_value(text, compile_schema(schema)), Found)
    except UnsupportedSchema:
        return False
