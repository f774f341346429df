"""The worker that carries out one attack of the catalogue, named by the runner, behind the walls that it was made with.

Over the channel, one line each: the order of the runner, with the descriptors that the stage leaves open attached;
`ready` once the walls stand; a byte of the runner, to begin; the answer. Then it waits until the runner hangs up.

    {"attack": "read-open", "facts": {"secret_path": "..."}, "descriptors": ["SECRET"], "permit": true}
"""

import array
import json
import os
import resource
import socket
from types import CodeType
from typing import Any, Final

from loopwarden_engine.attacks.catalogue import load_catalogue
from loopwarden_engine.attacks.toolbox import make_toolbox
from loopwarden_engine.confinement.kernel import set_process_option

__all__ = ["Attacker"]

_PR_SET_NO_NEW_PRIVS: Final = 38
_ORDER_BYTES: Final = 16_384
_MOST_DESCRIPTORS: Final = 16
_ANSWER_CHARS: Final = 20_000
_CODES: Final[dict[str, tuple[CodeType, CodeType]]] = {
    attack.id: (compile(attack.before, f"<{attack.id}>", "exec"), compile(attack.code, f"<{attack.id}>", "exec"))
    for attack in load_catalogue()
}


class Attacker:
    """Made before the walls stand: takes its order, and runs the part of the attack that comes before them."""

    def __init__(self, channel_fd: int) -> None:
        self._channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=channel_fd)
        # A program that takes the place of the worker must be able to say so.
        os.set_inheritable(channel_fd, True)
        # A worker that is killed by its filter leaves no core file; 1 rather than 0 keeps crash reporters out too.
        hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
        resource.setrlimit(resource.RLIMIT_CORE, (hard if 0 <= hard < 1 else 1, hard))
        order, descriptors = self._receive_order()
        self._scope = make_toolbox(self._channel)
        self._scope |= order["facts"] | dict(zip(order["descriptors"], descriptors, strict=True)) | {"out": None}
        before, self._code = _CODES[order["attack"]]
        if order["permit"]:
            # The kernel demands this single bit of whoever is not its administrator, before Landlock or seccomp can
            # stand alone.
            set_process_option(_PR_SET_NO_NEW_PRIVS, 1)
        self._run(before)

    def serve(self) -> None:
        """Carry the attack out, answer, and wait until the runner has looked and hangs up."""
        self._channel.sendall(b"ready\n")
        self._channel.recv(1)
        answer: dict[str, Any]
        try:
            self._run(self._code)
            answer = {"out": self._scope["out"]}
        except BaseException as error:  # noqa: BLE001 -- whatever stops an attack is its answer
            answer = {"error": f"{type(error).__name__}: {error}", "errno": getattr(error, "errno", None)}
        self._channel.sendall(json.dumps(answer, default=repr)[:_ANSWER_CHARS].encode() + b"\n")
        while self._channel.recv(1):
            pass

    def _run(self, code: CodeType) -> None:
        exec(code, self._scope)  # noqa: S102 -- code of the catalogue in this package, and of nothing else

    def _receive_order(self) -> tuple[dict[str, Any], list[int]]:
        line, descriptors = b"", array.array("i")
        room = socket.CMSG_LEN(_MOST_DESCRIPTORS * descriptors.itemsize)
        while not line.endswith(b"\n"):
            data, attachments, _, _ = self._channel.recvmsg(_ORDER_BYTES, room)
            if not data:
                raise EOFError("the runner hung up")
            line += data
            for level, kind, attached in attachments:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    descriptors.frombytes(attached)
        return json.loads(line), list(descriptors)
