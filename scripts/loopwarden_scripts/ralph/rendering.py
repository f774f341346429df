"""A result in words: what the agent claimed, in sentences that claim nothing more."""

import json
from typing import Final, assert_never

from loopwarden.contract import Conclusion, Standing
from loopwarden.visible import escape_invisible
from loopwarden_scripts.ralph.report import Report
from loopwarden_scripts.ralph.result import Reported, Result, RoundFailed

TRUNCATION_MARK: Final = "\n…[truncated]"


def conclude(result: Result) -> Conclusion:
    """Say what `result` means. The body shows the report as JSON, with what a reader cannot see as JSON escapes."""
    rounds = _rounds(result.rounds_started)
    match result:
        case Reported(status="complete", report=report):
            standing, sentence = Standing.COMPLETE, f"agent reported completion after {rounds}"
        case Reported(status="blocked", report=report):
            standing, sentence = Standing.BLOCKED, f"agent reported a blocker after {rounds}"
        case Reported(report=report):
            standing = Standing.ROUNDS_USED
            sentence = f"the limit of {rounds} is used up; the agent reported work remaining"
        case RoundFailed(last_report=last_report):
            sentence = f"round {result.rounds_started} failed before it gave a report"
            body = (
                "No round before it left a report." if last_report is None else f"Last report:\n{_shown(last_report)}"
            )
            return Conclusion(standing=Standing.ROUND_FAILED, sentence=sentence, body=body)
        case _:
            assert_never(result)
    return Conclusion(standing=standing, sentence=sentence, body=f"Final report:\n{_shown(report)}")


def render_text(conclusion: Conclusion, max_chars: int) -> str:
    """The text for a parent, at most `max_chars` code points long, truncation mark included."""
    text = f"{conclusion.sentence}\n\n{conclusion.body}" if conclusion.body else conclusion.sentence
    if len(text) <= max_chars:
        return text
    kept_chars = max_chars - len(TRUNCATION_MARK)
    return TRUNCATION_MARK[: max(max_chars, 0)] if kept_chars < 0 else text[:kept_chars] + TRUNCATION_MARK


def _rounds(number: int) -> str:
    return "1 round" if number == 1 else f"{number} rounds"


def _shown(report: Report) -> str:
    return escape_invisible(json.dumps(report.to_json(), ensure_ascii=False, indent=2))
