"""The first wall: a policy for scripts, checked before a run and guarded during it.

    compiled = compile_script(source)            # ScriptRejected: every violation, with line and hint
    namespace = script_namespace(hooks)          # fresh globals for one execution
    exec(compiled.code, namespace)
    namespace["main"](args)                      # on an exception: describe_exception(error)

Read in this order: grammar (what may be written), names, transformer (how it is checked and rewritten), guards and
attributes (what holds at run time), text and sets (nothing shows an address), facades, namespace.
"""

from .compilation import SCRIPT_FILENAME, CompiledScript, compile_script
from .discarding import is_discarding
from .facades import HOOK_NAMES
from .faults import ScriptFault, describe_exception
from .namespace import script_namespace
from .preloading import preload
from .text import text_of
from .violations import ScriptRejected, Violation

__all__ = [
    "HOOK_NAMES",
    "SCRIPT_FILENAME",
    "CompiledScript",
    "ScriptFault",
    "ScriptRejected",
    "Violation",
    "compile_script",
    "describe_exception",
    "is_discarding",
    "preload",
    "script_namespace",
    "text_of",
]
