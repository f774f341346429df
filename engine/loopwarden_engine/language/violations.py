"""The exception that carries everything that the policy refuses in a script."""

from loopwarden_engine.violation import Violation

__all__ = ["ScriptRejected", "Violation"]


class ScriptRejected(Exception):
    """The script was refused before it ran. `violations` holds every reason, in source order, and is never empty."""

    def __init__(self, violations: tuple[Violation, ...]) -> None:
        if not violations:
            raise ValueError("a refusal needs at least one violation")
        super().__init__("; ".join(str(violation) for violation in violations[:20]))
        self.violations = violations
