"""The report of a round, and the host's own gate for it.

`loop.py` checks the same rules by its own code in the worker. Neither trusts the other (design section 10).
"""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, assert_never, cast

from loopwarden.visible import is_clean, is_visible, trim
from loopwarden_engine.plain import JsonObject, JsonValue, compact_json

ReportStatus: TypeAlias = Literal["continue", "complete", "blocked"]

REPORT_KEYS: Final = ("status", "summary", "evidence", "nextSteps", "blocker")

REPORT_SCHEMA: Final[JsonObject] = {
    "type": "object",
    "properties": {
        "status": {"type": "string", "enum": ["continue", "complete", "blocked"]},
        "summary": {"type": "string"},
        "evidence": {"type": "array", "items": {"type": "string"}},
        "nextSteps": {"type": "array", "items": {"type": "string"}},
        "blocker": {"type": "string"},
    },
    "required": ["status", "summary", "evidence", "nextSteps", "blocker"],
    "additionalProperties": False,
}
"""The shape only. Meaning is left to the two gates: breaking a rule is an error of the loop, not a failed agent."""


class ReportBroken(ValueError):
    """A value is not a report that keeps the rules. The message is one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What the agent of a round says. A claim of the agent: nothing in it was verified."""

    status: ReportStatus
    summary: str
    evidence: tuple[str, ...]
    next_steps: tuple[str, ...]
    blocker: str

    def to_json(self) -> JsonObject:
        """The five keys in their usual order, camelCase."""
        return {
            "status": self.status,
            "summary": self.summary,
            "evidence": list(self.evidence),
            "nextSteps": list(self.next_steps),
            "blocker": self.blocker,
        }


def decode_report(value: JsonValue, *, max_chars: int, name: str = "the report") -> Report:
    """Decode a report of at most `max_chars` code points of compact JSON.

    `name` begins the sentence of an error. Raises `ReportBroken`.
    """
    report = _decode_shape(value, name)
    length = len(compact_json(value))
    if length > max_chars:
        raise ReportBroken(f"{name} has {length} characters as compact JSON, and {max_chars} are allowed")
    _check_texts(report, name)
    _check_meaning(report, name)
    return report


def handoff_text(report: Report) -> str:
    """The form in which a handoff stands in the next prompt: compact JSON, keys in their usual order."""
    return compact_json(report.to_json())


def _decode_shape(value: JsonValue, name: str) -> Report:
    if type(value) is not dict:
        raise ReportBroken(f"{name} is not a JSON object")
    missing = [key for key in REPORT_KEYS if key not in value]
    if missing:
        raise ReportBroken(f"{name} lacks the key {missing[0]}")
    if len(value) > len(REPORT_KEYS):
        raise ReportBroken(f"{name} has more keys than {', '.join(REPORT_KEYS)}")
    status = _text(value["status"], f"{name}: status")
    if status not in ("continue", "complete", "blocked"):
        raise ReportBroken(f"{name}: status is none of continue, complete, blocked")
    return Report(
        status=cast("ReportStatus", status),
        summary=_text(value["summary"], f"{name}: summary"),
        evidence=_texts(value["evidence"], f"{name}: evidence"),
        next_steps=_texts(value["nextSteps"], f"{name}: nextSteps"),
        blocker=_text(value["blocker"], f"{name}: blocker"),
    )


def _text(value: JsonValue, name: str) -> str:
    if type(value) is not str:
        raise ReportBroken(f"{name} is not a text")
    return value


def _texts(value: JsonValue, name: str) -> tuple[str, ...]:
    if type(value) is not list:
        raise ReportBroken(f"{name} is not a list")
    return tuple(_text(item, f"{name}[{index}]") for index, item in enumerate(value))


def _check_texts(report: Report, name: str) -> None:
    for key, text in _named_texts(report):
        if text != trim(text):
            raise ReportBroken(f"{name}: {key} begins or ends with space")
        if not is_clean(text):
            raise ReportBroken(f"{name}: {key} holds a control character other than tab and line feed")
        if not is_visible(text) and (key != "blocker" or text):
            raise ReportBroken(f"{name}: {key} holds no visible character")


def _named_texts(report: Report) -> list[tuple[str, str]]:
    texts = [("summary", report.summary), ("blocker", report.blocker)]
    texts += [(f"evidence[{index}]", text) for index, text in enumerate(report.evidence)]
    texts += [(f"nextSteps[{index}]", text) for index, text in enumerate(report.next_steps)]
    return texts


def _check_meaning(report: Report, name: str) -> None:
    match report.status:
        case "continue":
            rules = [
                (bool(report.next_steps), "says continue and names no next step"),
                (not report.blocker, "says continue and names a blocker"),
            ]
        case "complete":
            rules = [
                (bool(report.evidence), "says complete and gives no evidence"),
                (not report.next_steps, "says complete and names next steps"),
                (not report.blocker, "says complete and names a blocker"),
            ]
        case "blocked":
            rules = [(bool(report.blocker), "says blocked and names no blocker")]
        case _:
            assert_never(report.status)
    for kept, breach in rules:
        if not kept:
            raise ReportBroken(f"{name} {breach}")
