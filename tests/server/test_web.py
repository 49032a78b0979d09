"""The web view: what people see, and that nothing they or their programs wrote becomes markup."""

from __future__ import annotations

import re
from datetime import timedelta
from urllib.parse import quote

import pytest

from clew.model.commands import ScheduleActivityTask
from clew.model.failure import ApplicationInfo, Failure
from clew.service import requests as r
from tests.conformance.service.scripted import payloads, soon
from tests.server.conftest import Served

HOSTILE = "<script>alert('x')</script>\"'&"


async def test_the_way_from_the_root_to_the_list(served: Served) -> None:
    await served.start("w1")
    found = await served.http.get("/", follow_redirects=True)
    assert found.url.path == "/ui/default/workflows"
    assert found.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in found.headers["content-security-policy"]
    assert "w1" in found.text
    assert "Running" in found.text
    style = re.search(r'href="(/ui/style\.css[^"]*)"', found.text)
    assert style is not None
    assert (await served.http.get(style[1])).headers["content-type"].startswith("text/css")


async def test_the_list_is_filtered(served: Served) -> None:
    await served.start("claim-1", workflow_type="Claim")
    await served.start("order-1", workflow_type="Order")
    served.advance(3_600)
    await served.start("claim-2", workflow_type="Claim")
    later = (served.clock.now() - timedelta(seconds=60)).strftime("%Y-%m-%dT%H:%M:%S")

    async def shown(**fields: str) -> list[str]:
        page = await served.http.get("/ui/default/workflows", params=fields)
        assert page.status_code == 200, page.text
        return re.findall(r">((?:claim|order)-\d)<", page.text)

    assert await shown() == ["claim-2", "order-1", "claim-1"]
    assert await shown(type="Claim") == ["claim-2", "claim-1"]
    assert await shown(id="order") == ["order-1"]
    assert await shown(since=later) == ["claim-2"]
    assert await shown(until=later) == ["order-1", "claim-1"]
    assert await shown(status="Completed") == []
    assert await shown(query="WorkflowType = 'Order' OR WorkflowId = 'claim-1'") == ["order-1", "claim-1"]
    assert await shown(type="it's \\ odd") == []
    wrong = await served.http.get("/ui/default/workflows", params={"query": "Nope ="})
    assert wrong.status_code == 400
    assert 'role="alert"' in wrong.text
    assert (await served.http.get("/ui/default/workflows", params={"since": "soon"})).status_code == 400


async def test_a_long_list_has_pages(served: Served) -> None:
    for number in range(55):
        await served.start(f"w{number}")
    first = await served.http.get("/ui/default/workflows")
    following = re.search(r'href="([^"]*page_token=[^"]*)"', first.text)
    assert following is not None
    second = await served.http.get(following[1].replace("&amp;", "&"))
    assert ">w4<" in second.text
    assert ">w54<" not in second.text


async def test_a_run_tells_why_it_waits_and_what_failed(served: Served) -> None:
    await served.start("w1", input=payloads("photo"))
    worker = await served.worker()
    command = ScheduleActivityTask(activity_id="a-1", activity_type="pay", start_to_close_timeout=timedelta(hours=1))
    await worker.complete(await worker.workflow_task(), command, waiting_on=("activity pay @ claims.py:7",))
    attempt = await worker.activity_task()
    failure = Failure(message="no money", info=ApplicationInfo(type="Refused"))
    await soon(served.engine.fail_activity(r.FailActivityRequest(token=attempt.token, failure=failure, identity="w")))
    page = await served.http.get("/ui/default/workflows/w1/-")
    for text in ("Waits for", "a-1 (pay)", "BackingOff", "no money", "workflow W", "&quot;photo&quot;"):
        assert text in page.text, text
    full = await served.http.get("/ui/default/workflows/w1/-", params={"history": "full"})
    for text in ("WorkflowExecutionStarted", "ActivityTaskScheduled", "schedule"):
        assert text in full.text, text
    live = await served.http.get("/ui/default/workflows/w1/-", params={"live": "1"})
    assert 'http-equiv="refresh"' in live.text


async def test_the_stack_is_asked_of_a_worker(served: Served) -> None:
    await served.start("w1")
    page = await served.http.get("/ui/default/workflows/w1/-", params={"stack": "1"})
    assert page.status_code == 200
    assert "Where the code stands" in page.text
    assert "no worker" in page.text


@pytest.mark.parametrize("place", ["workflow_id", "workflow_type", "task_queue", "input", "identity"])
async def test_nothing_that_a_program_wrote_becomes_markup(served: Served, place: str) -> None:
    workflow_id = HOSTILE if place == "workflow_id" else "w1"
    hostile = {place: HOSTILE} if place not in ("workflow_id", "input") else {}
    await served.start(workflow_id, input=payloads(HOSTILE), **hostile)
    shown_count = 0
    for path in (
        "/ui/default/workflows",
        f"/ui/default/workflows?type={quote(HOSTILE)}&id={quote(HOSTILE)}&query={quote(HOSTILE)}",
        f"/ui/default/workflows/{quote(workflow_id, safe='')}/-",
        f"/ui/default/workflows/{quote(workflow_id, safe='')}/-?history=full",
        f"/ui/{quote(HOSTILE, safe='')}/workflows",
    ):
        page = await served.http.get(path)
        assert page.status_code in (200, 400, 404), path
        shown_count += "alert" in page.text
        assert "<script" not in page.text, path
        assert HOSTILE not in page.text, path
    assert shown_count >= 4, "it is shown, as text"


async def test_what_is_not_there_is_a_page_too(served: Served) -> None:
    for path, status in (
        ("/ui/default/workflows/none/-", 404),
        ("/ui/nope/workflows", 404),
        ("/ui/default/other", 404),
        ("/ui/default/workflows?nope=1", 400),
    ):
        found = await served.http.get(path)
        assert found.status_code == status
        assert found.headers["content-type"].startswith("text/html")
    assert (await served.http.post("/ui/default/workflows")).status_code == 405


async def test_the_web_view_can_be_left_out(served: Served) -> None:
    from clew.server.settings import ServerSettings

    await served.serve(settings=ServerSettings(web=False))
    assert (await served.http.get("/ui/default/workflows")).status_code == 404
