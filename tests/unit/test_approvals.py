"""What is approved is a content: source and code of the contract, as they were when they were imported."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from loopwarden import PlainContract, Script, ScriptRejected, approvals
from loopwarden.approvals import ApprovedSources, LockApprovals, shipped_lock
from loopwarden.code_digest import NO_CONTRACT, ContractCode, approved_form, folder_code, package_code
from loopwarden.lock_file import Approval, approvals_in, now, write_lock
from loopwarden.replay_version import contract_digest
from loopwarden_scripts import ralph
from support.loop_on_disk import LoopOnDisk

PLAIN = Script.from_text("def main(args):\n    return 1\n", name="plain")


def form(script: Script[object, object]) -> ContractCode:
    """The code of its contract as a lock names it beside its source."""
    return approved_form(script.contract, script.digest)


def entry(script: Script[object, object], name: str | None = None) -> Approval:
    contract = form(script).digest
    assert contract is not None
    return Approval(
        name=name or script.name, source=script.digest, contract=contract, policy="any", bound="agents <= 1",
        approved_by="ann", approved_at=now(),
    )  # fmt: skip


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LoopOnDisk:
    return LoopOnDisk(tmp_path / "site", monkeypatch)


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return tmp_path / "loopwarden.lock"


# ---- the code of a contract


def test_a_script_without_a_contract_has_none() -> None:
    assert form(PLAIN).digest == NO_CONTRACT


def test_the_digest_by_path_is_that_of_the_imported_contract(disk: LoopOnDisk) -> None:
    script = disk.script()
    assert folder_code(disk.folder, script.digest) == form(script)
    assert folder_code(disk.folder, PLAIN.digest) == approved_form(script.contract, PLAIN.digest) != form(script)
    shipped = Path(ralph.__file__).parent
    assert folder_code(shipped, ralph.script.digest) == form(ralph.script)


@pytest.mark.parametrize(
    "name", ["contract.py", "rules.py", "deep/below.py", "fast.so", "loop.so", "loop.pyc", "deep/loop.py"]
)
def test_one_byte_of_any_file_that_python_imports_is_another_contract(disk: LoopOnDisk, name: str) -> None:
    (disk.folder / "deep").mkdir()
    for made in ("deep/below.py", "fast.so", "loop.so", "loop.pyc", "deep/loop.py"):
        (disk.folder / made).write_text((disk.folder / "loop.py").read_text())
    before = disk.script()
    disk.change(name)
    after = disk.script()
    assert form(before) != form(after)
    assert contract_digest(before.contract) != contract_digest(after.contract)


@pytest.mark.parametrize("name", ["__pycache__/rules.cpython-311.pyc", "README.md", "deep/__pycache__/x.pyc"])
def test_what_python_makes_of_the_files_or_does_not_import_changes_nothing(disk: LoopOnDisk, name: str) -> None:
    before = package_code(disk.folder)
    (disk.folder / name).parent.mkdir(parents=True, exist_ok=True)
    (disk.folder / name).write_text("x")
    assert package_code(disk.folder) == before


def test_one_byte_of_the_script_alone_changes_the_source_alone(disk: LoopOnDisk, lock: Path) -> None:
    before = disk.script()
    disk.change("loop.py")
    after = disk.script()
    assert before.digest != after.digest
    assert form(before) == form(after)
    assert contract_digest(before.contract) != contract_digest(after.contract)  # what replays go by has all of it
    write_lock(lock, [entry(before)])
    with pytest.raises(ScriptRejected, match=f"approved is the source {before.digest}, found was") as caught:
        LockApprovals(lock).check(after)
    assert "approved is the contract" not in caught.value.message


def beside(disk: LoopOnDisk, content: bytes) -> None:
    """Let the package have a `loop.py` that is not what its script is made of, which is in `script.py`."""
    package = disk.folder / "__init__.py"
    package.write_text(package.read_text().replace('with_name("loop.py")', 'with_name("script.py")'))
    (disk.folder / "script.py").write_bytes((disk.folder / "loop.py").read_bytes())
    (disk.folder / "loop.py").write_bytes(content)


def test_a_loop_file_that_is_not_the_script_counts_as_code_that_a_contract_can_import(
    disk: LoopOnDisk, lock: Path
) -> None:
    (disk.folder / "contract.py").write_text(
        (disk.folder / "contract.py").read_text().replace("votes_on_disk.rules", "votes_on_disk.loop")
    )
    beside(disk, b"CALLS = 3\n")
    approved = disk.script()
    write_lock(lock, [entry(approved)])
    LockApprovals(lock).check(approved)
    disk.change("loop.py")
    changed = disk.script()
    assert changed.digest == approved.digest
    with pytest.raises(ScriptRejected, match="approved is the contract"):
        LockApprovals(lock).check(changed)
    assert LockApprovals(lock).fitting([changed]) == []


def test_a_script_that_is_not_the_file_does_not_keep_the_file_out_of_the_contract(disk: LoopOnDisk, lock: Path) -> None:
    """Once approved, the text alone could be passed on, and the file beside the contract be another."""
    approved = disk.script()
    write_lock(lock, [entry(approved)])
    disk.change("loop.py")
    changed = replace(disk.script(), source=approved.source)
    with pytest.raises(ScriptRejected, match="approved is the contract") as caught:
        LockApprovals(lock).check(changed)
    assert "approved is the source" not in caught.value.message
    assert LockApprovals(lock).fitting([changed, disk.script()]) == []


def test_a_second_script_of_a_package_has_the_first_in_its_contract(disk: LoopOnDisk) -> None:
    first = disk.script()
    second = replace(first, name="second", source=PLAIN.source)
    assert form(second) != form(first)
    disk.change("loop.py")
    assert form(replace(disk.script(), source=PLAIN.source)) != form(second)
    (disk.folder / "loop.py").write_text(PLAIN.source)  # now the second is what `loop.py` holds
    now_first = replace(disk.script(), source=PLAIN.source)
    assert form(now_first) == form(first)
    assert form(now_first) != form(second)


@pytest.mark.parametrize("what", ["a byte order mark", "line breaks"])
def test_a_loop_file_with_other_bytes_than_the_source_that_was_read_from_it_counts(disk: LoopOnDisk, what: str) -> None:
    file = disk.folder / "loop.py"
    source = disk.script().digest
    data = file.read_bytes()
    file.write_bytes(b"\xef\xbb\xbf" + data if what == "a byte order mark" else data.replace(b"\n", b"\r\n"))
    assert Script.from_text(file.read_text(encoding="utf-8-sig")).digest == source
    assert folder_code(disk.folder, source).digest == package_code(disk.folder).digest


def test_a_contract_that_imports_its_script_runs_nothing_that_was_not_approved(disk: LoopOnDisk, lock: Path) -> None:
    file, contract = disk.folder / "loop.py", disk.folder / "contract.py"
    file.write_text(file.read_text() + "\n\nCALLS = 3\n")
    contract.write_text(contract.read_text().replace("votes_on_disk.rules", "votes_on_disk.loop"))
    approved = disk.script()
    write_lock(lock, [entry(approved)])
    file.write_text(file.read_text().replace("CALLS = 3", "CALLS = 4"))
    changed = disk.script()
    assert changed.contract.calls == 4
    # Neither with the text that was approved nor with that of the file.
    for script in (changed, replace(changed, source=approved.source)):
        with pytest.raises(ScriptRejected):
            LockApprovals(lock).check(script)


def test_a_loop_file_that_is_gone_is_another_contract(disk: LoopOnDisk) -> None:
    """What is imported as `loop` then is another file."""
    before, source = form(disk.script()), disk.script().digest
    (disk.folder / "loop.py").unlink()
    assert folder_code(disk.folder, source) != before


def test_a_loop_file_behind_a_link_is_what_it_holds(disk: LoopOnDisk, tmp_path: Path) -> None:
    before, source = form(disk.script()), disk.script().digest
    target = tmp_path / "elsewhere.py"
    (disk.folder / "loop.py").rename(target)
    (disk.folder / "loop.py").symlink_to(target)
    assert folder_code(disk.folder, source) == before
    target.write_text("CALLS = 4\n")
    assert folder_code(disk.folder, source) != before


def test_the_loop_file_that_was_imported_counts_not_what_lies_there_later(disk: LoopOnDisk) -> None:
    """A script that is made later, of the new text, with the contract that was imported before."""
    before = disk.script()
    disk.change("loop.py")
    later = replace(before, source=(disk.folder / "loop.py").read_text())
    assert form(later) != form(before)


def test_a_file_that_changed_its_name_is_another_contract(disk: LoopOnDisk) -> None:
    before = package_code(disk.folder)
    (disk.folder / "rules.py").rename(disk.folder / "rule.py")
    assert package_code(disk.folder) != before


def test_a_contract_below_its_loop_counts_with_all_of_the_package_of_the_loop(disk: LoopOnDisk) -> None:
    (disk.folder / "rule_book").mkdir()
    (disk.folder / "rule_book" / "__init__.py").touch()
    (disk.folder / "contract.py").rename(disk.folder / "rule_book" / "contract.py")
    package = disk.folder / "__init__.py"
    package.write_text(package.read_text().replace("votes_on_disk.contract", "votes_on_disk.rule_book.contract"))
    before = disk.script()
    disk.change("rules.py")
    assert form(disk.script()) != form(before)


def test_the_code_that_was_imported_counts_not_what_lies_there_later(disk: LoopOnDisk) -> None:
    script = disk.script()
    before = folder_code(disk.folder, script.digest)
    disk.change("rules.py")
    assert form(script) == before
    assert folder_code(disk.folder, script.digest) != before


def test_a_package_with_a_link_to_a_folder_cannot_be_approved(disk: LoopOnDisk, tmp_path: Path, lock: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (disk.folder / "linked").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ScriptRejected, match=r"cannot be approved: .* a link to a folder, 'linked'"):
        LockApprovals(lock).check(disk.script())


def test_a_contract_without_a_package_or_a_file_cannot_be_approved(disk: LoopOnDisk, lock: Path) -> None:
    (disk.folder / "__init__.py").unlink()
    assert "no __init__.py" in str(folder_code(disk.folder, PLAIN.digest).problem)

    names: dict[str, type[PlainContract]] = {}
    exec("class Typed(Base): pass", {"__name__": "nowhere", "Base": PlainContract}, names)
    typed = replace(PLAIN, contract=names["Typed"]())
    with pytest.raises(ScriptRejected, match="cannot be approved: the file with the code"):
        LockApprovals(lock).check(typed)
    assert LockApprovals(lock).fitting([typed]) == []


# ---- approvals


def test_approved_sources_are_those_alone() -> None:
    fixed = ApprovedSources([PLAIN.digest])
    fixed.check(PLAIN)
    assert fixed.sources() == {PLAIN.digest}
    with pytest.raises(ScriptRejected, match="not approved by this deployment") as caught:
        fixed.check(ralph.script)
    assert caught.value.details["found"] == {"source": ralph.script.digest}


def test_a_lock_approves_what_it_names_whatever_the_name_is(lock: Path) -> None:
    write_lock(lock, [entry(PLAIN, "another name")])
    follows = LockApprovals(lock)
    follows.check(PLAIN)
    assert PLAIN.digest in follows.sources()
    changed = replace(PLAIN, source=PLAIN.source + "\n")
    with pytest.raises(ScriptRejected, match=rf"does not name it\. Its source has the digest {changed.digest};"):
        follows.check(changed)


def test_a_changed_source_is_refused_with_both_digests(lock: Path) -> None:
    write_lock(lock, [entry(PLAIN)])
    changed = replace(PLAIN, source=PLAIN.source + "\n")
    with pytest.raises(ScriptRejected) as caught:
        LockApprovals(lock).check(changed)
    assert f"approved is the source {PLAIN.digest}, found was {changed.digest};" in caught.value.message
    assert caught.value.details["approved"] == {"source": PLAIN.digest, "contract": "none"}
    assert caught.value.details["found"] == {"source": changed.digest, "contract": "none"}


def test_a_changed_contract_is_refused_with_both_digests(disk: LoopOnDisk, lock: Path) -> None:
    approved = disk.script()
    write_lock(lock, [entry(approved)])
    follows = LockApprovals(lock)
    follows.check(approved)
    assert follows.fitting([approved, PLAIN]) == [approved]
    disk.change("rules.py")
    changed = disk.script()
    before, after = form(approved).digest, form(changed).digest
    with pytest.raises(ScriptRejected, match=f"approved is the contract {before}, found was {after};"):
        follows.check(changed)
    assert follows.fitting([changed]) == []


def test_the_source_of_a_loop_is_not_approved_without_its_contract(disk: LoopOnDisk, lock: Path) -> None:
    script = disk.script()
    write_lock(lock, [entry(script)])
    with pytest.raises(ScriptRejected, match="found was none"):
        LockApprovals(lock).check(Script.from_text(script.source, name=script.name))


def test_shipped_loops_are_approved_by_the_lock_that_came_with_them_alone(lock: Path, disk: LoopOnDisk) -> None:
    LockApprovals(lock).check(ralph.script)
    with pytest.raises(ScriptRejected, match="which does not exist"):
        LockApprovals(lock, shipped=False).check(ralph.script)
    # Another distribution brings a lock along: nobody looks at it.
    write_lock(disk.folder / "loopwarden.lock", [entry(disk.script())])
    with pytest.raises(ScriptRejected, match="is not approved"):
        LockApprovals(lock).check(disk.script())


def test_the_shipped_lock_is_current() -> None:
    """After a change of a shipped loop: look at it, then `make lock`."""
    path = shipped_lock()
    assert path is not None
    (approval,) = approvals_in(path, is_ours=True)
    assert (approval.name, approval.source) == ("ralph", ralph.script.digest)
    assert approval.contract == form(ralph.script).digest


@pytest.mark.parametrize(
    "spoil",
    [
        lambda lock: lock.chmod(0o666),
        lambda lock: lock.write_text("version = 1\nmore = 2\n"),
        lambda lock: lock.write_bytes(b"\xff"),
        lambda lock: (lock.unlink(), lock.mkdir()),
    ],
)
def test_a_lock_that_cannot_be_used_any_more_refuses_everything(lock: Path, spoil: Callable[[Path], object]) -> None:
    write_lock(lock, [entry(PLAIN)])
    follows = LockApprovals(lock)
    follows.check(PLAIN)
    spoil(lock)
    for script in (PLAIN, ralph.script):
        with pytest.raises(
            ScriptRejected, match=f"nothing is approved: the lock {re.escape(str(lock))} cannot be used"
        ):
            follows.check(script)
        assert follows.fitting([script]) == []
    assert follows.sources() == frozenset()


def test_a_lock_that_was_mended_holds_again(lock: Path) -> None:
    write_lock(lock, [entry(PLAIN)])
    follows = LockApprovals(lock)
    lock.chmod(0o666)
    assert follows.sources() == frozenset()
    lock.chmod(0o644)
    follows.check(PLAIN)


def test_what_is_withdrawn_or_removed_is_not_approved_any_more(lock: Path) -> None:
    write_lock(lock, [entry(PLAIN)])
    follows = LockApprovals(lock)
    follows.check(PLAIN)
    write_lock(lock, [])
    assert PLAIN.digest not in follows.sources()
    write_lock(lock, [entry(PLAIN)])
    follows.check(PLAIN)
    lock.unlink()
    assert PLAIN.digest not in follows.sources()


def test_a_lock_is_read_again_only_when_it_changed(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[Path] = []
    real = approvals.approvals_in

    def read(path: Path, *, is_ours: bool = False) -> tuple[Approval, ...]:
        reads.append(path)
        return real(path, is_ours=is_ours)

    monkeypatch.setattr(approvals, "approvals_in", read)
    moment = approvals.time.time() + 60
    monkeypatch.setattr(approvals.time, "time", lambda: moment)  # long after everything was written
    write_lock(lock, [entry(PLAIN)])
    follows = LockApprovals(lock, shipped=False)
    follows.check(PLAIN)
    follows.check(PLAIN)
    assert reads == [lock]
    write_lock(lock, [])
    assert follows.sources() == frozenset()
    assert reads == [lock, lock]
