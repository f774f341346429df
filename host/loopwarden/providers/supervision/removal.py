"""Removing a folder that an agent could fill as it liked. Used by the supervisor, and by the host after it."""

import os
import stat

FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

    AnyPath: TypeAlias = str | bytes | os.PathLike[str]


def remove_tree(folder: "AnyPath") -> None:
    """Remove a folder with all that is in it, as far as possible. Never follows a link, never raises.

    An agent may have put a link in the place of its folder: then the link goes, and whatever it leads to is not ours.
    """
    try:
        top = open_folder(folder)
    except OSError:
        remove_entry(folder)
        return
    try:
        empty_folder(top)
    except OSError:
        return
    finally:
        os.close(top)
        remove_entry(folder)


def empty_folder(top: int) -> None:
    """Remove what is in an open folder. Raises OSError when it cannot be listed.

    Folders are moved up to `top` before they are emptied. So no path is too long, however deep an agent has nested
    them, and the depth costs neither stack nor descriptors.
    """
    prefix = os.urandom(8).hex()
    moved = 0
    waiting = os.listdir(top)
    while waiting:
        name = waiting.pop()
        try:
            inner = open_folder(name, top)
        except OSError:
            remove_entry(name, top)
            continue
        try:
            for entry in os.listdir(inner):
                if remove_entry(entry, inner):
                    continue
                fresh = f"{prefix}-{moved}"
                if move_folder(entry, inner, fresh, top):
                    moved += 1
                    waiting.append(fresh)
        except OSError:
            continue
        finally:
            os.close(inner)
            remove_entry(name, top)


def open_folder(name: "AnyPath", inside: int | None = None) -> int:
    """Open a folder, and make it one that can be emptied. Raises OSError, also for a link to a folder.

    Some caches make their folders read-only, so that nothing in them can be removed.
    """
    try:
        descriptor = os.open(name, FOLDER_FLAGS, dir_fd=inside)
    except PermissionError:
        if not stat.S_ISDIR(os.lstat(name, dir_fd=inside).st_mode):
            raise
        os.chmod(name, 0o700, dir_fd=inside)
        descriptor = os.open(name, FOLDER_FLAGS, dir_fd=inside)
    try:
        os.fchmod(descriptor, 0o700)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def move_folder(name: str, inside: int, fresh: str, top: int) -> bool:
    """Move a folder to `top`. Only one that can be written can be moved. Says whether it was done."""
    try:
        os.close(open_folder(name, inside))
        os.rename(name, fresh, src_dir_fd=inside, dst_dir_fd=top)
    except OSError:
        return False
    return True


def remove_entry(name: "AnyPath", inside: int | None = None) -> bool:
    """Remove a file, a link or an empty folder. Says whether it was done."""
    for remove in (os.unlink, os.rmdir):
        try:
            remove(name, dir_fd=inside)
        except OSError:
            continue
        return True
    return False
