"""A receipt as a person reads it."""

import shlex
from datetime import datetime
from pathlib import Path

from loopwarden.cli.provider_words import usage_words
from loopwarden.display import dollars, duration, plural, shown_json, shown_line, shown_text
from loopwarden.receipt import AgentRecord, AttemptRecord, CheckRecord, Receipt
from loopwarden.run_folder import ERRORS, OUTPUT, PROMPT, is_live

_TIMES = (
    ("for the run", "runDeadlineSeconds"),
    ("for an agent", "agentTimeoutSeconds"),
    ("for a check", "checkTimeoutSeconds"),
)
_KINDS = {
    "first": "as the script asked",
    "redo": "again after an interruption",
    "retry": "again by the policy",
    "wait": "again after the rate limit",
    "fallback": "in place of the other",
}
_ARGUMENT_CHARS = 300
_LABEL_CHARS = 60
_REASON_CHARS = 400
_VERDICT_CHARS = 160
_TAIL_CHARS = 2000
_RESULT_CHARS = 8000


def verdict(receipt: Receipt, *, live: bool = False) -> str:
    """The ending in one line. What an agent said is called a report; only a check of the host verifies."""
    if receipt.stop_reason is None:
        waiting = [agent.waiting_until for agent in receipt.agents if agent.waiting_until is not None]
        waits = f", waiting until {moment(min(waiting))}" if waiting else ""
        return f"still running{waits}" if live else "did not end: its host was killed"
    if receipt.failure is not None:
        place = f" (line {receipt.failure.line} of the script)" if receipt.failure.line is not None else ""
        return f"{receipt.failure.code}: {shown_line(receipt.failure.message, _TAIL_CHARS)}{place}"
    sentence = shown_line(receipt.sentence or "the run ended")
    if receipt.standing != "complete":
        return f"{sentence}{_why_not(receipt)}"
    if receipt.verified is None:
        return f"{sentence}; not verified ({'the checks did not finish' if receipt.checks else 'no check'})"
    commands = ", ".join(_command(check) for check in receipt.checks)
    if receipt.verified:
        return f"{sentence}; verified by: {commands}"
    failed = ", ".join(f"{_command(check)} ({_ending(check)})" for check in receipt.checks if not _passed(check))
    return f"{sentence}; not verified, the check failed: {failed or commands}"


def _why_not(receipt: Receipt) -> str:
    """What stood in the way, in the words of an agent or of its provider, for those who see the ending alone."""
    match receipt.standing:
        case "blocked":
            blocker = None if receipt.last_handoff is None else receipt.last_handoff.get("blocker")
            return f": {shown_line(blocker, _VERDICT_CHARS)}" if isinstance(blocker, str) and blocker else ""
        case "round-failed":
            failed = [agent for agent in receipt.agents if agent.failure_class is not None]
            if not failed:
                return ""
            reason = shown_line(failed[-1].reason or "", _VERDICT_CHARS)
            return f" ({failed[-1].failure_class}: {reason})" if reason else f" ({failed[-1].failure_class})"
        case _:
            return ""


def receipt_text(
    receipt: Receipt, folder: Path | None, *, body: str = "", paths: bool = False, standing: str | None = None
) -> str:
    """The whole receipt. `body` is the result in words; `paths` lists where prompt and output of each agent lie.

    `standing` takes the place of the first line, for a run of which the store knows more than its receipt.
    """
    lines = [
        verdict(receipt, live=folder is not None and is_live(folder)) if standing is None else standing,
        "",
        *_facts(receipt, folder),
        *_agents(receipt, folder, paths=paths),
        *_checks(receipt),
    ]
    lines += [f"  problem      {shown_line(problem)}" for problem in receipt.problems]
    result = body or (shown_json(receipt.result) if receipt.result is not None else "")
    if result:
        lines += ["", "  result", _indented(shown_text(result, _RESULT_CHARS))]
    elif receipt.last_handoff is not None:
        lines += ["", "  last good handoff", _indented(shown_text(shown_json(receipt.last_handoff), _RESULT_CHARS))]
    return "\n".join(lines)


def _facts(receipt: Receipt, folder: Path | None) -> list[str]:
    cap = receipt.limits.get("maxTotalAgents")
    extra = receipt.attempts - receipt.agents_started
    repeats = f", and {plural(extra, 'repeat')}" if extra > 0 else ""
    ended_at = receipt.ended_at
    has_begun = receipt.journal is None or receipt.journal.epoch > 0  # else no host has had it
    rows = [
        ("run", receipt.run_id),
        ("loop", f"{receipt.script}  {receipt.script_digest}"),
        *(("argument", f"{name}: {_argument(value)}") for name, value in receipt.args.items()),
        ("continues", receipt.continues),
        ("workspace", receipt.workspace),
        *_worktree(receipt),
        ("provider", receipt.provider),
        ("started" if has_begun else "submitted", moment(receipt.started_at)),
        ("took", duration(max(0.0, ended_at - receipt.started_at)) if has_begun and ended_at is not None else None),
        ("agents", f"{plural(receipt.agents_started, 'agent')} started, at most {cap:,}{repeats}" if cap else None),
        ("used", _used(receipt)),
        ("limits", _limits(receipt)),
        ("decided by", receipt.decided_by),
        ("walls", _walls(receipt)),
        ("settings", receipt.settings_digest),
        ("folder", None if folder is None else str(folder)),
        ("journal", _journal(receipt)),
    ]
    return [f"  {name:<12} {shown_line(value)}" for name, value in rows if value is not None]


def _worktree(receipt: Receipt) -> list[tuple[str, str]]:
    made = receipt.worktree
    if made is None:
        return []
    return [
        ("worktree", made.path),
        ("branch", f"{made.branch}, from commit {made.commit[:12]} of {made.repository}; both are kept"),
        *(("note", note) for note in made.notes),
    ]


def _journal(receipt: Receipt) -> str | None:
    """What is noted to verify the journal with later: a head that was known before shows what was cut off."""
    journal = receipt.journal
    if journal is None:
        return None
    claims = f", claimed {journal.epoch} times" if journal.epoch > 1 else ""
    return f"entry {journal.seq:,}, head {journal.head}{claims}"


def _used(receipt: Receipt) -> str | None:
    """Tokens and money of all agents. What nobody measured is said, so that a sum is not taken for the whole."""
    known = usage_words(receipt.usage)
    unknown = receipt.attempts_of_unknown_cost
    if known is None or not unknown:
        return known
    return f"{known}; without the cost of {plural(unknown, 'attempt')}, which is not known"


def _argument(value: object) -> str:
    text = value if isinstance(value, str) else shown_json(value, indent=None)
    return shown_line(text, _ARGUMENT_CHARS)


def _limits(receipt: Receipt) -> str | None:
    shown = [(name, receipt.limits.get(key)) for name, key in _TIMES]
    limits = [f"{duration(seconds)} {name}" for name, seconds in shown if seconds]
    cost = receipt.limits.get("maxCostUsd")
    return ", ".join([*limits, *([f"{dollars(cost)} in all"] if cost else [])]) or None


def _walls(receipt: Receipt) -> str | None:
    """None while nobody knows: a worker says which walls stand around it, also when none does."""
    fallen = [f"{name} does not stand ({why})" for name, why in receipt.walls.items() if why != "stands"]
    standing = [name for name, why in receipt.walls.items() if why == "stands"]
    return "; ".join(([f"{', '.join(standing)} stand"] if standing else []) + fallen) or None


def _agents(receipt: Receipt, folder: Path | None, *, paths: bool) -> list[str]:
    lines = [""] if receipt.agents else []
    for agent in receipt.agents:
        lines.append(f"  {_agent_line(agent, receipt.provider)}")
        lines += [f"       {line}" for line in _asks(agent)]
        lines += [f"       {shown_line(note, _REASON_CHARS)}" for note in agent.notes]
        if paths and folder is not None and agent.folder is not None:
            lines += [f"       {path}" for path in agent_files(folder, agent)]
    return lines


def _agent_line(agent: AgentRecord, usual_provider: str) -> str:
    """One agent on one line; its provider where that is another one than the run's."""
    by = f", by {shown_line(agent.provider, _LABEL_CHARS)}" if agent.provider != usual_provider else ""
    state = "running" if agent.waiting_until is None else f"waiting until {moment(agent.waiting_until)}"
    took = "" if agent.seconds is None else f" after {duration(agent.seconds)}"
    kind = f" ({shown_line(agent.failure_class)})" if agent.failure_class else ""
    reason = f": {shown_line(agent.reason, _REASON_CHARS)}" if agent.reason else ""
    return f"#{agent.seq:<3} {shown_line(agent.label, _LABEL_CHARS)}{by}  {agent.outcome or state}{took}{kind}{reason}"


def _asks(agent: AgentRecord) -> list[str]:
    """The attempts of one agent. A single one has its ending in the line of the agent already."""
    if len(agent.asks) == 1:
        return _evidence_and_usage(agent.asks[0])
    lines = []
    for ask in agent.asks:
        paused = f" after waiting {duration(ask.paused_seconds)}" if ask.paused_seconds else ""
        took = "" if ask.seconds is None else f" after {duration(ask.seconds)}"
        kind = f" ({shown_line(ask.failure_class)})" if ask.failure_class else ""
        reason = f": {shown_line(ask.reason, _REASON_CHARS)}" if ask.reason else ""
        lines.append(
            f"attempt {ask.number}, {shown_line(ask.provider, _LABEL_CHARS)}, {_KINDS[ask.kind]}{paused}: "
            f"{ask.outcome or 'running'}{took}{kind}{reason}"
        )
        lines += [f"  {line}" for line in _evidence_and_usage(ask)]
    return lines


def _evidence_and_usage(ask: AttemptRecord) -> list[str]:
    used = usage_words(ask.usage)
    return [
        *([f"evidence: {shown_line(ask.evidence, _REASON_CHARS)}"] if ask.evidence else []),
        *([f"used {used}"] if used else []),
    ]


def agent_files(folder: Path, agent: AgentRecord) -> list[Path]:
    """The files of one agent that are there. A receipt is a file too, so nothing outside of its folder is named."""
    if agent.folder is None:
        return []
    kept = (folder / agent.folder).resolve()
    if not kept.is_relative_to(folder.resolve()):
        return []
    return [kept / name for name in (PROMPT, OUTPUT, ERRORS) if (kept / name).is_file()]


def _checks(receipt: Receipt) -> list[str]:
    lines = [""] if receipt.checks else []
    for check in receipt.checks:
        lines.append(f"  check        {_command(check)}: {_ending(check)} after {duration(check.seconds)}")
        if not _passed(check) and check.output_tail.strip():
            lines.append(_indented(shown_text(check.output_tail.strip()[-_TAIL_CHARS:])))
    return lines


def _passed(check: CheckRecord) -> bool:
    return check.exit == 0 and check.problem is None


def _ending(check: CheckRecord) -> str:
    return shown_line(check.problem) if check.problem is not None else f"exit {check.exit}"


def _command(check: CheckRecord) -> str:
    return shown_line(shlex.join(check.argv))


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def moment(seconds: float) -> str:
    """Unix time for a person, in the time zone of this machine."""
    try:
        return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S %z")
    except (ValueError, OverflowError, OSError):
        return "at an impossible time"
