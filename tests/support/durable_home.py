"""A person whose runs keep a journal: a small script, and agents that answer at once."""

import json
from pathlib import Path

from support.command_line import Finished, Home

SETTINGS = """
[store]
lease_seconds = 30.0
kill_grace_seconds = 0.5
poll_seconds = 0.2

[providers.mine]
type = "command"
argv = ["{agent}"]

[queues.nightly]
max_running = 3
{more}
"""
ASKS = '''
from loopwarden_engine import agent, log, phase


def main(args):
    """Ask as often as is wished."""
    phase("asking")
    answers = []
    for n in range(args["n"]):
        answers.append(agent(f"question {n}"))
        log(f"answer {n}")
    return answers
'''


def durable_home(
    root: Path, *, more: str = "", agent: str = "cat > /dev/null\necho asked >> asked\necho yes\n"
) -> Home:
    """A home with these settings as the user's own, and the script `asks.py`."""
    home = Home(root)
    (root / "config/loopwarden").mkdir(parents=True, mode=0o700)
    text = SETTINGS.format(agent=home.agent(agent), more=more)
    home.settings(text).rename(root / "config/loopwarden/loopwarden.toml")
    (root / "asks.py").write_text(ASKS)
    return home


def asking(home: Home, command: str, n: int, *options: str, most: int = 10) -> Finished:
    """`run` or `submit` the script with `n` questions."""
    args = json.dumps({"n": n})
    head = (command, "asks.py", "--args-json", args, "--max-total-agents", str(most))
    return home.run(*head, "--workspace", str(home.workspace), "--json", *options)


def asked(home: Home) -> int:
    """How often an agent was started."""
    path = home.workspace / "asked"
    return len(path.read_text().splitlines()) if path.exists() else 0
