"""Scripts as trees that a replay goes through again: what they ask and tell, one after the other or all at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from loopwarden.journal.entries import Logged
from loopwarden_engine.messages import Call
from support.journal_lab import JournalLab


@dataclass(frozen=True)
class Ask:
    """One call. `otherwise` follows when its agent failed."""

    prompt: str
    otherwise: "Node | None" = None


@dataclass(frozen=True)
class Tell:
    """One message to observers."""

    message: str


@dataclass(frozen=True)
class Then:
    """One after the other."""

    parts: "Sequence[Node]"


@dataclass(frozen=True)
class Together:
    """All at once, until the last one ended."""

    parts: "Sequence[Node]"


Node: TypeAlias = Ask | Tell | Then | Together
Go: TypeAlias = Callable[[Any], None]


@dataclass
class TreeWorker:
    """Goes through a tree as a worker goes through a script: one reply at a time, until every branch waits."""

    lab: JournalLab
    is_over: bool = False
    keys: dict[int, str] = field(default_factory=dict)
    _waiting: dict[int, Go] = field(default_factory=dict)
    _taken: int = 0

    def start(self, tree: Node) -> None:
        """Go on until every branch waits."""
        self._go(tree, "1", self._end)

    def _end(self, _: Any) -> None:
        replay = self.lab.replay
        self.is_over = replay is None or replay.may_end()

    def _go(self, node: Node, key: str, then: Go) -> None:
        match node:
            case Ask(prompt=prompt, otherwise=otherwise):
                after = then
                if otherwise is not None:
                    other = otherwise

                    def after(value: Any) -> None:
                        if value is None:
                            self._go(other, f"{key}.o", then)
                        else:
                            then(value)

                self._call(prompt, key, after)
            case Tell(message=message):
                self._tell(message)
                then(None)
            case Then(parts=parts):
                self._step(parts, 0, key, then)
            case Together(parts=parts):
                left = [len(parts)]

                def one_less(_: Any) -> None:
                    left[0] -= 1
                    if left[0] == 0:
                        then(None)

                for index, part in enumerate(parts):
                    self._go(part, f"{key}.{index}", one_less)

    def _step(self, parts: Sequence[Node], index: int, key: str, then: Go) -> None:
        if index == len(parts):
            then(None)
        else:
            self._go(parts[index], f"{key}.{index}", lambda _: self._step(parts, index + 1, key, then))

    def _call(self, prompt: str, key: str, then: Go) -> None:
        seq = len(self.keys) + 1
        self.keys[seq], self._waiting[seq] = key, then
        self.lab.broker.accept(Call(id=seq, key=key, prompt=prompt, options={}, line=1))

    def _tell(self, message: str) -> None:
        told = Logged(at=self.lab.clock.wall(), message=message)
        if self.lab.replay is None or not self.lab.replay.narrated(told):
            self.lab.journal.write(told)

    async def settle(self) -> None:
        """Take replies as they come, until nothing happens any more without time."""
        while True:
            await self.lab.settle()
            if self._taken == len(self.lab.replied):
                if self.lab.replay is not None and not self.lab.replay.is_over:
                    self.lab.replay.idle()
                    continue
                return
            seq = self.lab.replied[self._taken]
            self._taken += 1
            self._waiting.pop(seq)(self.lab.replies[seq])

    async def run_out(self) -> None:
        """Let time pass until the script has ended, or diverged."""
        await self.settle()
        while not self.is_over and not self.lab.divergences:
            assert self.lab.clock.jump(), "the script waits for ever"
            await self.settle()
