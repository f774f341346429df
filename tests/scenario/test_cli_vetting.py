"""`loopwarden vet` and `loopwarden approve`, as a person and as CI type them; and hosts that need an approval."""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from loopwarden import Script
from loopwarden.lock_file import Approval, approvals_in, policy_version, write_lock
from support.command_line import COMPLETE, Finished, Home
from support.loop_on_disk import LoopOnDisk

GOOD = '''"""Ask about each file."""

from loopwarden_engine import agent, phase


def main(args):
    phase("asking")
    return [agent(f"look at {file}", label="look") for file in args["files"]]
'''
BAD = """import os

def main(args):
    print(args)
    return os.environ
"""
UNBOUNDED = """from loopwarden_engine import agent

def main(args):
    while agent("go on", schema={"type": "object"}):
        pass
"""
ALL = pytest.mark.parametrize


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path)
    for name, text in (("good.py", GOOD), ("bad.py", BAD), ("unbounded.py", UNBOUNDED)):
        (tmp_path / name).write_text(text)
    return home


@pytest.fixture
def lock(home: Home) -> Path:
    """The lock of who has no settings."""
    return home.root / "config/loopwarden/loopwarden.lock"


@pytest.fixture
def disk(home: Home, monkeypatch: pytest.MonkeyPatch) -> LoopOnDisk:
    """An installed loop of another distribution."""
    return LoopOnDisk(home.root / "site", monkeypatch)


def entries(lock: Path) -> dict[str, Approval]:
    return {entry.name: entry for entry in approvals_in(lock)}


# ---- vet


def test_an_accepted_script_is_described_line_by_line(home: Home) -> None:
    done = home.run("vet", "good.py", "--args-json", '{"files": ["a", "b", "c"]}')
    lines = done.out.splitlines()
    assert (done.exit, done.err, lines[0]) == (0, "", "good.py: accepted")
    assert {line[2:12].strip(): line[13:] for line in lines[1:8]} == {
        "says": "Ask about each file.",
        "hooks": "agent (line 8), phase (line 7)",
        "agents": "line 8: without a schema; options label; in the loop of line 8, which has a bound",
        "bound": "agents <= len(args.files)",
        "at most": "3 agents",
        "source": lines[6][13:],
        "contract": "none",
    }
    assert lines[6][13:].startswith("sha256:")


def test_every_violation_is_a_line_that_editors_understand(home: Home) -> None:
    done = home.run("vet", "bad.py")
    assert (done.exit, done.err) == (1, "")
    first, second, last = done.out.splitlines()
    assert first.startswith("bad.py:1:8: import: a script cannot import 'os'")
    assert second == "bad.py:4:5: name: the name 'print' is not allowed; use log() to tell observers something"
    assert last == "bad.py: refused: 2 violations"


def test_the_line_that_makes_a_script_unbounded_is_named(home: Home) -> None:
    done = home.run("vet", "unbounded.py")
    assert done.exit == 0
    rows = [line.strip() for line in done.out.splitlines()]
    assert "bound      unknown" in rows
    assert any(row.startswith("line 4: ") for row in rows)
    assert "agents     line 4: with a schema; in the loop of line 4, which has no visible bound" in rows


def test_several_scripts_are_vetted_together_and_the_worst_decides(home: Home) -> None:
    done = home.run("vet", "good.py", "gone.py", "bad.py", "nobody", "ralph", "--json")
    assert (done.exit, done.json["exit"]) == (1, 1)
    good, gone, bad, nobody, ralph = done.json["scripts"]
    assert [good["bound"]["text"], good["agents"], good["problem"]] == ["agents <= len(args.files)", None, None]
    assert gone["problem"] == "the script gone.py cannot be read: no such file or directory"
    assert [(each["line"], each["rule"]) for each in bad["violations"]] == [(1, "import"), (4, "name")]
    assert "there is no loop 'nobody'" in nobody["problem"]
    assert (ralph["bound"]["text"], ralph["violations"]) == ("agents <= args.maxRounds", [])
    assert home.run("vet", "good.py", "gone.py").exit == 2
    assert home.run("vet", "good.py", "ralph").exit == 0


def test_nothing_of_a_script_or_a_folder_runs(home: Home) -> None:
    """Neither the module body nor a contract beside it."""
    folder = home.root / "loop"
    folder.mkdir()
    touch = f"open({str(home.root / 'ran')!r}, 'w')\n"
    (folder / "loop.py").write_text("x = 1 / 0\n" + GOOD)
    for name in ("__init__.py", "contract.py"):
        (folder / name).write_text(touch)
    assert home.run("vet", "loop").exit == 0
    assert home.run("vet", "loop/loop.py").exit == 0
    assert home.run("approve", "./loop", "--by", "ann").exit == 0
    assert not (home.root / "ran").exists()


def test_the_arguments_of_an_installed_loop_go_through_its_contract(home: Home) -> None:
    done = home.run("vet", "ralph", "--args", '{"objective": "x", "maxRounds": 7}')
    assert "at most    7 agents" in done.out
    refused = home.run("vet", "ralph", "--args", '{"objective": "x", "maxRounds": 0}')
    assert (refused.exit, refused.out) == (2, "")
    assert "maxRounds must be at least 1" in refused.err
    assert "name one PATH" in home.run("vet", "good.py", "bad.py", "--args", "{}").err


def test_settings_that_cannot_be_used_do_not_keep_from_vetting(home: Home) -> None:
    config = home.settings("nonsense = 1\n")
    done = home.run("vet", "good.py", "ralph", "--config", str(config))
    assert done.exit == 0
    assert done.err.startswith("note: the shipped settings hold, since yours cannot be used: ")
    config = home.settings("[loops.ralph]\nmax_rounds = 0\n")
    assert home.run("vet", "ralph", "--config", str(config)).exit == 0


def test_a_name_that_is_both_a_loop_and_a_folder_is_told_apart(home: Home) -> None:
    (home.root / "ralph").mkdir()
    (home.root / "ralph" / "loop.py").write_text(GOOD)
    assert "write ./ralph for the folder" in home.run("vet", "ralph").out
    assert home.run("vet", "./ralph", "--json").json["scripts"][0]["name"] == "ralph"
    assert home.run("vet", ".", cwd=home.root / "ralph").exit == 0
    assert "holds no loop.py" in home.run("vet", ".").out


def test_an_installed_loop_and_the_folder_it_came_from_are_one_while_they_are_the_same(
    home: Home, disk: LoopOnDisk
) -> None:
    """As for an author, who stands beside the project; a difference that nobody sees must not be approved."""
    shutil.copytree(disk.folder, home.root / "votes")
    assert home.run("vet", "votes", "--json").json["scripts"][0]["place"] == "votes"
    disk.change("rules.py")
    assert "differ; write ./votes for the folder" in home.run("vet", "votes").out


def test_the_folder_of_a_project_stands_for_its_one_loop(home: Home) -> None:
    """As `loopwarden new` makes it; of several loops one has to be named."""
    assert home.run("new", "drafts").exit == 0
    done = home.run("vet", "drafts", "--json")
    assert [each["place"] for each in done.json["scripts"]] == ["drafts/src/drafts/loop.py"]
    numbered = home.run("vet", "drafts", "--args", '{"task": "t", "maxRounds": 2}').out
    assert "4 agents; these are the arguments of main" in numbered
    (home.root / "drafts" / "src" / "other").mkdir()
    (home.root / "drafts" / "src" / "other" / "loop.py").write_text(GOOD)
    assert "name one of them: drafts/src/drafts, drafts/src/other" in home.run("vet", "drafts").out


@ALL(
    ("text", "words"),
    [
        (b"def main(args):\n    return '\xff'\n", "line 2 holds the byte 0xff"),
        (b"#" * 600_000, ":1:1: too-large: the script"),
        (b"def main(args):\n    return " + b"(" * 20_000, "refused"),
    ],
)
def test_a_text_that_is_hardly_a_script_is_refused_in_a_sentence(home: Home, text: bytes, words: str) -> None:
    (home.root / "odd.py").write_bytes(text)
    done = home.run("vet", "odd.py")
    assert done.exit in (1, 2)
    assert words in done.out
    assert len(done.out) < 2000


def test_what_a_script_holds_cannot_mislead_a_terminal(home: Home) -> None:
    (home.root / "sly.py").write_text('"""\x1b[2J\u202e says"""\nimport \u017fys\ndef main(args):\n    return 1\n')
    (home.root / "fair\u202e.py").write_text('"""\x1b]0;x\x07 says\u200b"""\ndef main(args):\n    return 1\n')
    for name in ("sly.py", "fair\u202e.py"):
        for options in ((), ("--json",)):
            done = home.run("vet", name, *options)
            assert done.out
            assert not set(done.out + done.err) & set("\x1b\x07\u202e\u200b")


# ---- approve


def test_what_is_approved_is_shown_and_written(home: Home, lock: Path) -> None:
    done = home.run("approve", "good.py", "unbounded.py", "--by", " ann ")
    assert (done.exit, done.err) == (0, "")
    approved = entries(lock)["good"]
    assert (approved.contract, approved.bound, approved.approved_by) == ("none", "agents <= len(args.files)", "ann")
    assert approved.policy == policy_version()
    for shown in (f"approved good, by ann, in {lock}", approved.source, approved.policy, approved.bound):
        assert shown in done.out
    assert entries(lock)["unbounded"].bound.startswith("unknown: line 4: ")


def test_approving_again_takes_the_place_and_says_what_it_was(home: Home, lock: Path) -> None:
    home.run("approve", "good.py", "unbounded.py", "--by", "ann")
    text, before = lock.read_text(), entries(lock)["good"]
    done = home.run("approve", "good.py", "--by", "bob")
    said = f"good is approved as it is, by ann on {before.when}, in {lock}: nothing was written"
    assert f"{said}, and bob is not recorded; to put bob there, withdraw good first\n" in done.out
    assert f"{said}\n" in home.run("approve", "good.py", "--by", " ann ").out
    assert lock.read_text() == text
    (home.root / "good.py").write_text(GOOD + "\n")
    done = home.run("approve", "good.py", "--by", "bob", "--json")
    (made,) = done.json["approved"]
    assert (made["isNew"], made["before"]["source"], made["before"]["approvedBy"]) == (True, before.source, "ann")
    assert made["source"] == entries(lock)["good"].source != before.source
    assert len(approvals_in(lock)) == 2


def test_one_refused_script_and_nothing_is_approved(home: Home, lock: Path) -> None:
    done = home.run("approve", "good.py", "bad.py", "--by", "ann")
    assert done.exit == 1
    assert "bad.py:1:8: import: " in done.out
    assert done.out.endswith("nothing was approved\n")
    assert home.run("approve", "good.py", "gone.py", "--by", "ann").exit == 2
    assert not lock.exists()


@ALL(
    ("options", "words"),
    [
        ((), "name what is approved"),
        (("good.py",), "--by NAME is required"),
        (("good.py", "--by", " "), "--by NAME is required"),
        (("good.py", "--by", "x" * 201), "approved_by"),
        (("good.py", "--by", "ann\nx = 1"), "--by is one line"),
        (("good.py", "--by", "ann\x1b[2J"), "without characters that nobody can see; give a plain name"),
        (("good.py", "--by", "ann\u202e"), "--by is one line"),
        (("good.py", "--by", "ann", "--lock", "nowhere/our.lock"), "nowhere does not exist; make it first"),
        (("good.py", "--by", "ann", "--check"), "--by belongs to an approval"),
        (("--check", "--withdraw", "good"), "give one of them"),
        (("good.py", "--withdraw", "good"), "no PATH beside it"),
        (("--withdraw", "good"), "loopwarden.lock does not exist, so it does not name 'good'"),
        (("--withdraw", "ralph"), "does not name 'ralph'; the loop of this name comes with Loopwarden"),
        (("good.py", "other/good.py", "--by", "ann"), "two of these have the name 'good'"),
    ],
)
def test_what_cannot_be_meant_is_refused(home: Home, lock: Path, options: tuple[str, ...], words: str) -> None:
    (home.root / "other").mkdir()
    (home.root / "other" / "good.py").write_text(GOOD)
    done = home.run("approve", *options)
    assert (done.exit, done.out) == (2, "")
    assert words in done.err
    assert not lock.exists()
    assert not (home.root / "nowhere").exists()


def test_who_approves_may_have_any_name_that_can_be_read(home: Home, lock: Path) -> None:
    assert home.run("approve", "good.py", "--by", 'Jörg "Jö" Åström-李').exit == 0
    assert entries(lock)["good"].approved_by == 'Jörg "Jö" Åström-李'


def test_settings_that_cannot_be_used_may_name_another_lock(home: Home, lock: Path) -> None:
    config = str(home.settings("nonsense = 1\n"))
    done = home.run("approve", "good.py", "--by", "ann", "--config", config)
    assert (done.exit, "the shipped settings hold" in done.err) == (2, False)
    assert not lock.exists()
    given = home.root / "given.lock"
    assert home.run("approve", "good.py", "--by", "ann", "--config", config, "--lock", str(given)).exit == 0
    assert list(entries(given)) == ["good"]


def test_an_approval_is_withdrawn_by_its_name(home: Home, lock: Path) -> None:
    home.run("approve", "good.py", "unbounded.py", "--by", "ann")
    source = entries(lock)["good"].source
    done = home.run("approve", "--withdraw", "good", "--json")
    assert (done.exit, done.json["withdrawn"][0]["source"]) == (0, source)
    assert list(entries(lock)) == ["unbounded"]


def test_a_lock_that_is_none_is_never_written_over(home: Home) -> None:
    broken = home.root / "our.lock"
    broken.write_text("version = 1\nscripts = 3\n")
    for options in (("good.py", "--by", "ann"), ("--withdraw", "good"), ("--check",)):
        done = home.run("approve", "--lock", str(broken), *options)
        assert (done.exit, done.out) == (2, "")
        assert "our.lock cannot be used: scripts: there is no such key" in done.err
    assert broken.read_text() == "version = 1\nscripts = 3\n"


def test_a_folder_and_the_installed_loop_are_one_approval(home: Home, disk: LoopOnDisk, lock: Path) -> None:
    assert home.run("approve", "votes", "--by", "ann").exit == 0
    by_name = entries(lock)["votes"]
    for path in (str(disk.folder), str(disk.folder / "loop.py")):
        done = home.run("approve", path, "--by", "ann", "--json")
        approved = done.json["approved"][0]
        assert (approved["source"], approved["contract"]) == (by_name.source, by_name.contract)
        assert by_name.contract.startswith("sha256:")


# ---- check


def findings(done: Finished) -> set[tuple[str | None, str]]:
    return {(each["name"], each["rule"]) for each in done.json["findings"]}


def test_a_check_says_what_differs_and_changes_nothing(home: Home, disk: LoopOnDisk, lock: Path) -> None:
    assert findings(home.run("approve", "--check", "--json")) == {("votes", "not-approved")}
    home.run("approve", "votes", "good.py", "--by", "ann")
    done = home.run("approve", "--check")
    assert done.exit == 0
    assert done.out.splitlines() == [
        "note: good is approved, and not installed here",
        "2 scripts checked: all as approved",
    ]
    text = lock.read_text()
    disk.change("rules.py")
    done = home.run("approve", "--check", "--json")
    assert (done.exit, findings(done)) == (1, {("votes", "contract")})
    disk.change("loop.py")
    done = home.run("approve", "--check", "--json")
    assert findings(done) == {("votes", "source"), ("votes", "contract")}
    (disk.folder / "rules.py").write_text("CALLS = 3\n")
    done = home.run("approve", "--check", "--json")
    assert (done.exit, findings(done)) == (1, {("votes", "source")})
    done = home.run("approve", "--check", "good.py", "gone.py", "--json")
    assert findings(done) == {("gone.py", "unreadable")}
    assert lock.read_text() == text


def test_a_check_of_one_lock_alone_does_not_count_the_shipped_one(home: Home) -> None:
    assert home.run("approve", "--check", "ralph").exit == 0
    home.run("approve", "good.py", "--by", "ann", "--lock", "our.lock")
    done = home.run("approve", "--check", "ralph", "--lock", "our.lock", "--json")
    assert (done.exit, findings(done)) == (1, {("ralph", "not-approved")})


def test_a_check_says_that_there_is_no_lock(home: Home, lock: Path) -> None:
    done = home.run("approve", "--check")
    assert done.exit == 0
    assert done.out.splitlines() == [f"note: the lock {lock} does not exist", "1 script checked: all as approved"]
    done = home.run("approve", "--check", "good.py", "--lock", "nolock.lock", "--json")
    assert (done.exit, findings(done)) == (1, {(None, "lock"), ("good", "not-approved")})
    shown = home.run("approve", "--check", "good.py", "--lock", "nolock.lock").out
    assert "the lock: lock: the lock nolock.lock does not exist\n" in shown


def test_a_check_that_compared_nothing_of_the_lock_does_not_pass(home: Home) -> None:
    home.run("approve", "good.py", "--by", "ann")
    done = home.run("approve", "--check", "--json")
    assert (done.exit, findings(done)) == (1, {(None, "not-compared")})
    assert "name the files or folders: `loopwarden approve --check PATH…`" in home.run("approve", "--check").out
    assert home.run("approve", "--check", "good.py").exit == 0


def test_a_check_finds_another_bound_than_vetting_does(home: Home, lock: Path) -> None:
    home.run("approve", "good.py", "unbounded.py", "--by", "ann")
    lock.write_text(lock.read_text().replace('"agents <= len(args.files)"', '"agents <= 2"'))
    done = home.run("approve", "--check", "good.py", "unbounded.py")
    assert (done.exit, done.err) == (1, "")
    assert done.out == "good: bound: the lock says agents <= 2, vetting finds agents <= len(args.files)\n"
    assert home.run("approve", "--check", "unbounded.py").exit == 0
    home.run("approve", "good.py", "--by", "ann")
    assert home.run("approve", "--check", "good.py").exit == 0


def test_a_check_names_what_vetting_refuses_though_the_lock_names_it(home: Home, lock: Path) -> None:
    """As after an upgrade of the language policy, or of a lock that was written by hand."""
    home.run("approve", "good.py", "--by", "ann")
    write_lock(lock, [entries(lock)["good"].model_copy(update={"name": "bad", "source": Script.from_text(BAD).digest})])
    done = home.run("approve", "--check", "bad.py", "--json")
    assert (done.exit, findings(done)) == (1, {("bad", "refused")})
    assert "bad.py:4:5: name: the name 'print' is not allowed" in done.json["findings"][1]["message"]


def test_a_check_does_not_pass_where_nothing_can_be_vetted(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.run("approve", "good.py", "--by", "ann")
    monkeypatch.setattr(sys, "platform", "darwin")
    done = home.run("approve", "--check", "good.py", "--json")
    assert (done.exit, done.json["failure"]["code"]) == (2, "CONFINEMENT_UNAVAILABLE")


def test_a_check_says_that_a_script_has_another_name_in_the_lock(home: Home) -> None:
    home.run("approve", "good.py", "--by", "ann")
    (home.root / "copy.py").write_text(GOOD)
    done = home.run("approve", "--check", "copy.py")
    assert (done.exit, done.out.splitlines()[0]) == (0, "note: copy has the source of good in the lock")


def test_a_check_names_what_it_could_not_look_at(home: Home) -> None:
    folder = home.root / "mine"
    folder.mkdir(mode=0o700)
    (folder / "ralph.py").write_text(GOOD)
    done = home.run("approve", "--check", "--config", str(home.settings(f'script_folders = ["{folder}"]\n')))
    assert "note: the loop ralph comes from the distribution loopwarden" in done.out


def test_a_check_finds_another_policy_and_a_hand_in_the_lock(home: Home, lock: Path) -> None:
    home.run("approve", "good.py", "unbounded.py", "--by", "ann")
    good, unbounded = approvals_in(lock)
    write_lock(lock, [good.model_copy(update={"policy": "RestrictedPython 8.0, sha256:0"}), unbounded])
    done = home.run("approve", "--check", "good.py", "unbounded.py", "--json")
    assert (done.exit, findings(done)) == (1, {("good", "policy")})
    assert home.run("approve", "--check", "unbounded.py").exit == 0
    lock.write_text(lock.read_text() + "# mine\n")
    assert findings(home.run("approve", "--check", "unbounded.py", "--json")) == {(None, "lock")}
    assert home.run("approve", "good.py", "--by", "ann").exit == 0
    assert home.run("approve", "--check", "good.py", "unbounded.py").exit == 0


def test_the_shipped_lock_is_as_approve_writes_it(home: Home) -> None:
    """After a change of a shipped loop or of the language policy: look at it, then `make lock`."""
    folder = Path(__file__).parents[2] / "scripts" / "loopwarden_scripts"
    copy = home.root / "shipped.lock"
    copy.write_text((folder / "loopwarden.lock").read_text())
    done = home.run("approve", "--check", str(folder / "ralph"), "--lock", str(copy), "--json")
    # Another release of RestrictedPython is not a fault of this tree; our own rules are the digest behind it.
    (approval,) = approvals_in(copy)
    left = findings(done) - (
        {("ralph", "policy")} if approval.policy.split()[-1] == policy_version().split()[-1] else set()
    )
    assert left == set()
    assert approval.bound == "agents <= args.maxRounds"


# ---- hosts that need an approval


def required(home: Home, more: str = "") -> str:
    """Settings beside which the lock lies."""
    return str(home.settings(f"require_approved = true\n{more}"))


def test_a_run_needs_an_approval_of_every_byte(home: Home) -> None:
    config, agent = required(home), home.agent("cat > /dev/null; echo ok")
    run = ("--config", config, "--args-json", '{"files": ["a"]}', "--max-total-agents", "1", "--workspace")
    options = (*run, str(home.workspace), "--json", "--", str(agent))
    never = home.run("run", "good.py", *options)
    assert (never.exit, never.json["failure"]["code"]) == (2, "SCRIPT_REJECTED")
    assert "is not approved" in never.json["failure"]["message"]
    assert home.run("approve", "good.py", "--by", "ann", "--config", config).exit == 0
    assert (home.root / "loopwarden.lock").exists()
    assert home.run("run", "good.py", *options).exit == 0
    (home.root / "good.py").write_text(GOOD + "\n")
    changed = home.run("run", "good.py", *options)
    details = changed.json["failure"]["details"]
    assert (changed.exit, changed.json["failure"]["code"]) == (2, "SCRIPT_REJECTED")
    assert details["approved"]["source"] != details["found"]["source"]
    for digests in details.values():
        assert digests["source"] in changed.json["failure"]["message"]
    dry = home.run("run", "good.py", *options[:-3], "--dry-run", *options[-3:])
    assert (dry.exit, dry.json["failure"]["code"]) == (2, "SCRIPT_REJECTED")


def test_shipped_loops_need_no_approval_of_their_own(home: Home) -> None:
    config = required(home)
    assert home.ralph("--config", config, "--max-rounds", "1", agent=home.reporting(COMPLETE)).exit == 0


def test_shipped_loops_can_be_withdrawn_and_approved_like_others(home: Home) -> None:
    config = required(home, "approve_shipped = false\n")
    run = ("--config", config, "--max-rounds", "1", "--json")
    refused = home.ralph(*run, agent=home.reporting(COMPLETE))
    assert (refused.exit, refused.json["failure"]["code"]) == (2, "SCRIPT_REJECTED")
    done = home.run("approve", "--check", "--config", config, "--json")
    assert (done.exit, findings(done)) == (1, {("ralph", "not-approved")})
    assert "names, also of the shipped loops (approve_shipped = false)" in home.run("doctor", "--config", config).out
    assert home.run("approve", "ralph", "--by", "ann", "--config", config).exit == 0
    assert home.ralph(*run, agent=home.reporting(COMPLETE)).exit == 0
    assert home.run("approve", "--withdraw", "ralph", "--config", config).err == ""
    assert home.ralph(*run, agent=home.reporting(COMPLETE)).exit == 2


def test_who_withdraws_a_shipped_loop_is_told_that_it_is_approved_still(home: Home) -> None:
    home.run("approve", "ralph", "--by", "ann")
    done = home.run("approve", "--withdraw", "ralph")
    assert done.exit == 0
    assert "note: the loop of this name comes with Loopwarden" in done.err
    again = home.run("approve", "--withdraw", "ralph")
    assert (again.exit, "set approve_shipped = false in the settings" in again.err) == (2, True)


def test_a_lock_in_the_workspace_is_refused(home: Home) -> None:
    config = required(home, f'lock = "{home.workspace}/our.lock"\n')
    done = home.ralph("--config", config, "--json", agent=home.reporting(COMPLETE))
    assert (done.exit, done.json["failure"]["code"]) == (2, "SETTINGS_IN_WORKSPACE")
    assert "the lock of approved scripts" in done.json["failure"]["message"]


def test_a_lock_that_others_may_write_refuses_even_shipped_loops(home: Home) -> None:
    config = required(home)
    home.run("approve", "good.py", "--by", "ann", "--config", config)
    (home.root / "loopwarden.lock").chmod(0o666)
    done = home.ralph("--config", config, "--json", agent=home.reporting(COMPLETE))
    assert (done.exit, done.json["failure"]["code"]) == (2, "SCRIPT_REJECTED")
    assert "can be written by others" in done.json["failure"]["message"]
    examined = home.run("doctor", "--config", config)
    assert examined.exit == 1
    assert "problem: the lock" in examined.out


def test_doctor_says_who_approved_what(home: Home, disk: LoopOnDisk) -> None:
    config = required(home)
    loops = {loop["name"]: loop for loop in home.run("doctor", "--config", config, "--json").json["loops"]}
    assert loops["ralph"]["approval"]["approvedBy"] == "the Loopwarden authors"
    assert (loops["votes"]["approval"], loops["votes"]["needsApproval"]) == (None, True)
    shown = home.run("doctor", "--config", config).out
    assert "NOT APPROVED, so it does not run here" in shown
    assert f"require_approved           what {home.root / 'loopwarden.lock'} names" in shown
    without = home.run("doctor").out
    assert "approved by" not in without
    assert "NOT APPROVED" not in without


def test_a_run_that_waits_and_was_withdrawn_is_shown_with_the_reason(home: Home) -> None:
    agent = home.agent("cat > /dev/null; echo ok")
    config = required(home, f'default_provider = "mine"\n[providers.mine]\ntype = "command"\nargv = ["{agent}"]\n')
    home.run("approve", "good.py", "--by", "ann", "--config", config)
    options = ("--config", config, "--args-json", '{"files": []}', "--max-total-agents", "1", "--workspace")
    submitted = home.run("submit", "good.py", *options, str(home.workspace))
    assert submitted.exit == 0
    before = home.run("runs", "--config", config).out
    home.run("approve", "--withdraw", "good", "--config", config)
    after = home.run("runs", "--config", config).out
    assert "not approved here" not in before
    assert "not approved here" in after
    resumed = home.run("resume", submitted.out.strip(), "--config", config)
    assert (resumed.exit, "'good' is not approved" in resumed.err) == (2, True)
    assert home.run("runs", "--config", config).out == after


def test_a_bound_is_required_of_runs_of_the_command_line(home: Home) -> None:
    config = str(home.settings("require_bound = true\n"))
    run: tuple[Any, ...] = ("--config", config, "--max-total-agents", "1", "--workspace", str(home.workspace), "--json")
    args = ("--args-json", '{"files": ["a", "b"]}')
    unbounded = home.run("run", "unbounded.py", *run, "--", "true")
    assert (unbounded.exit, unbounded.json["failure"]["code"]) == (2, "SCRIPT_REJECTED")
    assert (unbounded.json["failure"]["line"], os.listdir(home.workspace)) == (4, [])
    above = home.run("run", "good.py", *args, *run, "--", "true")
    assert (above.exit, above.json["failure"]["code"]) == (2, "INVALID_REQUEST")
    assert "could start 2 agents (agents <= len(args.files)), above the 1" in above.json["failure"]["message"]
    assert "bound" in home.run("doctor", "--config", config).out
    assert home.ralph("--config", config, "--max-rounds", "1", agent=home.reporting(COMPLETE)).exit == 0
