"""An agent that speaks the Agent Client Protocol, and misbehaves as its argument says.

Keeps every message that it gets in `heard.jsonl` of its folder, and makes `up` when it is in the middle of its work.
Run as a script: the folder of this file is then where Python looks for its other half.
"""

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from acp_voice import SESSION, Agent, Message, complain, up, write, write_bytewise

ENDLESS_SECONDS = 600


def permission(agent: Agent, kinds: tuple[str, ...] = ("reject_once", "allow_always", "allow_once")) -> str:
    """Ask for a permission. Returns the kind of the option that was chosen, or `cancelled`."""
    options = [{"optionId": f"option-{kind}", "name": kind, "kind": kind} for kind in kinds]
    call = {"toolCallId": "call-1", "title": "make test", "kind": "execute"}
    answered = agent.ask("session/request_permission", {"sessionId": SESSION, "toolCall": call, "options": options})
    outcome = answered["result"]["outcome"]
    return str(outcome.get("optionId", outcome["outcome"])).removeprefix("option-")


def asks_permission(agent: Agent, message: Message) -> None:
    """Says what was chosen."""
    agent.say(
        " ".join((permission(agent), permission(agent, ("allow_always", "reject_always")), permission(agent, ())))
    )
    agent.end(message)


def asks_in_vain(agent: Agent, message: Message) -> None:
    """Ends without a word after it asked for a permission."""
    permission(agent)
    agent.end(message)


def uses_tools(agent: Agent, message: Message) -> None:
    """Works as agents do, in sight."""
    file = [{"path": os.path.join(os.getcwd(), "src", "a.py")}]
    agent.update("agent_thought_chunk", content={"type": "text", "text": 'maybe {"n": 7}'})
    agent.update("agent_thought_chunk", content={"type": "text", "text": "or not"})
    agent.update("plan", entries=[
        {"content": "look", "priority": "high", "status": "completed"},
        {"content": "repair the bridge", "priority": "high", "status": "in_progress"},
    ])  # fmt: skip
    agent.update("tool_call", toolCallId="t1", title="Edit src/a.py", kind="edit", status="pending", locations=file)
    agent.update("tool_call_update", toolCallId="t1", status="in_progress")
    agent.update("tool_call_update", toolCallId="t1", status="failed")
    agent.update("tool_call", toolCallId="t2", title="make\n test", kind="execute", status="in_progress")
    agent.update("tool_call_update", toolCallId="t2", status="completed", rawOutput={"n": 8})
    agent.say('{"n": 3}', session="another session")
    agent.update("a_kind_of_next_year", text="?")
    agent.say("First.", messageId="m1")
    agent.say(' {"n": 2}', messageId="m2")
    agent.end(message)


def hangs(agent: Agent, message: Message) -> None:
    """Says half an answer, and ends its turn only when it is cancelled."""
    agent.say('{"n"')
    up()
    agent.next_notification("session/cancel")
    agent.end(message, "cancelled")


def is_deaf(agent: Agent, message: Message) -> None:
    """Hears neither the client nor signals."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    up()
    while True:
        time.sleep(ENDLESS_SECONDS)


def hands_over(agent: Agent, message: Message) -> None:
    """Works for ever, unless it is asked to hand over."""
    if agent.prompts == 1:
        hangs(agent, message)
    else:
        agent.say('{"n": 2}')
        agent.end(message)


def hands_over_after_an_error(agent: Agent, message: Message) -> None:
    """The same, and answers the cancelled turn with an error."""
    if agent.prompts == 1:
        up()
        agent.next_notification("session/cancel")
        agent.error(message, -32603, "Internal error", {"details": "the turn was aborted"})
    else:
        agent.answer(message)


def is_done_when_cancelled(agent: Agent, message: Message) -> None:
    """Ends well at the very moment that its turn is cancelled."""
    up()
    agent.next_notification("session/cancel")
    agent.answer(message)


def asks_while_cancelled(agent: Agent, message: Message) -> None:
    """Asks for a permission when its turn was cancelled."""
    if agent.prompts == 1:
        up()
        agent.next_notification("session/cancel")
        agent.say(permission(agent))
        agent.end(message, "cancelled")
    else:
        agent.say("handed over")
        agent.end(message)


def floods(agent: Agent, message: Message) -> None:
    """Sends updates without end."""
    update = {"sessionUpdate": "agent_thought_chunk", "content": {"type": "text", "text": "."}}
    line = json.dumps({"method": "session/update", "params": {"sessionId": SESSION, "update": update}})
    while True:
        write(f"{line}\n".encode() * 100)


def floods_with_requests(agent: Agent, message: Message) -> None:
    """Sends requests without end and reads no answer."""
    while True:
        write(b'{"jsonrpc":"2.0","id":"x","method":"fs/read_text_file","params":{}}\n' * 100)


def prints_one_long_line(agent: Agent, message: Message) -> None:
    """A line without end, as one message."""
    write(b'{"jsonrpc":"2.0","method":"')
    while True:
        write(b"x" * 65536)


GARBAGE = (
    b"Warning: the moon is full\n",
    b"\n\r\n",
    b"\xef\xbb\xbf",
    b"\xff\xfe\n",
    b"[1, 2]\n",
    b'"text"\n',
    b'{"jsonrpc": \n',
    b"{" * 50_000 + b"\n",
    b'{"a":' * 50_000 + b"\n",
    b"{}\n",
    b'{"jsonrpc": "2.0", "id": true, "result": {}}\n',
    b'{"jsonrpc": "2.0", "id": 2.0, "result": {"stopReason": "end_turn"}}\n',
    b'{"jsonrpc": "2.0", "id": 999, "result": {}}\n',
    b'{"jsonrpc": "2.0", "id": [], "result": {}}\n',
    b'{"jsonrpc": "2.0", "id": {}, "method": "session/request_permission"}\n',
    b'{"jsonrpc": "2.0", "id": 0, "error": "text"}\n',
    b'{"jsonrpc": "2.0", "method": 7}\n',
    b'{"jsonrpc": "2.0", "method": "session/update"}\n',
    b'{"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": 5, "update": []}}\n',
    b'{"jsonrpc": "2.0", "method": "no/such/notification", "params": {"a": 1}}\n',
    b'{"jsonrpc": "2.0", "id": "\\ud800", "method": "_x/y", "params": null}\n',
    b'{"jsonrpc": "2.0", "id": null, "method": "terminal/create"}\n',
    b'{"jsonrpc": "2.0", "id": "p", "method": "session/request_permission", "params": {"options": 1}}\n',
)


def prints_garbage(agent: Agent, message: Message) -> None:
    """Everything that a line should not be, and then a good answer."""
    for piece in GARBAGE:
        write(piece)
    agent.answer(message)


def dies(agent: Agent, message: Message) -> None:
    """Ends in the middle of its turn."""
    agent.say('{"n": 1}')
    complain("it was going so well")
    os._exit(3)


def is_killed(agent: Agent, message: Message) -> None:
    """Dies of a signal in the middle of its turn."""
    os.kill(os.getpid(), signal.SIGKILL)


def loses_its_credentials(agent: Agent, message: Message) -> None:
    """Ends in the middle of its turn, and says why."""
    complain("Error: 401 invalid api key")
    os._exit(1)


def lingers(agent: Agent, message: Message) -> None:
    """Answers, and does not end when its input is closed."""
    agent.answer(message)
    time.sleep(ENDLESS_SECONDS)


def leaves_late(agent: Agent, message: Message) -> None:
    """Answers, and takes its time to end, with an odd exit."""
    agent.answer(message)
    for _ in sys.stdin.buffer:
        pass
    time.sleep(0.05)
    os._exit(7)


def leaves_a_grandchild(agent: Agent, message: Message) -> None:
    """Leaves a process in another session behind."""
    if os.fork() == 0:
        os.setsid()
        for descriptor in range(3):
            os.close(descriptor)
        up()
        time.sleep(ENDLESS_SECONDS)
        os._exit(0)
    while not os.path.exists("up"):
        time.sleep(0.002)
    agent.answer(message)


def closes_its_input(agent: Agent, message: Message) -> None:
    """Asks for a permission, and does not want to hear."""
    os.close(0)
    options = [{"optionId": "x", "name": "x", "kind": "allow_once"}]
    call = {"toolCallId": "call-1", "title": "make test", "kind": "execute"}
    params = {"sessionId": SESSION, "toolCall": call, "options": options}
    for number in range(2):
        agent.send({"id": number, "method": "session/request_permission", "params": params})
        time.sleep(0.05)
    if sys.argv[2] == "ends":
        os._exit(4)
    time.sleep(ENDLESS_SECONDS)


def closes_its_output(agent: Agent, message: Message) -> None:
    """Closes its output, and lives."""
    os.close(1)
    up()
    time.sleep(ENDLESS_SECONDS)


def asks_for_a_file(agent: Agent, message: Message) -> None:
    """Says what became of requests that were never offered."""
    path = {"sessionId": SESSION, "path": "/etc/passwd"}
    answers = [agent.ask("fs/read_text_file", path) for _ in range(2)]
    answers += [agent.ask("terminal/create", {"sessionId": SESSION, "command": "sh"}), agent.ask("x/y", {})]
    agent.say(" ".join(str(answer["error"]["code"]) for answer in answers))
    agent.end(message)


def echoes(agent: Agent, message: Message) -> None:
    """Says what it was asked."""
    agent.say(message["params"]["prompt"][0]["text"])
    agent.end(message)


def reports(agent: Agent, message: Message) -> None:
    """A report of the Ralph loop: goes on in its first two rounds, and is done in the third."""
    is_last = "Round 3" in message["params"]["prompt"][0]["text"]
    with Path("bridge.txt").open("a", encoding="utf-8") as file:
        file.write("plank\n")
    report = {
        "status": "complete" if is_last else "continue", "summary": "a plank more", "evidence": ["bridge.txt"],
        "nextSteps": [] if is_last else ["the next plank"], "blocker": "",
    }  # fmt: skip
    agent.say(f"Done.\n```json\n{json.dumps(report)}\n```")
    agent.end(message)


def says_its_usage(agent: Agent, message: Message) -> None:
    """With tokens and money."""
    agent.update("usage_update", used=1, size=2, cost={"amount": 0.25, "currency": "USD"})
    agent.update("usage_update", used=3, size=4, cost={"amount": 0.5, "currency": "USD"})
    agent.update("usage_update", used=3, size=4, cost={"amount": 9, "currency": "EUR"})
    agent.say('{"n": 1}')
    if agent.prompts == 1 and sys.argv[2:] == ["late"]:
        up()
        agent.next_notification("session/cancel")
    usage = {"totalTokens": 117, "inputTokens": 10, "outputTokens": 5, "cachedReadTokens": 100, "thoughtTokens": 2}
    agent.end(message, usage=usage)


TURNS: dict[str, Callable[[Agent, Message], None]] = {
    "answers": lambda agent, message: agent.answer(message),
    "asks in vain": asks_in_vain,
    "asks permission": asks_permission,
    "asks for a file": asks_for_a_file,
    "asks while cancelled": asks_while_cancelled,
    "closes its input": closes_its_input,
    "closes its output": closes_its_output,
    "dies": dies,
    "echoes": echoes,
    "fails": lambda agent, message: agent.error(
        message, int(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4]) if sys.argv[4:] else None
    ),
    "floods": floods,
    "floods with requests": floods_with_requests,
    "hands over": hands_over,
    "hands over after an error": hands_over_after_an_error,
    "hangs": hangs,
    "is deaf": is_deaf,
    "is done when cancelled": is_done_when_cancelled,
    "is killed": is_killed,
    "leaves a grandchild": leaves_a_grandchild,
    "leaves late": leaves_late,
    "lingers": lingers,
    "loses its credentials": loses_its_credentials,
    "prints garbage": prints_garbage,
    "prints one long line": prints_one_long_line,
    "reports": reports,
    "says its usage": says_its_usage,
    "says nothing": lambda agent, message: agent.end(message),
    "stops": lambda agent, message: agent.end(message, sys.argv[2]),
    "uses tools": uses_tools,
}

CONFIG_OPTIONS = [
    {"id": "mode", "name": "Mode", "category": "mode", "type": "select", "currentValue": "build",
     "options": [{"value": "build", "name": "build"}]},
    {"id": "llm", "name": "Model", "category": "model", "type": "select", "currentValue": "vendor/small",
     "options": [{"group": "g", "name": "G", "options": [{"value": "vendor/small", "name": "Small"},
                                                       {"value": "vendor/large", "name": "Large"}]}]},
]  # fmt: skip
OLDER_MODELS = {
    "currentModelId": "auto",
    "availableModels": [{"modelId": "auto", "name": "Auto"}, {"modelId": "pro", "name": "Pro"}],
}


def demands_login(agent: Agent, methods: list[Message]) -> None:
    """No session before a login."""
    agent.initialized["authMethods"] = methods

    def new_session(message: Message) -> None:
        if '"authenticate"' in Path("heard.jsonl").read_text(encoding="utf-8"):
            agent.result(message, agent.session)
        else:
            agent.error(message, -32000, "Authentication required")

    agent.new_session = new_session


def prepare(agent: Agent, mode: str) -> None:
    """Set the agent up for a mode that shows before its first turn."""
    match mode:
        case "ends at once":
            complain("there is no such model")
            os._exit(2)
        case "is no such agent":
            write(b"Usage: agent [options]\n")
            os._exit(0)
        case "reads all of its input":
            sys.stdin.buffer.read()
        case "demands a login":
            demands_login(agent, [{"id": "browser", "name": "Log in by a browser"}, {"id": "key", "name": "By a key"}])
        case "demands a variable":
            variables = [{"name": "AGENT_KEY"}, {"name": "AGENT_REGION", "optional": True}]
            demands_login(agent, [{"id": "by-key", "name": "By a key", "type": "env_var", "vars": variables}])
        case "offers models":
            agent.session["configOptions"] = CONFIG_OPTIONS
        case "offers older models":
            agent.session["models"] = OLDER_MODELS
        case "speaks another version":
            agent.initialized["protocolVersion"] = 99
        case "says no version":
            agent.initialized = {}
        case "hangs at once":
            agent.new_session = lambda message: up()
        case "writes single bytes":
            agent.write = write_bytewise
        case _:
            turn = TURNS[mode]
            agent.prompted = lambda message: turn(agent, message)


def main() -> None:
    """Run the agent."""
    agent = Agent()
    with contextlib.suppress(BrokenPipeError):
        prepare(agent, sys.argv[1])
        agent.serve()


if __name__ == "__main__":
    main()
