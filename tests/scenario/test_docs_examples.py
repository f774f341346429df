"""Every Python and TOML block of the documentation is run as a reader would run it."""

import asyncio
import importlib
import json
import logging
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from loopwarden import AgentFailed, AgentRequest, Host, Script
from loopwarden.failure_class import FailureClass
from loopwarden.lease_keeper import RENEWALS_PER_LEASE
from loopwarden.lease_view import LeaseView
from loopwarden.loops import find_loops
from loopwarden.policy import BreakerRule, Policy, Retry, Wait
from loopwarden.providers.configured import make_provider
from loopwarden.settings import load_settings
from loopwarden.store_settings import scopes_of
from support.command_line import Home
from support.pages import ROOT, blocks, example

ASK = 'from loopwarden_engine import agent\n\ndef main(args):\n    return agent("hello")\n'
ASK_QUESTION = 'from loopwarden_engine import agent\n\ndef main(args):\n    return agent(args["question"])\n'
THREE = """
from loopwarden_engine import agent

def main(args):
    return [agent(f"question {n}") for n in range(args["n"])]
"""
TESTED = {
    "README": {"loop", "embed"},
    "write-a-loop": {
        "first", "test", "language", "votes-pyproject", "votes-loop", "votes-contract", "votes-package",
    },
    "write-a-provider": {"function", "class", "cancellation", "command"},
    "embed": {"run", "events", "errors", "several", "store", "sync", "logs"},
    "settings": {"full", "agent-program", "openai", "policy", "store"},
    "budgets": {"nightly"},
    "several-machines": {"host"},
    "policies": {"full", "embedded"},
    # In test_docs_fastapi.py:
    "fastapi": {"app"},
    # In test_docs_agents.py:
    "replace-your-bash-loop": {"settings"}, "claude": {"settings"}, "codex": {"settings", "endpoint"},
    "opencode": {"settings", "endpoint"}, "qwen": {"settings"}, "gemini": {"settings"}, "acp": {"settings"},
    "openai": {"settings"},
}  # fmt: skip
"""Each has a test below."""


def module(name: str) -> dict[str, Any]:
    """Execute an example as a module and return its names."""
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(example(name), name, "exec"), names)
    return names


def play(script: str, args: dict[str, Any], reply: Callable[[AgentRequest], Any]) -> Any:
    """Run a script with a plain function as agent; return its result."""

    async def answer(request: AgentRequest) -> Any:
        return reply(request)

    async def main() -> Any:
        async with Host(providers={"default": answer}) as host:
            return (await host.run(Script.from_text(script), args)).raise_for_failure().value

    return asyncio.run(main())


def with_host(reply: Callable[[AgentRequest], Any], use: Callable[[Host], Any]) -> Any:
    """Call an example that takes a host."""

    async def answer(request: AgentRequest) -> Any:
        return reply(request)

    async def main() -> Any:
        async with Host(providers={"default": answer}) as host:
            return await use(host)

    return asyncio.run(main())


def test_every_python_and_toml_block_of_the_documentation_has_a_test() -> None:
    found = {block.name for block in blocks() if block.language in ("python", "toml")}
    assert found == {f"{page}/{name}" for page, names in TESTED.items() for name in names}


# ---- README


def test_the_loop_of_the_readme_finds_what_two_judges_object_to() -> None:
    objections = {"Judge 0: is b.py", "Judge 2: is b.py", "Judge 1: is a.py"}
    value = play(
        example("README/loop"),
        {"files": ["a.py", "b.py"]},
        lambda request: "no" if request.prompt.startswith(tuple(objections)) else "yes",
    )
    assert value == ["b.py"]


def test_the_embedding_of_the_readme_runs_that_loop() -> None:
    review = module("README/embed")["review"]
    assert asyncio.run(review(example("README/loop"), ["a.py", "b.py"])) == ["a.py", "b.py"]


# ---- write a loop


def test_the_first_loop_has_its_faults_mended() -> None:
    def reply(request: AgentRequest) -> Any:
        if request.schema is None:
            return f"notes by {request.label}"
        return {"good": request.label == "a lawyer", "fault": "" if request.label == "a lawyer" else "too long"}

    value = play(example("write-a-loop/first"), {"version": "1.2"}, reply)
    assert value == {"notes": "notes by mend", "faults": ["too long"]}


def test_the_first_loop_says_so_when_its_first_agent_fails() -> None:
    def reply(request: AgentRequest) -> Any:
        raise AgentFailed("no idea")

    value = play(example("write-a-loop/first"), {"version": "1.2"}, reply)
    assert value == {"notes": None, "faults": ["the first agent failed"]}


def test_the_tests_of_the_first_loop_pass_where_it_lies(tmp_path: Path) -> None:
    (tmp_path / "release_notes.py").write_text(example("write-a-loop/first"))
    (tmp_path / "test_release_notes.py").write_text(example("write-a-loop/test"))
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1].partition(" in ")[0]) == (0, "3 passed"), done.stdout


def test_the_tour_of_the_language_computes_what_plain_python_would() -> None:
    assert play(example("write-a-loop/language"), {}, lambda request: "") == {
        "titles": ["One", "Two", "{'title': 'Old', 'age': 9} is too old"],
        "votes": '{"a": 2, "b": 2}',
        "unique": ["b", "a"],
    }


@pytest.fixture
def votes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The package of the vote, installed on the path as its pyproject.toml says."""
    site = tmp_path / "site"
    package = site / "votes"
    package.mkdir(parents=True)
    for block, file in (("loop", "loop.py"), ("contract", "contract.py"), ("package", "__init__.py")):
        (package / file).write_text(example(f"write-a-loop/votes-{block}"))
    project = tomllib.loads(example("write-a-loop/votes-pyproject"))["project"]
    info = site / f"{project['name']}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("".join(groups))
    monkeypatch.syspath_prepend(str(site))
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "votes"]:
        del sys.modules[name]


def votes_outcome(args: Any, reply: Callable[[AgentRequest], Any], source: str | None = None) -> Any:
    """Run the vote, or another script under its contract."""
    package: Any = importlib.import_module("votes")
    script = package.build(package.Settings())
    if source is not None:
        script = Script(name="votes", source=source, contract=script.contract)
    return with_host(reply, lambda host: host.run(script, args))


@pytest.mark.usefixtures("votes")
def test_the_vote_counts_what_agents_voted() -> None:
    package: Any = importlib.import_module("votes")

    def reply(request: AgentRequest) -> Any:
        if request.label == "voter 3":
            raise AgentFailed("it went home")
        return {"vote": "no" if request.label == "voter 1" else "yes", "why": "so"}

    outcome = votes_outcome(package.Args(question="Ship it?", voters=5), reply)
    assert outcome.value == package.Result(yes=3, no=1)
    assert outcome.conclusion.sentence == "agents voted 3 yes, 1 no"


@pytest.mark.usefixtures("votes")
@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ('votes.count("no")}', "9}", "PROVENANCE"),
        ("args['question']", "'Another one?'", "CONTRACT"),
        ("schema=BALLOT", 'schema=BALLOT, model="large"', "CONTRACT"),
        ('args["voters"] + 1', 'args["voters"]', "CONTRACT"),
    ],
)
def test_the_contract_of_the_vote_believes_no_other_script(old: str, new: str, code: str) -> None:
    source = example("write-a-loop/votes-loop")
    assert old in source
    outcome = votes_outcome(
        {"question": "Ship it?", "voters": 2}, lambda _: {"vote": "yes", "why": "so"}, source.replace(old, new)
    )
    assert outcome.failure.code == code


def test_the_vote_is_a_command_once_it_is_installed(votes: Path) -> None:
    home = Home(votes)
    agent = home.agent("""cat > /dev/null; echo '{"vote": "yes", "why": "it works"}'""")
    head = ("run", "votes", "--question", "Ship it?", "--workspace", str(home.workspace))
    done = home.run(*head, "--voters", "5", "--json", "--", str(agent))
    assert (done.exit, done.json["receipt"]["result"]) == (0, {"yes": 5, "no": 0}), done.err
    assert done.json["verdict"].startswith("agents voted 5 yes, 0 no")
    refused = home.run(*head, "--voters", "10", "--", str(agent))
    assert (refused.exit, refused.err) == (2, "loopwarden: --voters is 10; this deployment allows 9\n")


# ---- write a provider


def test_the_function_echoes_and_fails_for_secrets() -> None:
    main = module("write-a-provider/function")["main"]
    assert asyncio.run(main(ASK)) == "echo: hello"
    assert asyncio.run(main(ASK.replace("hello", "the secret"))) is None


def asked_over_http(answer: Callable[[httpx.Request], httpx.Response], key: str | None) -> Any:
    """Run one call with the provider of the page against a service of our own; return outcome and events."""
    service = module("write-a-provider/class")["ModelService"]

    async def main() -> Any:
        transport = httpx.MockTransport(answer)
        async with (
            httpx.AsyncClient(transport=transport, base_url="http://model") as client,
            Host(providers={"default": service(client, key=key)}) as host,
            await host.start(Script.from_text(ASK)) as run,
        ):
            events = [event async for event in run.events()]
            return await run.wait(), events

    return asyncio.run(main())


def test_the_class_gives_progress_and_an_answer() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert request.headers["authorization"] == "Bearer k"
        assert json.loads(request.content)["prompt"] == "hello"
        return httpx.Response(200, text='{"doing": "reading"}\n{"id": 7, "text": "hi"}\n')

    outcome, events = asked_over_http(answer, "k")
    assert outcome.value == "hi"
    assert outcome.receipt.agents[0].notes == ["id 7"]
    assert [event.message for event in events if event.kind == "agentProgress"] == ["reading"]


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (httpx.Response(500), "HTTPStatusError"),
        (httpx.Response(200, text="no json\n"), "JSONDecodeError"),
        (httpx.Response(200, text='{"doing": "reading"}\n'), "ended its answer too early"),
    ],
)
def test_the_class_fails_the_agent_for_what_may_happen_to_one(response: httpx.Response, reason: str) -> None:
    outcome, _ = asked_over_http(lambda request: response, "k")
    assert outcome.stop_reason == "completed"
    assert outcome.value is None
    assert reason in outcome.receipt.agents[0].reason


def test_the_class_ends_the_run_when_no_agent_can_be_started() -> None:
    outcome, _ = asked_over_http(lambda request: httpx.Response(200), None)
    assert outcome.failure.code == "AGENT_START"
    assert "set MODEL_KEY" in outcome.failure.message


def test_the_cancelled_agent_is_wound_down() -> None:
    names = module("write-a-provider/cancellation")
    session = names["Session"]()

    async def reply(request: AgentRequest) -> str:
        text: str = await names["reply_with"](session, request)
        return text

    async def main() -> Any:
        async with Host(providers={"default": reply}) as host, await host.start(Script.from_text(ASK)) as run:
            async for event in run.events():
                if event.kind == "agentStarted":
                    asyncio.get_running_loop().call_soon(run.cancel)
            return await run.wait()

    assert asyncio.run(main()).stop_reason == "cancelled"
    assert session.stopped


def test_the_command_providers_can_do_what_the_page_says() -> None:
    host = module("write-a-provider/command")["host"]
    capabilities = {name: item.capabilities for name, item in host._deployment.providers.items()}
    assert (capabilities["default"].structured_output, capabilities["writer"].structured_output) == (True, False)


# ---- embed


def test_the_embedded_run_is_verified_and_leaves_a_receipt(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    mend = module("embed/run")["mend"]
    assert asyncio.run(mend(workspace, tmp_path / "state")) == "complete after 1 rounds, verified: True"
    (receipt,) = (tmp_path / "state" / "runs").glob("*/receipt.json")
    assert json.loads(receipt.read_text())["verified"] is True


def test_the_watcher_sees_agents_and_cancels_when_one_failed() -> None:
    def reply(request: AgentRequest) -> str:
        if request.prompt == "question 1":
            raise AgentFailed("it broke")
        return "fine"

    watch = module("embed/events")["watch"]
    seen = with_host(reply, lambda host: watch(host, THREE))
    head = ["1 question 0: started", "1 completed", "2 question 1: started", "2 failed it broke"]
    assert (seen[:4], seen[-1]) == (head, "cancelled")


def test_the_watcher_sees_a_run_to_its_end() -> None:
    watch = module("embed/events")["watch"]
    seen = with_host(lambda request: "fine", lambda host: watch(host, THREE))
    assert seen[-3:] == ["3 question 2: started", "3 completed", "completed"]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def main(args):\n    return 1\n", "the result is 1"),
        (
            "import os\ndef main(args):\n    print(1)\n",
            "line 1: a script cannot import 'os'; line 3: the name 'print' is not allowed",
        ),
        ("def main(args):\n    return 1 / 0\n", "SCRIPT_ERROR at line 2: ZeroDivisionError: division by zero"),
    ],
)
def test_the_errors_are_told_apart(source: str, said: str) -> None:
    tell = module("embed/errors")["tell"]
    assert with_host(lambda request: "", lambda host: tell(host, source)) == said


def test_the_several_runs_are_answered_in_order() -> None:
    all_of = module("embed/several")["all_of"]
    answers = with_host(lambda request: request.prompt + "!", lambda host: all_of(host, ASK_QUESTION, ["a", "b", "c"]))
    assert answers == ["a!", "b!", "c!"]


def test_the_store_answers_a_second_time_without_asking(tmp_path: Path) -> None:
    names = module("embed/store")
    asked = []

    async def reply(request: AgentRequest) -> str:
        asked.append(request.prompt)
        return await ask(request)  # type: ignore[no-any-return]

    ask, names["reply"] = names["reply"], reply
    for _ in range(2):
        greeted = asyncio.run(names["greet"](tmp_path / "state" / "runs.db", ["Ann", "Bob"]))
        assert greeted == ["Greet Ann. Done.", "Greet Bob. Done."]
    assert asked == ["Greet Ann.", "Greet Bob."]


def test_the_synchronous_run_shouts() -> None:
    assert module("embed/sync")["shout"]("hello") == "HELLO"


def test_the_log_lines_reach_the_standard_library_with_the_run_id(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("loopwarden")
    level = logger.level
    monkeypatch.setattr(logging, "basicConfig", lambda **options: None)  # it would change the tests' own logging
    try:
        module("embed/logs")
        assert play(ASK, {}, lambda request: "x") == "x"
    finally:
        logger.setLevel(level)
    assert [record.getMessage() for record in caplog.records] == ["run started", "run ended"]
    assert all(record.__dict__["run_id"] for record in caplog.records)


# ---- settings


def test_the_settings_file_of_the_page_is_read_as_it_is_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    settings = load_settings(Home(tmp_path).settings(example("settings/full")))
    assert sorted(settings.providers) == ["careful", "local"]
    assert settings.default_provider == "local"
    assert settings.state_folder == tmp_path / "loopwarden-runs"
    assert settings.script_folders == (tmp_path / "loops",)
    assert (settings.limits.max_total_agents, settings.limits.run_deadline_seconds) == (50, 14400)
    (tmp_path / "loops").mkdir()
    ralph = find_loops(settings).loops["ralph"].script
    assert ralph.contract.settings.default_rounds == 5


def test_the_providers_of_the_page_are_made_as_they_are_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a key")
    home = Home(tmp_path)
    settings = load_settings(home.settings(example("settings/agent-program")))
    claude = make_provider("claude", settings)
    assert claude.options.model == "opus"
    assert claude.options.max_turns == 100
    local = make_provider("local", load_settings(home.settings(example("settings/openai"))))
    assert local.capabilities.native_schema


def test_the_store_of_the_page_is_read_as_it_is_meant(tmp_path: Path) -> None:
    settings = load_settings(Home(tmp_path).settings(example("settings/store")))
    assert settings.store.kind == "postgres"
    assert (settings.queues["nightly"].drive, settings.scopes["nightly"].max_agents) == (4, 200)
    assert settings.scopes["tenant:acme"].on_budget == "wait"
    assert settings.workspaces == {"site": Path("/srv/site")}


def test_the_host_of_the_page_has_the_times_that_the_page_reckons_with(tmp_path: Path) -> None:
    settings = load_settings(Home(tmp_path).settings(example("several-machines/host")))
    assert settings.store == type(settings.store)(url=settings.store.url), "the page shows what holds anyway"
    lease = LeaseView(
        settings.store.lease_seconds, kill_grace_seconds=settings.store.kill_grace_seconds, clock=lambda: 0.0
    )
    renewals = [settings.store.lease_seconds * number / RENEWALS_PER_LEASE for number in (1, 2)]
    moments = [lease.ends_at, lease.ends_at + lease.wind_down_seconds, lease.ends_at + lease.kill_grace_seconds]
    text = (ROOT / "docs/several-machines.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| ([\d., ]+) \|", text, re.MULTILINE) == [
        ", ".join(f"{moment:g}" for moment in renewals),
        *[f"{moment:g}" for moment in (*moments, moments[-1] + settings.store.poll_seconds)],
    ]
    assert (settings.queues["nightly"].drive, settings.workspaces) == (4, {"site": Path("/srv/site")})


def test_the_budget_of_the_page_is_attached_to_its_queue(tmp_path: Path) -> None:
    scopes = load_settings(Home(tmp_path).settings(example("budgets/nightly"))).scopes
    assert scopes_of(scopes, queue="nightly", loop="ralph") == ["nightly"]
    assert scopes_of(scopes, queue=None, loop="ralph") == []


def test_the_policy_of_the_page_is_read_as_it_is_meant(tmp_path: Path) -> None:
    settings = load_settings(Home(tmp_path).settings(example("settings/policy")))
    policy = settings.providers["claude"].policy.to_policy()
    assert policy == Policy(
        wait=Wait(max_seconds=21600),
        retry=Retry(classes=frozenset({FailureClass.OVERLOADED, FailureClass.UNAVAILABLE}), times=3),
        fallback="codex",
        breaker=BreakerRule(failures=5, reopen_seconds=900),
    )
    assert settings.limits.max_extra_attempts == 20


def test_the_grants_of_the_page_are_read_and_given_as_it_says(tmp_path: Path) -> None:
    settings = load_settings(Home(tmp_path).settings(example("policies/full")))
    policy = settings.providers["claude"].policy.to_policy()
    assert policy.retry is not None
    assert (policy.retry.factor, policy.retry.max_server_delay_seconds) == (2, 600), "the page names the defaults"
    assert policy.repeats
    asks = asyncio.run(module("policies/embedded")["ask"](ASK))
    assert asks == [("first", "overloaded"), ("retry", None)]
