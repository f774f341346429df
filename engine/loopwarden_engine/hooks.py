"""The functions a script gets: `agent`, `parallel`, `pipeline`, `phase`, `log`.

A misuse is fatal: the worker says so and does nothing more, and the host ends the run. So no script can catch it
(design section 5). What concerns the meaning of a call (labels, schemas, caps) is judged by the host alone.
"""

import sys
from collections.abc import Callable, Sequence
from types import CodeType
from typing import NoReturn

from greenlet import getcurrent

from loopwarden_engine.channel import Channel
from loopwarden_engine.hook_rules import MAX_TITLE_CHARS, OPTIONS
from loopwarden_engine.language import SCRIPT_FILENAME, describe_exception, is_discarding
from loopwarden_engine.messages import (
    MAX_MESSAGE_CHARS,
    MAX_NARRATION_CHARS,
    Call,
    Fatal,
    FatalCode,
    ItemFailed,
    Log,
    Phase,
    Start,
    encode_from_worker,
)
from loopwarden_engine.plain import (
    MAX_OPTION_VALUES,
    JsonObject,
    JsonValue,
    PlainDataError,
    copy_object,
    copy_plain,
)
from loopwarden_engine.scheduler import MAX_NESTING, Branch, Scheduler


class Hooks:
    """The hooks of one run. They work once `main` runs: `opened` says so."""

    def __init__(self, channel: Channel, scheduler: Scheduler, start: Start) -> None:
        self._channel = channel
        self._scheduler = scheduler
        self._max_items = start.max_items_per_call
        self._narration_left = start.max_narration
        self._max_narration = start.max_narration
        self._max_frame_bytes = start.max_frame_bytes
        self._calls = 0
        self.opened = False

    def namespace(self) -> dict[str, Callable[..., object]]:
        """The hooks by the names that a script uses, as plain functions without any state to reach."""

        def agent(*args: object, **options: object) -> JsonValue:
            return self._agent(args, options)

        def parallel(*args: object, **options: object) -> list[object]:
            return self._parallel(args, options)

        def pipeline(*args: object, **options: object) -> list[object]:
            return self._pipeline(args, options)

        def phase(*args: object, **options: object) -> None:
            self._phase(args, options)

        def log(*args: object, **options: object) -> None:
            self._log(args, options)

        return {"agent": agent, "log": log, "parallel": parallel, "phase": phase, "pipeline": pipeline}

    # ---- agent

    def _agent(self, args: tuple[object, ...], options: dict[str, object]) -> JsonValue:
        branch = self._enter("agent")
        if not args and "prompt" in options:
            args = (options.pop("prompt"),)
        for name in options:
            if name not in OPTIONS:
                self._fatal(
                    "UNSUPPORTED_OPTION",
                    f"agent() has no option {name[:100]!r}; the options are {', '.join(OPTIONS)}",
                )
        if len(args) != 1:
            self._fatal("INVALID_ARGUMENT", f"agent() takes one prompt, not {len(args)} positional arguments")
        (prompt,) = args
        if type(prompt) is not str:
            self._fatal("INVALID_ARGUMENT", f"agent() needs a text as its prompt, not {type(prompt).__name__}")
        given: JsonObject = {}
        try:
            if options:
                given = {name: value for name, value in options.items() if value is not None}  # type: ignore[misc]
                given = copy_object(given, "options", max_values=MAX_OPTION_VALUES)
            copy_plain(prompt, "prompt", max_chars=self._max_frame_bytes)
        except PlainDataError as error:
            self._fatal("INVALID_ARGUMENT", f"agent(): {error}")
        call_id = self._calls + 1
        payload = encode_from_worker(Call(call_id, branch.next_key(), script_line(), prompt, given))
        if len(payload) > self._max_frame_bytes:
            self._fatal(
                "INVALID_ARGUMENT",
                f"agent(): prompt and options take {len(payload)} bytes; at most {self._max_frame_bytes} can be sent",
            )
        self._calls = call_id
        self._channel.put_encoded(payload)
        return self._scheduler.wait_for_reply(branch, call_id)

    # ---- combinators

    def _parallel(self, args: tuple[object, ...], options: dict[str, object]) -> list[object]:
        branch = self._enter("parallel")
        if not args and options.keys() == {"thunks"}:
            args = (options.pop("thunks"),)
        if options or len(args) != 1:
            self._fatal("INVALID_ARGUMENT", "parallel() takes one list of functions and nothing else")
        thunks = self._items("parallel", "functions", args[0])
        for index, thunk in enumerate(thunks):
            if not callable(thunk):
                self._fatal(
                    "INVALID_ARGUMENT",
                    f"parallel(): item {index} is {type(thunk).__name__}, not a function; "
                    "write lambda: agent(…), so that it is called later",
                )
        return self._combine(branch, list(thunks))  # type: ignore[arg-type]

    def _pipeline(self, args: tuple[object, ...], options: dict[str, object]) -> list[object]:
        branch = self._enter("pipeline")
        if options or len(args) < 2:
            self._fatal("INVALID_ARGUMENT", "pipeline() takes a list of items and at least one stage")
        items = self._items("pipeline", "items", args[0])
        stages = args[1:]
        for index, stage in enumerate(stages):
            if not callable(stage):
                self._fatal("INVALID_ARGUMENT", f"pipeline(): stage {index} is {type(stage).__name__}, not a function")
        return self._combine(branch, [_all_stages(stages, item, index) for index, item in enumerate(items)])  # type: ignore[arg-type]

    def _items(self, hook: str, what: str, value: object) -> list[object]:
        if type(value) not in (list, tuple, range):
            self._fatal("INVALID_ARGUMENT", f"{hook}() needs a list of {what}, not {type(value).__name__}")
        assert isinstance(value, Sequence)
        try:
            count = len(value)
        except OverflowError:  # A range may hold more than a length can say; that must not become the script's error.
            count = sys.maxsize
        if count > self._max_items:
            shown = count if count < sys.maxsize else "more than countable"
            self._fatal("ITEM_CAP", f"{hook}() got {shown} items; maxItemsPerCall is {self._max_items}")
        return list(value)

    def _combine(self, branch: Branch, works: "list[Callable[[], object]]") -> list[object]:
        key = branch.next_key()
        if branch.depth >= MAX_NESTING:
            self._fatal("INVALID_ARGUMENT", f"parallel() and pipeline() are nested more than {MAX_NESTING} deep")
        results: list[object] = [None] * len(works)
        call_line = script_line()

        def body(index: int, work: Callable[[], object]) -> Callable[[], None]:
            def run() -> None:
                try:
                    results[index] = work()
                except (Exception, GeneratorExit) as error:  # noqa: BLE001 -- whatever an item raises makes it None
                    # GeneratorExit comes out of a generator that ignored its closing and is resumed to its end.
                    self._item_failed(key, index, error, call_line)

            return run

        self._scheduler.fork(branch, key, [body(index, work) for index, work in enumerate(works)])
        return results

    def _item_failed(self, key: str, index: int, error: BaseException, call_line: int) -> None:
        name, message, line, _ = describe_exception(error)
        text = f"{name}: {message}" if message else name
        if len(text) > MAX_NARRATION_CHARS:
            text = text[: MAX_NARRATION_CHARS - 1] + "…"
        # A function of the wrong arity fails before any line of it runs: then the line of the combinator is the place.
        self._narrate(ItemFailed(key, index, line or call_line, text))

    # ---- narration

    def _phase(self, args: tuple[object, ...], options: dict[str, object]) -> None:
        self._enter("phase")
        title = self._one_text("phase", "title", args, options)
        if not 1 <= len(title) <= MAX_TITLE_CHARS:
            self._fatal(
                "INVALID_ARGUMENT", f"phase() needs a title of 1 to {MAX_TITLE_CHARS} characters, not {len(title)}"
            )
        self._narrate(Phase(title))

    def _log(self, args: tuple[object, ...], options: dict[str, object]) -> None:
        self._enter("log")
        message = self._one_text("log", "message", args, options)
        if len(message) > MAX_NARRATION_CHARS:
            self._fatal("INVALID_ARGUMENT", f"log() takes at most {MAX_NARRATION_CHARS} characters, not {len(message)}")
        self._narrate(Log(message))

    def _one_text(self, hook: str, name: str, args: tuple[object, ...], options: dict[str, object]) -> str:
        if not args and options.keys() == {name}:
            args = (options[name],)
            options = {}
        if options or len(args) != 1:
            self._fatal("INVALID_ARGUMENT", f"{hook}() takes one {name} and nothing else")
        (text,) = args
        if type(text) is not str:
            self._fatal("INVALID_ARGUMENT", f"{hook}() needs a text, not {type(text).__name__}")
        if len(text) <= MAX_NARRATION_CHARS:
            try:
                copy_plain(text, name)
            except PlainDataError as error:
                self._fatal("INVALID_ARGUMENT", f"{hook}(): {error}")
        return text

    def _narrate(self, message: Phase | Log | ItemFailed) -> None:
        if self._narration_left == 0:
            self._fatal(
                "NARRATION_LIMIT",
                f"the script sent more than {self._max_narration} phase, log and item messages (maxNarration)",
            )
        self._narration_left -= 1
        self._channel.put(message)
        # At once, so that an observer sees what a script said before it began to compute for long.
        self._channel.flush()

    # ---- common

    def _enter(self, hook: str) -> Branch:
        branch = getcurrent()
        if not self.opened or not isinstance(branch, Branch):
            self._fatal("SCRIPT_ERROR", f"{hook}() was called before main() ran; hooks work only inside of main()")
        if is_discarding():
            self._fatal("SCRIPT_ERROR", f"{hook}() was called while a generator was being discarded")
        return branch

    def _fatal(self, code: FatalCode, message: str) -> NoReturn:
        self._channel.put(Fatal(code, message[:MAX_MESSAGE_CHARS], script_line()))
        self._channel.wait_for_end()


def _all_stages(stages: "tuple[Callable[..., object], ...]", item: object, index: int) -> Callable[[], object]:
    def work() -> object:
        previous = item
        for stage in stages:
            previous = stage(previous, item, index)
        return previous

    return work


def script_line() -> int:
    """The line of the script that runs now, 0 when there is none."""
    frame = sys._getframe(1)  # noqa: SLF001 -- the only way to learn the line without raising
    while True:
        code: CodeType = frame.f_code
        if code.co_filename == SCRIPT_FILENAME:
            return frame.f_lineno
        if frame.f_back is None:
            return 0
        frame = frame.f_back
