"""Taking credentials out of texts: a program or an endpoint may repeat in an error the key that it was given.

What is taken out of is what goes to receipts, observers and breakers: reasons, evidence, notes, progress. What an agent
answers stays as it is, and so do its streams, which are kept in private files.
"""

import contextlib
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from loopwarden.display import CUT_MARK
from loopwarden.provider import AgentFailed, AgentReply, AgentRequest, ProviderStartError
from loopwarden.providers.home import read_credentials

REMOVED: Final = "[secret]"
MIN_VALUE_CHARS: Final = 8
"""Shorter texts are no secrets, and taking them out would leave no sentence whole."""
MIN_TOKEN_CHARS: Final = 20
MAX_TOKENS: Final = 1000
_TELLING_NAME: Final = re.compile(r"KEY|TOKEN|SECRET|PASS|AUTH|CREDENTIAL|COOKIE|HEADER", re.IGNORECASE)
_PASSWORD_IN_URL: Final = re.compile(r"://[^/@\s]*?:([^/@\s]+)@")
_TOKEN: Final = re.compile(rf"[A-Za-z0-9_.~+/=-]{{{MIN_TOKEN_CHARS},}}")


@dataclass(frozen=True, slots=True)
class Secrets:
    """Texts that must not be shown."""

    values: tuple[str, ...] = field(default=(), repr=False)
    """The longest first, since one may be part of another."""

    @classmethod
    def of(cls, values: Iterable[str]) -> "Secrets":
        """These texts, as far as they are there."""
        return cls(tuple(sorted({value for value in values if value}, key=len, reverse=True)))

    @classmethod
    def given(cls, variables: Mapping[str, str], files: Iterable[str] = ()) -> "Secrets":
        """What a program is given: variables whose names tell that they are secret, and the tokens in `files`."""
        found = []
        for name, value in variables.items():
            if _TELLING_NAME.search(name):
                found += [word for word in (value, *value.split()) if len(word) >= MIN_VALUE_CHARS]
            found += _PASSWORD_IN_URL.findall(value)
        for file in files:
            # That it cannot be read is said where it is copied.
            with contextlib.suppress(ProviderStartError):
                found += _TOKEN.findall(read_credentials(file).decode("utf-8", "replace"))[:MAX_TOKENS]
        return cls.of(found)

    def without(self, text: str) -> str:
        """`text` with the secrets taken out."""
        for value in self.values:
            text = text.replace(value, REMOVED)
        return self._without_beginning(text) if text.endswith(CUT_MARK) else text

    def _without_beginning(self, text: str) -> str:
        """What was cut may end in the middle of a secret, and half a key is too much of it."""
        for value in self.values:
            for length in range(min(len(value), len(text)) - 1, MIN_VALUE_CHARS - 1, -1):
                if text.endswith(value[:length], 0, -1):
                    return f"{text[: -length - 1]}{REMOVED}{CUT_MARK}"
        return text

    def scrub(self, failed: AgentFailed) -> None:
        """Take the secrets out of all texts of a failure."""
        failed.reason = self.without(failed.reason)
        failed.args = (failed.reason,)
        failed.notes = tuple(map(self.without, failed.notes))
        failed.evidence = None if failed.evidence is None else self.without(failed.evidence)

    async def kept(self, request: AgentRequest, ask: Callable[[AgentRequest], Awaitable[AgentReply]]) -> AgentReply:
        """Ask, and let the secrets through to nobody. Raises as `ask`."""
        if not self.values:
            return await ask(request)
        progress, remark = request.progress, request.remark
        request = replace(
            request,
            progress=lambda words: progress(self.without(words)),
            remark=lambda words: remark(self.without(words)),
        )
        try:
            reply = await ask(request)
        except AgentFailed as failed:
            self.scrub(failed)
            raise
        return replace(reply, notes=tuple(map(self.without, reply.notes)))
