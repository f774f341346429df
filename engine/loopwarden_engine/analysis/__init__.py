"""What a script does with its hooks, and how many agents it can start at most. Nothing of the script is run.

analyse(source)     # for a script that `language.compile_script` took; a JSON object for the host
"""

from .report import analyse

__all__ = ["analyse"]
