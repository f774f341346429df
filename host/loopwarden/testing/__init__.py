"""What tests of loops need: an agent that says what the test wrote down, and real runs in milliseconds.

    with Lab() as lab:
        run = lab.run(script, {"name": "Ann"}, ["Hello, Ann."])
    assert run.value == {"greeting": "Hello, Ann."}

Only the agent is made up: the script runs in a confined worker, and its contract judges in the host.
"""

from loopwarden.testing.fake_agent import FakeAgent, RepliesDiffer
from loopwarden.testing.lab import Lab, LabRun
from loopwarden.testing.replies import Replies, Reply

__all__ = ["FakeAgent", "Lab", "LabRun", "Replies", "RepliesDiffer", "Reply"]
