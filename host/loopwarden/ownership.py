"""Whether a file can be trusted: nobody but this user and root may write it, or any folder on the way to it."""

import os
import stat
from pathlib import Path


def why_untrusted(path: Path) -> str | None:
    """Say in a sentence who else may write `path`; None when nobody can. Raises OSError when it cannot be told.

    Both the path as given and the path behind symbolic links are checked: who may write a folder on the way can put
    another file there. In a sticky folder (`/tmp`) others cannot replace what is not theirs.
    """
    absolute = Path(os.path.abspath(path))
    resolved = absolute.resolve(strict=True)
    for checked in dict.fromkeys((resolved, *resolved.parents, *absolute.parents)):
        status = checked.stat()
        if status.st_uid not in (0, os.geteuid()):
            return f"{checked} belongs to another user; move {path} to a place of your own"
        sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX and checked != resolved
        if status.st_mode & 0o022 and not sticky:
            return f"{checked} can be written by others; run `chmod go-w {checked}`"
    return None
