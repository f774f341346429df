"""The service of docs/fastapi.md, run as it stands on the page: over ASGI, without a network.

The transport of httpx hands an answer over once it is complete; streams are read by `Stream`, as a server would write
them, a piece at a time.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import httpx
import pytest

from loopwarden import AgentRequest, Code
from loopwarden.failures import MEANINGS
from support.job_lab import Agents
from support.pages import example

SECONDS = 30
"""After so long a test has failed."""
FILES = {"script": "review", "args": {"files": ["a.py", "b.py"]}}
ENDED = {"runEnded", "runHeld"}
MEASURED = {"at", "seconds"}
"""An observer who is there has these of the moment, one who reads the journal later has them of the entry."""


def told(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What events say that the page promises to every observer, without times."""
    return [
        {name: value for name, value in event.items() if name not in MEASURED}
        for event in events
        if event["event"] != "agentProgress"
    ]


class Reviewers(Agents):
    """Agents that answer, but for the prompts that a test keeps."""

    async def __call__(self, request: AgentRequest) -> str:
        await super().__call__(request)
        return f"{request.label} is fine."


class Stream:
    """One event stream, read as it comes. Leaving it is the caller hanging up."""

    def __init__(self, app: Any, path: str, after: int | None) -> None:
        headers = [] if after is None else [(b"last-event-id", str(after).encode())]
        self._scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": "GET",
            "scheme": "http", "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
            "headers": headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
        }  # fmt: skip
        self._app = app
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._hung_up = asyncio.Event()
        self._is_asked = False
        self._task: asyncio.Task[None] | None = None
        self.status = 0
        self.headers: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._app(self._scope, self._receive, self._send))
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._task is not None
        self._hung_up.set()
        await self._task

    async def text(self) -> AsyncIterator[str]:
        """Pieces of the body as they come, to its end."""
        while (piece := await self._pieces.get()) is not None:
            yield piece.decode()

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """What the stream says, parsed as a browser does."""
        rest = ""
        async for piece in self.text():
            rest += piece
            *messages, rest = rest.split("\n\n")
            for message in messages:
                fields = dict(line.split(": ", 1) for line in message.split("\n"))
                if "data" in fields:
                    data = json.loads(fields["data"])
                    assert (fields["id"], fields["event"]) == (str(data["number"]), data["event"])
                    yield data
        assert rest == ""

    async def _receive(self) -> dict[str, Any]:
        if not self._is_asked:
            self._is_asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._hung_up.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            return
        if message.get("body"):
            self._pieces.put_nowait(message["body"])
        if not message.get("more_body"):
            self._pieces.put_nowait(None)


class Service:
    """The application of the page while it is up, and a caller."""

    def __init__(self, app: Any, names: dict[str, Any], client: httpx.AsyncClient) -> None:
        self.app = app
        self.names = names
        self.client = client

    async def submit(self, body: Any = FILES, key: str | None = None) -> str:
        """Submit a run that is taken; its id."""
        answer = await self.client.post("/runs", json=body, headers={} if key is None else {"idempotency-key": key})
        assert answer.status_code == 202, answer.text
        run_id: str = answer.json()["runId"]
        assert answer.headers["location"] == f"/runs/{run_id}"
        return run_id

    def follow(self, run_id: str, after: int | None = None) -> Stream:
        """Follow the events of a run."""
        return Stream(self.app, f"/runs/{run_id}/events", after)

    async def events(self, run_id: str, after: int | None = None) -> list[dict[str, Any]]:
        """All events of a run, to its end."""
        async with self.follow(run_id, after) as stream:
            return [event async for event in stream.events()]

    async def until_over(self, run_id: str) -> dict[str, Any]:
        """Wait for the end of a run, as a caller does; then look at it."""
        *_, last = await self.events(run_id)
        assert last["event"] in ENDED
        shown: dict[str, Any] = (await self.client.get(f"/runs/{run_id}")).json()
        return shown


class Deployment:
    """A folder that services of the page use, one after the other or at once."""

    def __init__(self, folder: Path) -> None:
        self._store_file = folder / "state" / "runs.db"
        self.agents = Reviewers()

    @asynccontextmanager
    async def up(self, drain_seconds: float = 0) -> AsyncIterator[Service]:
        """Start the service, and stop it in order."""
        names: dict[str, Any] = {"__name__": "service"}
        exec(compile(example("fastapi/app"), "service.py", "exec"), names)
        app = names["create_app"](self._store_file, self.agents, drain_seconds)
        transport = httpx.ASGITransport(app=app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://service") as client,
        ):
            yield Service(app, names, client)


@pytest.fixture
def deployed(tmp_path: Path) -> Callable[[Callable[[Deployment], Awaitable[None]]], None]:
    """Runs a case with a deployment of its own."""

    def run(case: Callable[[Deployment], Awaitable[None]]) -> None:
        async def main() -> None:
            async with asyncio.timeout(SECONDS):
                await case(Deployment(tmp_path))

        asyncio.run(main())

    return run


def test_a_run_is_submitted_followed_and_looked_at(deployed: Any) -> None:
    async def case(deployment: Deployment) -> None:
        async with deployment.up() as service:
            run_id = await service.submit(FILES | {"labels": {"for": "a test"}})
            async with service.follow(run_id) as stream:
                events = [event async for event in stream.events()]
                assert (stream.status, stream.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
            kinds = [event["event"] for event in events]
            assert (kinds[:2], kinds[-1], kinds.count("agentEnded")) == (["runStarted", "phase"], "runEnded", 3)
            numbers = [event["number"] for event in events]
            assert numbers == sorted(set(numbers))
            shown = (await service.client.get(f"/runs/{run_id}")).json()
            wanted = {"status": "finished", "stopReason": "completed", "failure": None, "agentsStarted": 3}
            assert shown == shown | wanted | {"result": "summary is fine.", "labels": {"for": "a test"}}
            listed = (await service.client.get("/runs", params={"status": "finished"})).json()
            assert [run["runId"] for run in listed] == [run_id]
            assert (await service.client.get("/runs", params={"before": run_id})).json() == []

    deployed(case)


def test_the_same_key_gives_the_same_run_and_is_refused_for_another(deployed: Any) -> None:
    async def case(deployment: Deployment) -> None:
        async with deployment.up() as service:
            run_id = await service.submit(key="order-17")
            assert await service.submit(key="order-17") == run_id
            assert await service.submit(key="order-18") != run_id
            other = {"script": "review", "args": {"files": ["c.py"]}}
            refused = await service.client.post("/runs", json=other, headers={"idempotency-key": "order-17"})
            assert (refused.status_code, refused.json()["code"]) == (400, "INVALID_REQUEST")
            assert "order-17" in refused.json()["message"]
            assert len((await service.client.get("/runs")).json()) == 2

    deployed(case)


@pytest.mark.parametrize("seen", [1, 3, 5])
def test_a_stream_that_broke_goes_on_without_loss_and_without_doubles(deployed: Any, seen: int) -> None:
    async def case(deployment: Deployment) -> None:
        agents = deployment.agents
        agents.kept = {"Review b.py."}
        async with deployment.up() as service:
            run_id = await service.submit()
            got: list[dict[str, Any]] = []
            async with service.follow(run_id) as stream:
                async for event in stream.events():
                    got.append(event)
                    if len(got) == seen:
                        break
            agents.let_go("Review b.py.")
            got += await service.events(run_id, after=got[-1]["number"])
            assert told(got) == told(await service.events(run_id))
            assert got[-1]["event"] == "runEnded"

    deployed(case)


def test_who_has_seen_the_end_is_told_not_to_come_again(deployed: Any) -> None:
    async def case(deployment: Deployment) -> None:
        async with deployment.up() as service:
            run_id = await service.submit()
            *_, last = await service.events(run_id)
            path = f"/runs/{run_id}/events"
            again = await service.client.get(path, headers={"last-event-id": str(last["number"])})
            assert (again.status_code, again.content) == (204, b"")
            before = await service.client.get(path, headers={"last-event-id": str(last["number"] - 1)})
            assert before.text.startswith(f"id: {last['number']}\nevent: runEnded\n")
            assert (await service.client.get(path, headers={"last-event-id": "x"})).status_code == 422

    deployed(case)


def test_a_stream_without_events_shows_signs_of_life(deployed: Any) -> None:
    async def case(deployment: Deployment) -> None:
        deployment.agents.kept = {"Review a.py."}
        async with deployment.up() as service:
            service.names["KEEP_ALIVE_SECONDS"] = 0.01
            run_id = await service.submit()
            async with service.follow(run_id) as stream:
                async for piece in stream.text():
                    if piece == ": still here\n\n":
                        break
                deployment.agents.let_go("Review a.py.")
                *_, last = [event async for event in stream.events()]
            assert last["event"] == "runEnded"

    deployed(case)


def test_a_live_run_is_cancelled(deployed: Any) -> None:
    async def case(deployment: Deployment) -> None:
        deployment.agents.kept = {"Review a.py."}
        async with deployment.up() as service:
            run_id = await service.submit()
            await deployment.agents.until_asked("Review a.py.")
            answer = await service.client.post(f"/runs/{run_id}/cancel")
            assert (answer.status_code, answer.json()["runId"]) == (202, run_id)
            shown = await service.until_over(run_id)
            assert (shown["stopReason"], shown["failure"]["code"]) == ("cancelled", "CANCELLED")
            assert shown["result"] is None
            again = await service.client.post(f"/runs/{run_id}/cancel")
            assert (again.status_code, again.json()["status"]) == (202, "finished")

    deployed(case)


def test_what_is_refused_has_a_code_and_the_status_of_the_table(deployed: Any) -> None:
    async def case(deployment: Deployment) -> None:
        async with deployment.up() as service:
            client = service.client
            unknown = await client.post("/runs", json={"script": "rm"})
            assert (unknown.status_code, unknown.json()) == (
                MEANINGS[Code.INVALID_REQUEST].http_status,
                {"code": "INVALID_REQUEST", "message": "there is no script 'rm'; there are: review"},
            )
            deep: Any = []
            for _ in range(100):
                deep = [deep]
            args = await client.post("/runs", json={"script": "review", "args": {"files": deep}})
            assert (args.status_code, args.json()["code"]) == (MEANINGS[Code.ARGS_INVALID].http_status, "ARGS_INVALID")
            status = await client.get("/runs", params={"status": "lost"})
            assert (status.status_code, status.json()["code"]) == (400, "INVALID_REQUEST")
            assert (await client.post("/runs", json={"args": {}})).status_code == 422
            for method, path in (("GET", ""), ("GET", "/events"), ("POST", "/cancel")):
                answer = await client.request(method, f"/runs/20261130-000000-00000000{path}")
                assert (answer.status_code, answer.json()) == (404, {"detail": "there is no such run"})

    deployed(case)


def test_a_run_that_fails_is_no_error_of_http(deployed: Any) -> None:
    async def case(deployment: Deployment) -> None:
        async with deployment.up() as service:
            shown = await service.until_over(await service.submit({"script": "review"}))
            assert (shown["stopReason"], shown["failure"]["code"]) == ("error", "SCRIPT_ERROR")

    deployed(case)


def test_a_store_that_fails_is_said_to_callers(deployed: Any) -> None:
    async def case(deployment: Deployment) -> None:
        async with deployment.up() as service:
            await service.app.state.host.custody.store.close()
            answer = await service.client.get("/runs")
            assert (answer.status_code, answer.json()) == (
                MEANINGS[Code.STORE_UNAVAILABLE].http_status,
                {"code": "STORE_UNAVAILABLE", "message": "the store is closed"},
            )

    deployed(case)


def test_a_stop_gives_runs_back_and_the_next_start_goes_on_with_them(deployed: Any) -> None:
    async def case(deployment: Deployment) -> None:
        agents = deployment.agents
        agents.kept = {"Review b.py."}
        async with deployment.up() as service:
            run_id = await service.submit()
            await agents.until_asked("Review b.py.")
            seen: list[dict[str, Any]] = []
            async with service.follow(run_id) as stream:
                async for event in stream.events():
                    seen.append(event)
                    if event["event"] == "agentEnded":
                        break
        agents.let_go("Review b.py.")
        async with deployment.up() as service:
            seen += await service.events(run_id, after=seen[-1]["number"])
            assert told(seen) == told(await service.events(run_id))
            assert (await service.until_over(run_id))["result"] == "summary is fine."
        assert (agents.asked.count("Review a.py."), agents.asked.count("Review b.py.")) == (1, 2)

    deployed(case)


def test_agents_may_finish_while_the_service_drains(deployed: Any) -> None:
    async def case(deployment: Deployment) -> None:
        agents = deployment.agents
        agents.kept = {"Review b.py."}
        async with deployment.up(drain_seconds=SECONDS) as service:
            run_id = await service.submit()
            await agents.until_asked("Review b.py.")
            asyncio.get_running_loop().call_later(0.05, agents.let_go, "Review b.py.")
        async with deployment.up() as service:
            assert (await service.until_over(run_id))["result"] == "summary is fine."
        assert agents.asked.count("Review b.py.") == 1

    deployed(case)


def test_events_can_be_followed_from_another_process_of_the_service(deployed: Any) -> None:
    async def case(deployment: Deployment) -> None:
        agents = deployment.agents
        agents.kept = {"Review a.py.", "Review b.py."}
        async with deployment.up() as one, deployment.up() as other:
            run_id = await one.submit()
            for prompt in sorted(agents.kept):
                await agents.until_asked(prompt)
            following = [asyncio.create_task(service.events(run_id)) for service in (one, other)]
            agents.let_go("Review a.py.", "Review b.py.")
            seen, seen_there = await asyncio.gather(*following)
            assert told(seen) == told(seen_there)
            assert seen[-1]["event"] == "runEnded"

    deployed(case)
