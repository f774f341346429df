"""One script from its source to its ending message. Nothing here raises: a turn goes in, an ending comes out."""

from typing import Final

from loopwarden_engine.analysis import analyse
from loopwarden_engine.channel import Channel
from loopwarden_engine.hooks import Hooks
from loopwarden_engine.language import (
    CompiledScript,
    ScriptRejected,
    compile_script,
    describe_exception,
    script_namespace,
)
from loopwarden_engine.messages import (
    MAX_LINES,
    MAX_MESSAGE_CHARS,
    MAX_NARRATION_CHARS,
    MAX_VIOLATIONS,
    Failed,
    Ready,
    Rejected,
    Result,
    Start,
    encode_from_worker,
)
from loopwarden_engine.plain import JsonValue, PlainDataError, copy_plain
from loopwarden_engine.scheduler import Scheduler

_RESERVE_BYTES: Final = 2 * 1024 * 1024
_OUT_OF_MEMORY: Final = "the script needed more memory than memoryBytes allows"


def compile_source(start: Start) -> tuple[CompiledScript, Ready] | Rejected:
    """Compile the script under the language policy. A refusal holds as many violations as fit into a frame."""
    max_frame_bytes = start.max_frame_bytes
    try:
        compiled = compile_script(start.source)
    except ScriptRejected as rejection:
        rejected = Rejected(rejection.violations[:MAX_VIOLATIONS])
        while len(rejected.violations) > 1 and len(encode_from_worker(rejected)) > max_frame_bytes:
            rejected = Rejected(rejected.violations[: len(rejected.violations) // 2])
        return rejected
    findings = analyse(start.source) if start.vet else None
    return compiled, Ready(compiled.summary[:MAX_NARRATION_CHARS], findings)


def execute(compiled: CompiledScript, start: Start, channel: Channel) -> None:
    """Run the script to its end and queue the ending message."""
    scheduler = Scheduler(channel)
    hooks = Hooks(channel, scheduler, start)
    namespace = script_namespace(hooks.namespace())

    def root() -> None:
        channel.put_encoded(_ending(compiled, namespace, start, hooks))

    no_memory_left = encode_from_worker(Failed("MEMORY_LIMIT", _OUT_OF_MEMORY, ()))
    # Not a bytearray, which would touch each of its pages: that took a fifth of the start of a run.
    reserve = bytes(_RESERVE_BYTES)
    try:
        scheduler.run(root)
    except MemoryError:
        # Outside of the script's own frames: in a branch's end, or while its ending was put into words. What the script
        # took is still held by the frames of the exception, so room for the message is set free here.
        del reserve
        channel.put_encoded(no_memory_left)
    channel.flush()


def _ending(compiled: CompiledScript, namespace: dict[str, object], start: Start, hooks: Hooks) -> bytes:
    try:
        exec(compiled.code, namespace)  # noqa: S102 -- this is what a worker is for; the walls stand around it
        main = namespace["main"]
        hooks.opened = True
        value = main(start.args)  # type: ignore[operator]
    except BaseException as error:  # noqa: BLE001 -- whatever a script raises ends the run, typed
        return encode_from_worker(_failed(error))
    return _result(value, start.max_frame_bytes)


def _result(value: object, max_frame_bytes: int) -> bytes:
    try:
        copied: JsonValue = copy_plain(value, "result", max_chars=max_frame_bytes)
        payload = encode_from_worker(Result(copied))
    except PlainDataError as error:
        return encode_from_worker(Failed("RESULT_INVALID", str(error)[:MAX_MESSAGE_CHARS], ()))
    except BaseException as error:  # noqa: BLE001 -- whatever a script raises ends the run, typed
        return encode_from_worker(_failed(error))
    if len(payload) > max_frame_bytes:
        message = f"result: the value takes {len(payload)} bytes; at most {max_frame_bytes} can be returned"
        return encode_from_worker(Failed("RESULT_INVALID", message, ()))
    return payload


def _failed(error: BaseException) -> Failed:
    name, message, _, lines = describe_exception(error)
    text = f"{name}: {message}" if message else name
    code = "MEMORY_LIMIT" if isinstance(error, MemoryError) else "SCRIPT_ERROR"
    if code == "MEMORY_LIMIT":
        text = _OUT_OF_MEMORY
    return Failed(code, text[:MAX_MESSAGE_CHARS], tuple(lines[-MAX_LINES:]))  # type: ignore[arg-type]
