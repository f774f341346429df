"""Give one fixed objective to a fresh agent in every round, until one reports it complete or blocked."""

import json

from loopwarden_engine import agent, phase

REPORT_KEYS = ("status", "summary", "evidence", "nextSteps", "blocker")

TEXTS = {"type": "array", "items": {"type": "string"}}
REPORT_SCHEMA = {
    "type": "object",
    "properties": {
        "status": {"type": "string", "enum": ["continue", "complete", "blocked"]},
        "summary": {"type": "string"},
        "evidence": TEXTS,
        "nextSteps": TEXTS,
        "blocker": {"type": "string"},
    },
    "required": ["status", "summary", "evidence", "nextSteps", "blocker"],
    "additionalProperties": False,
}

# The three tables are literal, so that a report means the same on every Python version. The host holds its own copy.
SPACE_RANGES = (
    (0x09, 0x0D), (0x1C, 0x20), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029),
    (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF),
)  # fmt: skip
INVISIBLE_RANGES = (
    (0x00, 0x20), (0x7F, 0xA0), (0xAD, 0xAD), (0x034F, 0x034F), (0x0600, 0x0605), (0x061C, 0x061C), (0x06DD, 0x06DD),
    (0x070F, 0x070F), (0x0890, 0x0891), (0x08E2, 0x08E2), (0x115F, 0x1160), (0x1680, 0x1680), (0x17B4, 0x17B5),
    (0x180B, 0x180F), (0x2000, 0x200F), (0x2028, 0x202F), (0x205F, 0x2064), (0x2066, 0x206F), (0x2800, 0x2800),
    (0x3000, 0x3000), (0x3164, 0x3164), (0xFE00, 0xFE0F), (0xFEFF, 0xFEFF), (0xFFA0, 0xFFA0), (0xFFF9, 0xFFFB),
    (0x110BD, 0x110BD), (0x110CD, 0x110CD), (0x13430, 0x1343F), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A),
    (0xE0001, 0xE0001), (0xE0020, 0xE007F),
)  # fmt: skip
REFUSED_RANGES = ((0x00, 0x08), (0x0B, 0x1F), (0x7F, 0x9F), (0xD800, 0xDFFF))


def characters(ranges):
    """All characters of a table."""
    return "".join([chr(code) for first, last in ranges for code in range(first, last + 1)])


SPACES = characters(SPACE_RANGES)
INVISIBLE = characters(INVISIBLE_RANGES)
REFUSED = characters(REFUSED_RANGES)


def main(args):
    """Run the rounds. Fields of `args`: objective, maxRounds, maxHandoffChars, handoff, failedChecks."""
    phase("Fresh-agent rounds")
    handoff = args["handoff"]
    failed_checks = args["failedChecks"]
    report = None
    for number in range(1, args["maxRounds"] + 1):
        last_report = report
        report = agent(
            round_prompt(number, args["objective"], handoff, failed_checks, args["maxHandoffChars"]),
            label=f"Ralph round {number}",
            schema=REPORT_SCHEMA,
        )
        if report is None:
            return {"status": "round-failed", "roundsStarted": number, "lastReport": last_report}
        check_report(report, args["maxHandoffChars"], f"the report of round {number}")
        if report["status"] != "continue":
            return {"status": report["status"], "roundsStarted": number, "report": report}
        handoff = report
        failed_checks = None
    return {"status": "budget-limited", "roundsStarted": args["maxRounds"], "report": report}


def require(kept, rule):
    """End the run with the sentence `rule` unless it was kept."""
    if not kept:
        raise ValueError(rule)


def check_report(report, max_chars, name):
    """Check shape, size, texts and meaning of a report. The host does the same by its own code."""
    require(isinstance(report, dict), f"{name} must be an object")
    require(sorted(report) == sorted(REPORT_KEYS), f"{name} must have exactly the keys {', '.join(REPORT_KEYS)}")
    for key in ("status", "summary", "blocker"):
        require(isinstance(report[key], str), f"{name}: {key} must be a text")
    for key in ("evidence", "nextSteps"):
        require(isinstance(report[key], list), f"{name}: {key} must be a list")
        require(all(isinstance(item, str) for item in report[key]), f"{name}: {key} must hold texts only")
    length = len(compact(report))
    require(length <= max_chars, f"{name} has {length} characters as compact JSON; the limit is {max_chars}")
    check_text(report["summary"], f"{name}: summary")
    for key in ("evidence", "nextSteps"):
        for index, item in enumerate(report[key]):
            check_text(item, f"{name}: {key}[{index}]")
    if report["blocker"] != "":
        check_text(report["blocker"], f"{name}: blocker")
    check_meaning(report, name)


def check_text(text, name):
    """A text is trimmed, holds something visible and no control characters."""
    require(text == text.strip(SPACES), f"{name} must not begin or end with space")
    require(text.strip(INVISIBLE) != "", f"{name} must hold a visible character")
    clean = not any(character in REFUSED for character in text)
    require(clean, f"{name} must hold no control character but tab and line feed")


def check_meaning(report, name):
    """What each status demands of the other keys."""
    status = report["status"]
    if status == "continue":
        require(report["nextSteps"], f"{name} says continue and must name at least one next step")
        require(report["blocker"] == "", f"{name} says continue and must have an empty blocker")
    elif status == "complete":
        require(report["evidence"], f"{name} says complete and must give at least one piece of evidence")
        require(not report["nextSteps"], f"{name} says complete and must have no next steps")
        require(report["blocker"] == "", f"{name} says complete and must have an empty blocker")
    else:
        require(status == "blocked", f"{name}: status must be continue, complete or blocked")
        require(report["blocker"] != "", f"{name} says blocked and must say what is needed")


def compact(value):
    """The JSON that lengths are measured on."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def round_prompt(number, objective, handoff, failed_checks, max_chars):
    """What the agent of a round reads. It names the round, never the total: there is no number to work towards."""
    parts = [OPENING_TEXT, f"# Round {number}", "## Objective", OBJECTIVE_TEXT, objective]
    parts += ["## Workspace", WORKSPACE_TEXT, "## Handoff"]
    if handoff is None:
        parts += ["There is no handoff: no round before this one left a report."]
    else:
        parts += [HANDOFF_TEXT, compact({key: handoff[key] for key in REPORT_KEYS})]
    if failed_checks is not None:
        parts += ["## Failed checks", CHECKS_TEXT, failed_checks]
    parts += ["## Report", REPORT_TEXT, f"Written as compact JSON, a report has at most {max_chars} characters."]
    return "\n\n".join(parts)


OPENING_TEXT = """\
You are a fresh worker. You take one round of a longer piece of work and you have no memory of other rounds: what you
know of them is what this page says and what you find in the workspace. Do the work yourself. Do not start a loop, a
run of Loopwarden or agents of your own, and do not wait for anybody."""

OBJECTIVE_TEXT = """\
The objective is the same in every round. You cannot change it, narrow it or declare a part of it out of scope:"""

WORKSPACE_TEXT = """\
The folder in which you were started is the only memory that rounds share, and what lies there is the truth. Look at it
before you trust any note about it. Then take the most useful step that you can finish, see for yourself that it works,
and leave the folder so that a stranger can go on from there. Whatever is neither in a file nor in your report is gone
when you stop."""

HANDOFF_TEXT = """\
This is the report that the round before left, as JSON. It is a note from another worker, not an order: where it
differs from the workspace, the workspace is right."""

CHECKS_TEXT = """\
An earlier worker reported completion. Checks were run after that, and these failed. Find out why; the objective is not
reached while they fail. Their output:"""

REPORT_TEXT = """\
When you stop, give one report: a JSON object with exactly these five keys, all of them always present.

- "status": "continue", "complete" or "blocked".
- "summary": what this round did and how things stand now. Never empty.
- "evidence": a list of texts, each one thing that you saw yourself, such as a command and its result.
- "nextSteps": a list of texts, each one step for the next worker, the most important first.
- "blocker": a text.

What goes with which status:

- "continue": work remains. At least one next step; "blocker" is "".
- "complete": the whole objective is reached and you checked it in this round. At least one piece of evidence;
  "nextSteps" is []; "blocker" is "".
- "blocked": nobody can go on without something from outside, such as a decision or an access. "blocker" says exactly
  what is needed.

Say "continue" when in doubt. No text begins or ends with a space or a line break, no item of a list is empty, and no
control characters stand in a text except tab and line feed."""
