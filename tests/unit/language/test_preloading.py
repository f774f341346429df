"""After `preload()` a worker without file access can run any script."""

import os
import subprocess
import sys
from pathlib import Path

_CORPUS = Path(__file__).parents[2] / "conformance" / "language.jsonl"

_CHILD = """
import json, sys
import loopwarden_engine.language as language
cases = [json.loads(line) for line in open(sys.argv[1], encoding="utf-8") if line.strip()]
language.preload()
forbidden = []
def audit(event, arguments):
    if event == "import" and arguments[0] in sys.modules:
        return
    if event in ("open", "import", "os.listdir", "os.scandir"):
        forbidden.append((event, str(arguments[0])))
sys.addaudithook(audit)
hooks = {name: (lambda *a, **k: "reply") for name in language.HOOK_NAMES}
for case in cases:
    try:
        compiled = language.compile_script(case["source"])
        namespace = language.script_namespace(hooks)
        exec(compiled.code, namespace)
        namespace["main"](case["args"])
    except language.ScriptRejected:
        pass
    except Exception as error:
        language.describe_exception(error)
print(len(cases), sorted(set(forbidden)))
"""


def test_no_case_of_the_corpus_opens_a_file_or_imports_a_module() -> None:
    """Audited in a process of its own. CPython looks for the source of a syntax error: it may fail, and is allowed."""
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(_CORPUS)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    count, found = done.stdout.split(" ", 1)
    assert int(count) > 100
    assert found.strip() in ("[]", "[('open', '<script>')]")
