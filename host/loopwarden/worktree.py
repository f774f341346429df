"""Isolation for one run: a git worktree and a branch of its own, beside the work of the person.

    STATE/worktrees/RUN      the worktree: a checkout of HEAD of the repository in which the workspace lies
    loopwarden/RUN           its branch

Both are kept when the run ends, and named in its receipt. Nothing is committed or merged for the agent. A person who
wants the work looks at it there, commits what the agents left uncommitted, and takes it and the folder away:

    git -C STATE/worktrees/RUN status
    git merge loopwarden/RUN
    git worktree remove STATE/worktrees/RUN && git branch -d loopwarden/RUN

What is not in HEAD is not in the worktree: uncommitted changes (a note counts them), ignored files such as installed
dependencies, the contents of submodules. Hooks do not run, and filters as module `git` says. A workspace inside a
submodule gets a worktree of that submodule. The worktree shares the repository with the person's own: it keeps runs
apart that mean well, and confines no agent.
"""

import asyncio
import contextlib
import os
import shutil
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from loopwarden.display import plural, shown_line
from loopwarden.failures import InvalidRequest
from loopwarden.git import Git, GitFailed
from loopwarden.run_folder import RunFolderError, make_private_folder

TIMEOUT_SECONDS: Final = 60.0
MAX_NAMED_CHARS: Final = 200
_NO_WORK_TREE: Final = ("not a git repository", "must be run in a work tree")


@dataclass(frozen=True, slots=True, kw_only=True)
class Worktree:
    """A worktree that was made for one run."""

    path: Path
    """The root of the worktree."""
    folder: Path
    """The folder in it that corresponds to the workspace, which may be a subfolder of its repository."""
    branch: str
    """`loopwarden/RUN`."""
    commit: str
    """The commit that the branch starts from."""
    repository: Path
    """The work tree that the workspace lies in: where a person merges the branch."""
    notes: tuple[str, ...] = ()
    """What is not in the worktree although a person may expect it."""


async def create_worktree(
    workspace: Path, place: Path, run_id: str, *, timeout_seconds: float = TIMEOUT_SECONDS
) -> Worktree:
    """Make `place/run_id` and the branch `loopwarden/RUN` from HEAD. `workspace` is resolved; `place` is private.

    `timeout_seconds` holds for each command of git: a large checkout needs more. Raises `InvalidRequest` with a
    sentence, and leaves nothing behind then, or when cancelled.
    """
    try:
        git = await Git.open(workspace, timeout_seconds=timeout_seconds)
        repository = await _repository(git, workspace)
        commit = await _commit(git, repository)
        inside = workspace.relative_to(repository)
        await _require_tracked(git, repository, commit, inside)
        made = Worktree(
            path=place / run_id, folder=place / run_id / inside, branch=f"loopwarden/{run_id}", commit=commit,
            repository=repository,
        )  # fmt: skip
        await _require_free(git, made)
        notes = await _notes(git, repository)
        make_private_folder(place)
    except GitFailed as error:
        raise InvalidRequest(f"a worktree for {workspace} could not be made: {error}") from None
    except RunFolderError as error:
        raise InvalidRequest(str(error)) from None
    try:
        # The commit and not HEAD: it may move meanwhile, and a name could make the branch follow another one.
        await git.run(
            "worktree", "add", "--quiet", "--no-checkout", "--no-track", "-b", made.branch, "--", str(made.path),
            commit, folder=repository,
        )  # fmt: skip
        # Only there is known what holds there: configuration can depend on the branch and on the folder.
        inner = await Git.open(made.path, timeout_seconds=timeout_seconds)
        await inner.run("reset", "--hard", "--quiet", "--no-recurse-submodules", folder=made.path)
        if not made.folder.is_dir():
            raise GitFailed(f"the sparse checkout of the repository leaves the folder {inside} out")
    except GitFailed as error:
        await _to_its_end(_take_away(git, made))
        raise InvalidRequest(f"a worktree for {workspace} could not be made: {error}") from None
    except asyncio.CancelledError:
        await _to_its_end(_take_away(git, made))
        raise
    if inner.masked_filters:
        names = shown_line(", ".join(inner.masked_filters), MAX_NAMED_CHARS)
        notes += (f"filters that only the repository's own configuration defines were not run: {names}",)
    if (made.path / ".gitmodules").exists():
        notes += ("submodules are not checked out in the worktree",)
    return Worktree(
        path=made.path, folder=made.folder, branch=made.branch, commit=commit, repository=repository, notes=notes
    )


async def resume_worktree(
    workspace: Path, place: Path, run_id: str, *, timeout_seconds: float = TIMEOUT_SECONDS
) -> Worktree:
    """The worktree of a run that goes on: as it was left, or a new one when it was never made.

    `commit` is then where its branch left the person's own. Raises `InvalidRequest`.
    """
    if not _is_there(place / run_id):
        return await create_worktree(workspace, place, run_id, timeout_seconds=timeout_seconds)
    try:
        git = await Git.open(workspace, timeout_seconds=timeout_seconds)
        repository = await _repository(git, workspace)
        branch = f"loopwarden/{run_id}"
        forked = await git.run("merge-base", f"refs/heads/{branch}", "HEAD", folder=repository)
    except GitFailed as error:
        raise InvalidRequest(f"the worktree of run {run_id} cannot be used again: {error}") from None
    return Worktree(
        path=place / run_id,
        folder=place / run_id / workspace.relative_to(repository),
        branch=branch,
        commit=forked.decode("ascii").strip(),
        repository=repository,
        notes=("the run goes on in the worktree as it was left",),
    )


async def discard_worktree(worktree: Worktree) -> None:
    """Take worktree and branch away again: the run could not begin. Never raises for what fails then.

    A branch that has moved on is kept: somebody's commits are on it.
    """
    with contextlib.suppress(GitFailed):
        git = await Git.open(worktree.repository, timeout_seconds=TIMEOUT_SECONDS)
        await _to_its_end(_take_away(git, worktree))


async def note_at_the_end(worktree: Worktree) -> str | None:
    """How much of what agents did is on no branch yet, for the person who wants to merge it. Never raises."""
    try:
        count = await _uncommitted(await Git.open(worktree.path, timeout_seconds=TIMEOUT_SECONDS), worktree.path)
    except (GitFailed, InvalidRequest) as error:
        return f"whether the work in it is committed is not known: {error}"
    if not count:
        return None
    return f"not committed yet: {plural(count, 'file')}; commit there before you merge {worktree.branch}"


# ---- what must hold


async def _repository(git: Git, workspace: Path) -> Path:
    try:
        output = await git.run("rev-parse", "--show-toplevel", folder=workspace)
    except GitFailed as error:
        if any(words in str(error) for words in _NO_WORK_TREE):
            raise InvalidRequest(
                f"the workspace {workspace} is not inside a git work tree, so it cannot have another one; "
                "run `git init` and commit, or run without a worktree"
            ) from None
        raise
    repository = Path(os.fsdecode(output.removesuffix(b"\n")))
    if not workspace.is_relative_to(repository):
        raise GitFailed(f"the configuration of its repository says that the work tree is {repository}")
    return repository


async def _commit(git: Git, repository: Path) -> str:
    ending = await git.end_of("rev-parse", "--verify", "--quiet", "HEAD^{commit}", folder=repository)
    if ending.exit != 0:
        raise InvalidRequest(
            f"the repository {repository} has no commit yet, and a worktree starts from one; commit first"
        )
    return ending.output.decode("ascii").strip()


async def _require_tracked(git: Git, repository: Path, commit: str, inside: Path) -> None:
    """A folder that HEAD does not have would not be in the worktree."""
    if inside == Path():
        return
    listed = await git.run(
        "--literal-pathspecs", "ls-tree", "-z", "-d", "--full-tree", commit, "--", str(inside), folder=repository
    )
    if not listed.startswith(b"040000 tree "):
        raise InvalidRequest(
            f"nothing in {repository / inside} is in the last commit of {repository}, so a worktree would not have "
            "that folder; commit it, or take the repository as workspace"
        )


async def _require_free(git: Git, made: Worktree) -> None:
    if await git.succeeds("show-ref", "--verify", "--quiet", f"refs/heads/{made.branch}", folder=made.repository):
        raise InvalidRequest(f"the branch {made.branch} exists in {made.repository}; a run makes its own")
    if _is_there(made.path):
        raise InvalidRequest(f"{made.path} exists; a run makes its own worktree")


async def _notes(git: Git, repository: Path) -> tuple[str, ...]:
    try:
        count = await _uncommitted(git, repository)
    except GitFailed as error:
        return (f"uncommitted changes are not in the worktree, and could not be counted: {error}",)
    return (f"uncommitted changes are not in the worktree: {plural(count, 'file')}",) if count else ()


async def _uncommitted(git: Git, folder: Path) -> int:
    output = await git.run(
        "status", "--porcelain", "-z", "--no-renames", "--ignore-submodules=all", "--untracked-files=all",
        folder=folder,
    )  # fmt: skip
    return output.count(b"\0")


# ---- taking away


async def _take_away(git: Git, made: Worktree) -> None:
    with contextlib.suppress(GitFailed):
        # Twice: also one that somebody locked.
        await git.run("worktree", "remove", "--force", "--force", "--", str(made.path), folder=made.repository)
    if _is_there(made.path):
        # Git was killed midway and does not know it for a worktree; or git is not what fails.
        await asyncio.to_thread(shutil.rmtree, made.path, ignore_errors=True)
        with contextlib.suppress(GitFailed):
            await git.run("worktree", "remove", "--force", "--force", "--", str(made.path), folder=made.repository)
    with contextlib.suppress(GitFailed):
        await git.run("update-ref", "-d", f"refs/heads/{made.branch}", made.commit, folder=made.repository)


def _is_there(path: Path) -> bool:
    return os.path.lexists(path)


async def _to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Do `work` to its end also when the caller is cancelled meanwhile; the cancellation is raised afterwards."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    task.result()
