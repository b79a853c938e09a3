"""The page in a real browser, as tests/report has it."""

from __future__ import annotations

import json
import os
import re
import threading
from pathlib import Path
from urllib.request import urlopen

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.report.test_browser import CHROMIUM, browser  # noqa: F401  # a fixture
from tests.watch.runs import GrowingRun
from verfedsv.watch.server import Watch

EVIL = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "{{ 7*7 }} ${alert(1)} </script>",
    "constructor",
    "__proto__",
]

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt-get install chromium")


@pytest.fixture
def watched(tmp_path):
    """Return a growing run with hostile names, and the address of its page."""
    run = GrowingRun(tmp_path / EVIL[0].replace("/", "-"), EVIL)
    page = Watch(run.folder, every=0.1)
    thread = threading.Thread(target=page.run)
    thread.start()
    yield run, page
    run.close()
    page.stop()
    thread.join(timeout=120)
    assert not thread.is_alive()


@pytest.fixture
def show(browser, watched):  # noqa: F811
    """Return a function that opens the page; at the end, there must be no console errors or external requests."""
    contexts, complaints, address = [], [], watched[1].address

    def open_page(width=1100, colours="light"):
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=colours)
        context.set_default_timeout(120_000)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: (complaints.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: request.url.startswith(address) or complaints.append(request.url))
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


def state_of(page):
    with urlopen(f"{page.address}state.json") as response:  # noqa: S310  # our own server
        return json.load(response)


def rows_of(tab):
    return tab.locator("#numbers tbody tr").evaluate_all(
        "rows => rows.map(row => [row.querySelector('th').textContent, row.cells[2].textContent,"
        " Number(row.cells[2].dataset.number)])"
    )


def test_the_page_follows_a_run_without_reloading(show, watched):
    """It waits for the first round, then shows the shares of the JSON and follows them; names have no effect."""
    run, page = watched
    tab = show()
    tab.wait_for_selector("html[data-status=waiting]")
    tab.evaluate("window.stays = true")
    seen = []
    for n_rounds in (2, 7):
        run.grow(n_rounds - run.n_rounds)
        tab.wait_for_selector(f"html[data-rounds='{n_rounds}']")
        expected = state_of(page)
        rows = rows_of(tab)
        names, shares = (
            [heading[0] for heading in expected["table"]["headings"]].index(name) for name in ("Client", "Share")
        )
        assert rows == [[cells[names][0], *cells[shares]] for cells in expected["table"]["rows"]]
        assert f"In {n_rounds} rounds" in tab.locator("#headline").inner_text()
        seen.append((rows, tab.locator(".plot .line").first.get_attribute("points")))
    assert seen[0] != seen[1]
    assert tab.evaluate("window.stays")
    assert sorted(row[0] for row in seen[1][0]) == sorted(EVIL)
    assert tab.locator("main script, main img").count() == 0
    tab.locator("figure").nth(2).wait_for()  # the line of metrics is written after the rounds
    assert tab.locator("figure").count() == 3
    # Of the first values alone, as the next announcement is not due: under load, these may be of one round.
    announced = tab.locator("[role=status]").text_content()
    assert re.search(r"^Valued: (1 round|[2-7] rounds)\b.* In (1 round|[2-7] rounds) the model's loss fell", announced)


def test_damage_is_shown_as_text(show, watched):
    """The page says what is wrong with a file."""
    run, _ = watched
    run.grow(2)
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.write("<b>nonsense\n")
    tab = show()
    tab.get_by_text("skipped 1 unreadable line of metrics.jsonl").wait_for()


@pytest.mark.parametrize(("colours", "width"), [("light", 1100), ("dark", 320)])
def test_axe_finds_nothing_and_narrow_screens_do_not_scroll(show, watched, colours, width):
    """In light and dark, on a screen and on a phone."""
    watched[0].grow(4)
    tab = show(width, colours)
    tab.wait_for_selector("html[data-rounds='4']")
    found = Axe().run(tab).response["violations"]
    assert [(each["id"], [node["html"][:200] for node in each["nodes"][:3]]) for each in found] == []
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    if "VERFEDSV_SCREENSHOTS" in os.environ:
        tab.screenshot(path=Path(os.environ["VERFEDSV_SCREENSHOTS"]) / f"watch-{colours}.png", full_page=True)
