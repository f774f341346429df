"""The shim that takes the power away, compiled from the C file beside this one."""

import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")


def compiled(folder: Path) -> Path:
    """The shim as a library in `folder`. Fails when this machine has no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    assert compiler is not None, "tests of lost power need a C compiler: install gcc or clang"
    library = folder / "power_loss.so"
    argv = [
        compiler,
        "-shared",
        "-fPIC",
        "-O1",
        "-Wall",
        "-Werror",
        "-o",
        str(library),
        str(SOURCE),
        "-ldl",
        "-lpthread",
    ]
    subprocess.run(argv, check=True)
    return library
