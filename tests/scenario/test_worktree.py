"""Worktrees with real git: what a run gets, what is refused, and that nothing a repository configures is executed."""

import asyncio
import os
import stat
import subprocess
from pathlib import Path

import pytest

from loopwarden.failures import InvalidRequest
from loopwarden.worktree import Worktree, create_worktree, discard_worktree

AUTHOR = ("-c", "user.name=Tester", "-c", "user.email=tester@example.org")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A person without any configuration of git but what a test writes."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    return folder


def git(folder: Path, *arguments: str | Path) -> str:
    """Run git as a person would."""
    argv = ["git", *AUTHOR, *map(str, arguments)]
    done = subprocess.run(argv, cwd=folder, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return done.stdout.strip()


def repository(folder: Path) -> Path:
    """A repository with one commit: a file at its root, and one in `part`."""
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet", "--initial-branch=main")
    (folder / "file.txt").write_text("one\n")
    (folder / "part").mkdir()
    (folder / "part" / "inner.txt").write_text("two\n")
    commit(folder)
    return folder


def commit(folder: Path) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "-m", "work")


def made(workspace: Path, tmp_path: Path, run_id: str = "run-1", *, timeout_seconds: float = 60) -> Worktree:
    place = tmp_path / "state" / "worktrees"
    return asyncio.run(create_worktree(workspace, place, run_id, timeout_seconds=timeout_seconds))


def canary(folder: Path, touched: Path) -> Path:
    """A program that says that it ran, and passes its input on."""
    program = folder / "canary"
    program.write_text(f"#!/bin/sh\necho ran >> '{touched}'\ncat\n")
    program.chmod(0o755)
    return program


def nothing_is_left(repository: Path, tmp_path: Path) -> bool:
    branches = git(repository, "branch", "--list", "loopwarden/*", "--format=%(refname)")
    listed = git(repository, "worktree", "list", "--porcelain").count("worktree ")
    place = tmp_path / "state" / "worktrees"
    return (branches, listed, list(place.iterdir()) if place.exists() else []) == ("", 1, [])


# ---- what a run gets


def test_a_run_gets_a_private_checkout_of_head_on_a_branch_of_its_own(tmp_path: Path) -> None:
    workspace = repository(tmp_path / "repo")
    worktree = made(workspace, tmp_path)
    assert worktree == Worktree(
        path=tmp_path / "state" / "worktrees" / "run-1", folder=tmp_path / "state" / "worktrees" / "run-1",
        branch="loopwarden/run-1", commit=git(workspace, "rev-parse", "HEAD"), repository=workspace, notes=(),
    )  # fmt: skip
    assert (worktree.folder / "file.txt").read_text() == "one\n"
    assert git(worktree.path, "symbolic-ref", "HEAD") == "refs/heads/loopwarden/run-1"
    assert git(workspace, "symbolic-ref", "HEAD") == "refs/heads/main"
    assert stat.S_IMODE(worktree.path.parent.stat().st_mode) == 0o700


def test_the_person_takes_the_work_as_the_module_says(tmp_path: Path) -> None:
    workspace = repository(tmp_path / "repo")
    worktree = made(workspace, tmp_path)
    (worktree.folder / "new.txt").write_text("by an agent\n")
    commit(worktree.path)
    assert not (workspace / "new.txt").exists()
    git(workspace, "merge", "--quiet", worktree.branch)
    assert (workspace / "new.txt").read_text() == "by an agent\n"
    git(workspace, "worktree", "remove", worktree.path)
    git(workspace, "branch", "-d", worktree.branch)
    assert nothing_is_left(workspace, tmp_path)


def test_two_runs_of_one_repository_get_two_worktrees(tmp_path: Path) -> None:
    workspace = repository(tmp_path / "repo")

    async def both() -> list[Worktree]:
        place = tmp_path / "worktrees"
        return await asyncio.gather(*(create_worktree(workspace, place, name) for name in ("a", "b")))

    one, two = asyncio.run(both())
    (one.folder / "file.txt").write_text("changed\n")
    assert (two.folder / "file.txt").read_text() == "one\n"


def test_a_subfolder_as_workspace_has_its_counterpart(tmp_path: Path) -> None:
    root = repository(tmp_path / "repo")
    worktree = made(root / "part", tmp_path)
    assert (worktree.repository, worktree.folder) == (root, worktree.path / "part")
    assert (worktree.folder / "inner.txt").read_text() == "two\n"


@pytest.mark.parametrize(
    "name", ["with space", "ünï-日本", "-rf", "a\nb", "wild*[x]", ":(top)", os.fsdecode(b"\xff\xfe")]
)
def test_odd_names_of_repository_and_subfolder_are_just_names(tmp_path: Path, name: str) -> None:
    root = repository(tmp_path / name)
    (root / name).mkdir()
    (root / name / "x").touch()
    commit(root)
    worktree = made(root / name, tmp_path)
    assert (worktree.folder / "x").exists()


def test_uncommitted_changes_are_counted_and_left_alone(tmp_path: Path) -> None:
    workspace = repository(tmp_path / "repo")
    (workspace / "file.txt").write_text("changed\n")
    (workspace / "part" / "inner.txt").unlink()
    (workspace / "new").mkdir()
    (workspace / "new" / "odd\nname").touch()
    (workspace / "ignored").touch()
    (workspace / ".git" / "info" / "exclude").write_text("ignored\n")
    worktree = made(workspace, tmp_path)
    assert worktree.notes == ("uncommitted changes are not in the worktree: 3 files",)
    assert (worktree.folder / "file.txt").read_text() == "one\n"
    assert (workspace / "file.txt").read_text() == "changed\n"


def test_a_detached_head_is_where_the_branch_starts(tmp_path: Path) -> None:
    workspace = repository(tmp_path / "repo")
    first = git(workspace, "rev-parse", "HEAD")
    commit(workspace)
    git(workspace, "checkout", "--quiet", "--detach", first)
    assert made(workspace, tmp_path).commit == first


def test_a_linked_worktree_of_a_bare_repository_can_be_the_workspace(tmp_path: Path) -> None:
    repository(tmp_path / "repo")
    bare = tmp_path / "bare.git"
    git(tmp_path, "clone", "--quiet", "--bare", tmp_path / "repo", bare)
    git(bare, "worktree", "add", "--quiet", "-b", "mine", tmp_path / "linked")
    worktree = made(tmp_path / "linked", tmp_path)
    assert (worktree.repository, (worktree.folder / "file.txt").read_text()) == (tmp_path / "linked", "one\n")


def test_a_workspace_in_a_submodule_gets_a_worktree_of_the_submodule(tmp_path: Path) -> None:
    repository(tmp_path / "inner")
    outer = repository(tmp_path / "outer")
    git(outer, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", tmp_path / "inner", "sub")
    commit(outer)
    worktree = made(outer / "sub", tmp_path)
    assert (worktree.repository, (worktree.folder / "part" / "inner.txt").read_text()) == (outer / "sub", "two\n")
    assert git(outer, "branch", "--list", "loopwarden/*") == ""
    whole = made(outer, tmp_path, "run-2")
    assert whole.notes == ("submodules are not checked out in the worktree",)
    assert list((whole.folder / "sub").iterdir()) == []
    asyncio.run(discard_worktree(whole))
    assert not whole.path.exists()


def test_variables_that_name_another_repository_are_not_inherited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, workspace = repository(tmp_path / "other"), repository(tmp_path / "repo")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    worktree = made(workspace, tmp_path)
    monkeypatch.undo()
    assert worktree.repository == workspace


# ---- what is refused


def refusal(workspace: Path, tmp_path: Path) -> str:
    with pytest.raises(InvalidRequest) as refused:
        made(workspace, tmp_path)
    return refused.value.message


def test_a_folder_without_a_repository_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    said = refusal(tmp_path / "plain", tmp_path)
    assert said.startswith(f"the workspace {tmp_path / 'plain'} is not inside a git work tree")


def test_a_bare_repository_and_the_inside_of_one_are_no_work_trees(tmp_path: Path) -> None:
    bare = tmp_path / "bare.git"
    git(tmp_path, "init", "--quiet", "--bare", bare)
    assert "is not inside a git work tree" in refusal(bare, tmp_path)
    assert "is not inside a git work tree" in refusal(repository(tmp_path / "repo") / ".git", tmp_path)


def test_a_repository_without_a_commit_is_refused(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet", "repo")
    assert refusal(tmp_path / "repo", tmp_path) == (
        f"the repository {tmp_path / 'repo'} has no commit yet, and a worktree starts from one; commit first"
    )


def test_a_subfolder_that_was_never_committed_is_refused(tmp_path: Path) -> None:
    root = repository(tmp_path / "repo")
    (root / "new").mkdir()
    (root / "new" / "file").touch()
    assert refusal(root / "new", tmp_path).startswith(f"nothing in {root / 'new'} is in the last commit of {root}")
    assert nothing_is_left(root, tmp_path)


def test_a_subfolder_that_is_a_link_in_the_commit_is_refused(tmp_path: Path) -> None:
    root = repository(tmp_path / "repo")
    (root / "link").symlink_to(tmp_path)
    commit(root)
    (root / "link").unlink()
    (root / "link").mkdir()
    assert "is in the last commit" in refusal(root / "link", tmp_path)


def test_a_branch_of_that_name_is_refused_and_kept(tmp_path: Path) -> None:
    root = repository(tmp_path / "repo")
    git(root, "branch", "loopwarden/run-1")
    assert refusal(root, tmp_path) == f"the branch loopwarden/run-1 exists in {root}; a run makes its own"
    assert git(root, "branch", "--list", "loopwarden/*") != ""


def test_a_folder_in_the_way_is_refused_and_kept(tmp_path: Path) -> None:
    root = repository(tmp_path / "repo")
    (tmp_path / "state" / "worktrees" / "run-1").mkdir(parents=True, mode=0o700)
    assert "exists; a run makes its own worktree" in refusal(root, tmp_path)
    assert (tmp_path / "state" / "worktrees" / "run-1").is_dir()


def test_what_git_says_is_passed_on_and_nothing_is_left(tmp_path: Path) -> None:
    """A branch called `loopwarden` leaves no room for one below it."""
    root = repository(tmp_path / "repo")
    git(root, "branch", "loopwarden")
    said = refusal(root, tmp_path)
    assert said.startswith(f"a worktree for {root} could not be made: git says: ")
    assert "'refs/heads/loopwarden' exists" in said
    git(root, "branch", "-D", "loopwarden")
    assert nothing_is_left(root, tmp_path)


def test_a_machine_without_git_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = repository(tmp_path / "repo")
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        assert "'git' was not found in PATH" in refusal(root, tmp_path)


def test_a_git_inside_the_workspace_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = repository(tmp_path / "repo")
    canary(root, tmp_path / "touched").rename(root / "git")
    with monkeypatch.context() as patch:
        patch.setenv("PATH", f"{root}:{os.environ['PATH']}")
        assert "lies inside the workspace" in refusal(root, tmp_path)
    assert not (tmp_path / "touched").exists()


def stand_in_git(tmp_path: Path, lines: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a script before the real git, which goes on to it unless `lines` leave."""
    real = subprocess.run(["sh", "-c", "command -v git"], check=True, capture_output=True, text=True).stdout.strip()
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "git").write_text(f'#!/bin/sh\n{lines}\nexec {real} "$@"\n')
    (folder / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_a_repository_of_another_user_is_refused_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = repository(tmp_path / "repo")
    with monkeypatch.context() as patch:
        stand_in_git(tmp_path, "export GIT_TEST_ASSUME_DIFFERENT_OWNER=1", patch)
        said = refusal(root, tmp_path)
    assert "detected dubious ownership" in said
    assert f"if you trust it, run `git config --global --add safe.directory {root}`" in said


def test_a_git_too_old_to_be_held_back_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = repository(tmp_path / "repo")
    with monkeypatch.context() as patch:
        stand_in_git(tmp_path, "unset GIT_CONFIG_COUNT", patch)
        assert "use git 2.31 or newer" in refusal(root, tmp_path)


def test_a_checkout_that_takes_too_long_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = repository(tmp_path / "repo")
    with monkeypatch.context() as patch:
        # The stand-in does the work and then does not end.
        stand_in_git(tmp_path, '[ "$2" != add ] || { command -p git "$@"; exec sleep 60; }', patch)
        with pytest.raises(InvalidRequest, match="git worktree took longer than 1 seconds"):
            made(root, tmp_path, timeout_seconds=1)
    assert nothing_is_left(root, tmp_path)


def test_a_cancelled_caller_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = repository(tmp_path / "repo")
    ready = tmp_path / "ready"
    os.mkfifo(ready)

    async def main() -> None:
        task = asyncio.ensure_future(create_worktree(root, tmp_path / "state" / "worktrees", "run-1"))
        await asyncio.to_thread(ready.read_text)
        task.cancel()
        while not task.done():  # again and again: the clean-up must not be cut short
            await asyncio.sleep(0)
            task.cancel()
        assert task.cancelled()

    with monkeypatch.context() as patch:
        stand_in_git(tmp_path, f'[ "$2" != add ] || {{ command -p git "$@"; echo > "{ready}"; exec sleep 60; }}', patch)
        asyncio.run(main())
    assert nothing_is_left(root, tmp_path)


# ---- what must not be executed


def test_hooks_and_file_system_monitor_of_the_repository_do_not_run(tmp_path: Path) -> None:
    root = repository(tmp_path / "repo")
    program = canary(tmp_path, tmp_path / "touched")
    hooks = root / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("post-checkout", "reference-transaction", "post-index-change"):
        (hooks / name).symlink_to(program)
    git(root, "config", "core.fsmonitor", program)
    git(root, "config", "hook.planted.command", program)
    git(root, "config", "hook.planted.event", "post-checkout")
    git(root, "config", "submodule.recurse", "true")
    (root / "file.txt").write_text("changed\n")
    made(root, tmp_path)
    assert not (tmp_path / "touched").exists()
    git(root, "worktree", "add", "--quiet", tmp_path / "plain")
    assert (tmp_path / "touched").exists()


def filtered(tmp_path: Path) -> Path:
    """A repository with a file for the filter `mark`."""
    root = repository(tmp_path / "repo")
    (root / ".gitattributes").write_text("file.txt filter=mark\n")
    commit(root)
    return root


def test_a_filter_of_the_repository_does_not_run_and_is_named(tmp_path: Path) -> None:
    root = filtered(tmp_path)
    program = canary(tmp_path, tmp_path / "touched")
    for key in ("smudge", "clean", "process"):
        git(root, "config", f"filter.mark.{key}", program)
    git(root, "config", "filter.mark.required", "true")
    (root / "file.txt").write_text("two\n")  # of the same length, so that git has to look into it
    worktree = made(root, tmp_path)
    assert worktree.notes == (
        "uncommitted changes are not in the worktree: 1 file",
        "filters that only the repository's own configuration defines were not run: mark",
    )
    assert (worktree.folder / "file.txt").read_text() == "one\n"
    assert not (tmp_path / "touched").exists()


def test_a_filter_of_the_person_runs_as_the_person_wrote_it(tmp_path: Path, home: Path) -> None:
    """As `git lfs install` configures it; what the repository puts in its place does not run."""
    root = filtered(tmp_path)
    program = canary(tmp_path, tmp_path / "touched")
    git(tmp_path, "config", "--global", "filter.mark.smudge", "sed s/one/smudged/")
    git(tmp_path, "config", "--global", "filter.mark.clean", "sed s/smudged/one/")
    git(tmp_path, "config", "--global", "filter.mark.required", "true")
    git(root, "config", "filter.mark.smudge", program)
    git(root, "config", "filter.a=b.smudge", program)  # a name that the command line could not carry
    worktree = made(root, tmp_path)
    assert (worktree.folder / "file.txt").read_text() == "smudged\n"
    assert not (tmp_path / "touched").exists()
    assert worktree.notes == ("filters that only the repository's own configuration defines were not run: a=b",)


def test_a_filter_that_an_included_file_defines_counts_as_the_repository_s(tmp_path: Path) -> None:
    root = filtered(tmp_path)
    program = canary(tmp_path, tmp_path / "touched")
    (tmp_path / "included").write_text(f'[filter "mark"]\n\tsmudge = {program}\n')
    git(root, "config", "include.path", tmp_path / "included")
    made(root, tmp_path)
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize("condition", ["onbranch:loopwarden/**", "gitdir:**/worktrees/**"])
def test_a_filter_that_is_only_defined_inside_of_the_worktree_does_not_run_either(
    tmp_path: Path, condition: str
) -> None:
    root = filtered(tmp_path)
    program = canary(tmp_path, tmp_path / "ran")
    (tmp_path / "included").write_text(f'[filter "mark"]\n\tsmudge = {program}\n')
    git(root, "config", f"includeIf.{condition}.path", str(tmp_path / "included"))
    worktree = made(root, tmp_path)
    assert not (tmp_path / "ran").exists()
    assert worktree.notes == ("filters that only the repository's own configuration defines were not run: mark",)


def test_objects_that_a_partial_clone_lacks_are_not_fetched(tmp_path: Path) -> None:
    """Fetching would run what the repository names as the remote's program."""
    root = repository(tmp_path / "repo")
    program = canary(tmp_path, tmp_path / "touched")
    blob = git(root, "rev-parse", "HEAD:file.txt")
    git(root, "config", "core.repositoryFormatVersion", "1")
    git(root, "config", "extensions.partialClone", "origin")
    git(root, "config", "remote.origin.url", tmp_path / "repo")
    git(root, "config", "remote.origin.promisor", "true")
    git(root, "config", "remote.origin.uploadpack", program)
    git(root, "config", "protocol.file.allow", "always")
    (root / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    assert "could not be made: git says: " in refusal(root, tmp_path)
    assert not (tmp_path / "touched").exists()
    assert nothing_is_left(root, tmp_path)


def test_a_work_tree_that_the_configuration_puts_elsewhere_is_refused(tmp_path: Path) -> None:
    root = repository(tmp_path / "repo")
    (tmp_path / "elsewhere").mkdir()
    git(root, "config", "core.worktree", tmp_path / "elsewhere")
    assert f"says that the work tree is {tmp_path / 'elsewhere'}" in refusal(root, tmp_path)


# ---- taking away


def test_a_discarded_worktree_leaves_no_trace(tmp_path: Path) -> None:
    root = repository(tmp_path / "repo")
    worktree = made(root, tmp_path)
    (worktree.folder / "dirt").touch()
    git(root, "worktree", "lock", worktree.path)
    asyncio.run(discard_worktree(worktree))
    assert nothing_is_left(root, tmp_path)
    asyncio.run(discard_worktree(worktree))


def test_a_discarded_worktree_that_git_no_longer_knows_is_removed(tmp_path: Path) -> None:
    root = repository(tmp_path / "repo")
    worktree = made(root, tmp_path)
    (worktree.path / ".git").unlink()
    asyncio.run(discard_worktree(worktree))
    assert nothing_is_left(root, tmp_path)


def test_discarding_keeps_a_branch_with_commits_and_never_raises(tmp_path: Path) -> None:
    root = repository(tmp_path / "repo")
    worktree = made(root, tmp_path)
    commit(worktree.path)
    asyncio.run(discard_worktree(worktree))
    assert not worktree.path.exists()
    assert git(root, "branch", "--list", "loopwarden/*") != ""
    (root / ".git").rename(tmp_path / "gone")
    asyncio.run(discard_worktree(worktree))
