"""What the language policy refuses, as data. Kept apart from the policy, which only a worker may load."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One reason why a script may not run.

    `line` and `column` are 1-based and point into the script (column counts UTF-8 bytes, as the parser does),
    `rule` is a short stable word for machines, `message` says what is wrong, `hint` what to write instead.
    """

    line: int
    column: int
    rule: str
    message: str
    hint: str

    def __str__(self) -> str:
        """One line for a person."""
        return f"line {self.line}: {self.message} ({self.hint})"
