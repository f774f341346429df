"""What the command line prints: results on standard output, everything about the way there on the error stream.

With `--json` standard output holds one JSON object, for refusals too. Nothing printed here is read as markup, and
nothing can move the cursor: see `loopwarden.display`.
"""

import io
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TextIO

from loopwarden.display import shown_json, shown_line, shown_text
from loopwarden.failures import MEANINGS, Failure, LoopwardenError

_MAX_MESSAGE_CHARS = 20_000


class OutputLostError(LoopwardenError):
    """Standard output cannot be written. The message is a sentence."""


@dataclass(frozen=True, slots=True)
class Output:
    """Where one invocation prints to."""

    json: bool = False

    def say(self, text: str) -> None:
        """Something about the way, on the error stream. A run does not end because nobody listens."""
        with suppress(OSError):
            sys.stderr.write(text + "\n")
            sys.stderr.flush()

    def show(self, text: str) -> None:
        """The result for a person, on standard output; nothing with `--json`."""
        if not self.json:
            _print(text)

    def show_object(self, value: Mapping[str, Any]) -> None:
        """The result for a program, on standard output; nothing without `--json`."""
        if self.json:
            _print(shown_json(value))

    def refuse(self, failure: Failure) -> int:
        """Print a refusal and return the exit code that its kind has."""
        code = MEANINGS[failure.code].exit
        if self.json:
            self.show_object({"exit": code, "failure": failure.to_json()})
        else:
            self.say(f"loopwarden: {shown_text(failure.message, _MAX_MESSAGE_CHARS)}")
            for violation in _violations(failure):
                self.say(f"  {violation}")
        return code

    def break_down(self, sentence: str, code: int) -> int:
        """Print a fault of ours and return the exit code."""
        if self.json:
            self.show_object({"exit": code, "internalError": sentence})
        else:
            self.say(f"loopwarden: {sentence}")
        return code


def _violations(failure: Failure) -> list[str]:
    """Each violation of the language policy on a line of its own."""
    shown: list[str] = []
    violations = failure.details.get("violations")
    for violation in violations if isinstance(violations, list | tuple) else ():
        if isinstance(violation, Mapping):
            hint = violation.get("hint")
            text = f"line {violation.get('line')}: {violation.get('message')}" + (f"; {hint}" if hint else "")
            shown.append(shown_line(text, 1000))
    return shown


def _print(text: str) -> None:
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputLostError(f"the output cannot be written: {(error.strerror or 'output error').lower()}") from None


def prepare_streams() -> None:
    """Make both streams usable whatever they are: a character that cannot be shown is shown as its escape."""
    if sys.stdout is None:  # closed by whoever started us
        sys.stdout = _nowhere()
    if sys.stderr is None:
        sys.stderr = _nowhere()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def give_up_output() -> None:
    """Nobody reads standard output any more, as when `head` left; Python must not find out again when it ends."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _nowhere() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")
