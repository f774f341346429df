"""What is approved is a content: source and code of the contract, as they were when they were imported."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from loopwarden import PlainContract, Script, ScriptRejected, approvals
from loopwarden.approvals import ApprovedSources, LockApprovals, shipped_lock
from loopwarden.code_digest import NO_CONTRACT, approved_form, folder_code, package_code
from loopwarden.lock_file import Approval, approvals_in, now, write_lock
from loopwarden.replay_version import contract_digest
from loopwarden_scripts import ralph
from support.loop_on_disk import LoopOnDisk

PLAIN = Script.from_text("def main(args):\n    return 1\n", name="plain")


def entry(script: Script[object, object], name: str | None = None) -> Approval:
    contract = approved_form(script.contract).digest
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
    assert approved_form(PLAIN.contract).digest == NO_CONTRACT


def test_the_digest_by_path_is_that_of_the_imported_contract(disk: LoopOnDisk) -> None:
    assert folder_code(disk.folder) == approved_form(disk.script().contract)
    shipped = Path(ralph.__file__).parent
    assert folder_code(shipped) == approved_form(ralph.script.contract)


@pytest.mark.parametrize("name", ["contract.py", "rules.py", "loop.py", "deep/below.py", "fast.so", "lost.pyc"])
def test_one_byte_of_any_file_that_python_imports_is_another_contract(disk: LoopOnDisk, name: str) -> None:
    (disk.folder / "deep").mkdir()
    for made in ("deep/below.py", "fast.so", "lost.pyc"):
        (disk.folder / made).write_text("x\n")
    before = disk.script()
    disk.change(name)
    after = disk.script()
    assert approved_form(before.contract) != approved_form(after.contract)
    assert contract_digest(before.contract) != contract_digest(after.contract)


@pytest.mark.parametrize("name", ["__pycache__/rules.cpython-311.pyc", "README.md", "deep/__pycache__/x.pyc"])
def test_what_python_makes_of_the_files_or_does_not_import_changes_nothing(disk: LoopOnDisk, name: str) -> None:
    before = folder_code(disk.folder)
    (disk.folder / name).parent.mkdir(parents=True, exist_ok=True)
    (disk.folder / name).write_text("x")
    assert folder_code(disk.folder) == before


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
    assert approved_form(disk.script().contract) != approved_form(before.contract)


def test_the_code_that_was_imported_counts_not_what_lies_there_later(disk: LoopOnDisk) -> None:
    script = disk.script()
    before = folder_code(disk.folder)
    disk.change("rules.py")
    assert approved_form(script.contract) == before
    assert folder_code(disk.folder) != before


def test_a_package_with_a_link_to_a_folder_cannot_be_approved(disk: LoopOnDisk, tmp_path: Path, lock: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (disk.folder / "linked").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ScriptRejected, match=r"cannot be approved: .* a link to a folder, 'linked'"):
        LockApprovals(lock).check(disk.script())


def test_a_contract_without_a_package_or_a_file_cannot_be_approved(disk: LoopOnDisk, lock: Path) -> None:
    (disk.folder / "__init__.py").unlink()
    assert "no __init__.py" in str(folder_code(disk.folder).problem)

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
    before, after = approved_form(approved.contract).digest, approved_form(changed.contract).digest
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
    assert approval.contract == approved_form(ralph.script.contract).digest


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
