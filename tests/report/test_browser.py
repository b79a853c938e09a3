"""The page in a real browser: Debian's chromium, without a window. Screenshots go to $VERFEDSV_SCREENSHOTS if set."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

from tests.report.valuations import make_large_summary, make_summary, names
from verfedsv.report.amounts import percent
from verfedsv.report.html import to_html
from verfedsv.report.summary import Payout, SettlementSummary

CHROMIUM = shutil.which("chromium")
EVIL = [
    "<script>alert(1)</script>",
    '=HYPERLINK("http://example.com","x")',
    '"><img src=x onerror=alert(1)>',
    "</script><script>document.title='lost'</script>",
    "{{ 7*7 }} ${alert(1)}",
    "\x1b[31m\u202egnp.exe",
]

OBJECTS = ["constructor", "__proto__", "toString", "hasOwnProperty"]
"""Names that every JavaScript object has."""

PAYOUTS = SettlementSummary(
    "1,000.00",
    "EUR",
    ("The budget of 1,000.00 EUR was shared in proportion to the values.",),
    (Payout("bank", "750.00", "746.20", "753.70", EVIL[2]), Payout("telco", "250.00", None, None, "")),
)


def payouts(n_clients, note):
    """Return a settlement of so many clients."""
    lines = tuple(Payout(name, "10.00", "9.00", "11.00", note) for name in names(n_clients))
    return SettlementSummary(f"{10 * n_clients}.00", "EUR", ("Rule: shares.",), lines)


pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt-get install chromium")


@pytest.fixture(scope="module")
def browser():
    """Return a browser."""
    with sync_playwright() as playwright:
        # Chromium refuses to run as root, as CI does, with its sandbox.
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def summaries():
    """Return summaries by name."""
    return {
        "2": make_summary([3.0, 1.0], [0.03, 0.02]),
        "20": make_large_summary(20),
        "200": make_large_summary(200),
        "evil": make_summary([6.0, 5.0, 4.0, 3.0, 2.0, -1.0], 0.1, clients=EVIL, run=EVIL[0], settings=[EVIL[:3]]),
        "objects": make_summary([4.0, 3.0, 2.0, -1.0], 0.1, clients=OBJECTS),
        "loss rose": make_summary([1.0, -3.0], 0.1),
        "unknown": make_summary([3.0, 1.0], [0.1, float("nan")], completed=True),
        "payouts": make_summary([3.0, 1.0], [0.03, 0.02], settlement=PAYOUTS),
        "unfinished": make_summary([3.0, 1.0], [0.03, 0.02], settlement=PAYOUTS, n_planned=9),
        "phone": make_summary(
            [3e-3, 1e-3, 5e-4],
            1e-5,
            n_rounds=600,
            completed=True,
            clients=["Stadtkrankenhaus Nord", "telco", "embeddings of insurance"],
            settlement=replace(PAYOUTS, payouts=(Payout("telco", "7,503.20", "7,462.20", "7,537.70", "floor"),)),
            settings=[("client Stadtkrankenhaus Nord", "features", "all")],
        ),
        "many payouts": make_summary(np.arange(60.0, 0, -1), 0.01, settlement=payouts(60, "")),
        "long notes": make_summary([3.0, 1.0], [0.03, 0.02], settlement=payouts(2, "agreed by all clients " * 12)),
    }


@pytest.fixture(scope="module")
def files(summaries, tmp_path_factory):
    """Return the pages of the summaries, as files."""
    folder = tmp_path_factory.mktemp("pages")
    for name, summary in summaries.items():
        (folder / f"{name}.html").write_text(to_html(summary), encoding="utf-8")
    return {name: folder / f"{name}.html" for name in summaries}


@pytest.fixture
def show(browser, files):
    """Return a function that opens a page; at the end, the console must be empty, and nothing fetched."""
    contexts, complaints = [], []

    def open_page(name, width=1100, *, colours="light", script=True):
        context = browser.new_context(
            viewport={"width": width, "height": 800}, color_scheme=colours, java_script_enabled=script
        )
        contexts.append(context)
        context.set_default_timeout(120_000)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: (complaints.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: request.url.startswith("file:") or complaints.append(request.url))
        page.goto(files[name].as_uri())
        if script:
            page.wait_for_selector("html[data-ready]")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


def plain(text):
    return re.sub(r"\s+", " ", text).strip()


@pytest.mark.parametrize("name", ["2", "20", "200", "loss rose", "unknown"])
def test_numbers_in_the_page_are_those_of_the_json(show, summaries, name):
    """Name, share and value of every client are in the order of the JSON, with ends rounded outwards.

    Where there are no shares, there are no columns of them.
    """
    page, content = show(name), json.loads(summaries[name].to_json())
    rows = page.locator("#numbers tbody tr").evaluate_all(
        "rows => rows.map(row => [[...row.cells].map(cell => cell.textContent),"
        " [...row.querySelectorAll('[data-number]')].map(cell => cell.dataset.number)])"
    )
    assert len(rows) == len(content["clients"])
    for (texts, numbers), expected in zip(rows, content["clients"], strict=True):
        client, place, *shares, value, ends, _ = texts
        assert client == expected["name"]
        if place != "open":
            assert place.split("\N{EN DASH}")[0] == str(expected["best_place"])
            assert place.split("\N{EN DASH}")[-1] == str(expected["worst_place"])
        if expected["share"] is None:
            assert (shares, numbers) == ([], [str(expected["decrease"])])
        else:
            assert numbers == [str(expected["share"]), str(expected["decrease"])]
            assert shares[0] == percent(expected["share"])
        assert as_number(value) == pytest.approx(expected["decrease"], abs=0.51 * 10 ** -decimals_of(value))
        if expected["decrease_low"] is None:
            assert ends == "unknown"
        else:
            low, high = map(as_number, ends.split(" to "))
            step = 10 ** -decimals_of(value)
            assert expected["decrease_low"] - step <= low <= expected["decrease_low"]
            assert expected["decrease_high"] <= high <= expected["decrease_high"] + step


def as_number(text):
    return float(text.replace("\N{MINUS SIGN}", "-").replace(",", ""))


def decimals_of(text):
    return len(text.partition(".")[2])


def test_clients_can_be_switched_off_and_on(show):
    """Each client has a box, for mouse and keyboard, and the chart follows."""
    page = show("20")
    lines = page.locator("#chart-rounds .mark-line.role-mark path:not([d=''])")
    assert lines.count() == 10
    page.get_by_label("bank 1", exact=True).uncheck()
    page.wait_for_selector("#chart-rounds[data-lines='9']")
    assert lines.count() == 9
    page.get_by_label("telco 1", exact=True).focus()
    page.keyboard.press("Space")
    page.wait_for_selector("#chart-rounds[data-lines='8']")
    assert lines.count() == 8
    page.get_by_role("button", name="All", exact=True).click()
    page.wait_for_selector("#chart-rounds[data-lines='20']")
    assert lines.count() == 20


def test_two_hundred_clients_stay_usable(show):
    """At first there are ten lines; a client can be found by name and switched on, and all lines can be drawn."""
    page = show("200")
    lines = page.locator("#chart-rounds .mark-line.role-mark path:not([d=''])")
    assert lines.count() == 10
    page.get_by_label("Find").fill("clinic 20")
    boxes = page.locator(".boxes label:visible")
    assert boxes.count() == 1
    boxes.locator("input").check()
    page.wait_for_selector("#chart-rounds[data-lines='11']")
    page.get_by_role("button", name="All", exact=True).click()
    page.wait_for_selector("#chart-rounds[data-lines='200']")
    assert lines.count() == 200


def test_the_switch_shows_single_rounds(show):
    """The axis changes, and so does the text on the chart."""
    page = show("2")
    assert page.get_by_text("It ends at the client's value").is_visible()
    labels = page.locator("#chart-rounds .role-axis-label text")
    before = labels.all_text_contents()
    page.get_by_label("in each round").check()
    page.wait_for_selector("#chart-rounds[data-lines='2']")
    assert labels.all_text_contents() != before
    assert not page.get_by_text("It ends at the client's value").is_visible()
    assert page.get_by_text("for every client; what counts").is_visible()


@pytest.mark.parametrize(("name", "width"), [("2", 1100), ("20", 1100), ("200", 1100), ("20", 390), ("payouts", 390)])
def test_no_table_hides_anything_without_saying_so(show, name, width):
    """Up to thirty rows are all visible; where a table scrolls in either direction, a line above it says so."""
    boxes = (
        show(name, width)
        .locator(".scroll")
        .evaluate_all(
            "boxes => boxes.map(box => [box.firstElementChild.id, box.firstElementChild.rows.length,"
            " box.scrollHeight > box.clientHeight + 1, box.scrollWidth > box.clientWidth + 1,"
            " getComputedStyle(box.previousElementSibling).display !== 'none',"
            " box.previousElementSibling.previousElementSibling.textContent.includes('rows: scroll')])"
        )
    )
    for table, n_rows, is_cut_below, is_cut_aside, says_aside, says_below in boxes:
        assert is_cut_below == says_below == (n_rows > 40), table
        assert is_cut_aside == says_aside, table
        assert width < 1100 or not is_cut_aside, table


def test_the_sum_of_payouts_is_always_seen(show):
    """It stays visible however many clients there are."""
    page = show("many payouts")
    page.locator("#amounts").scroll_into_view_if_needed()
    box, row = (page.locator(place).bounding_box() for place in (".scroll:has(#amounts)", "#amounts tfoot th"))
    assert box["y"] < row["y"] + row["height"] <= box["y"] + box["height"] + 1


def test_print_does_not_shrink(show):
    """No table is wider than a page of A4 within its margins, however long its notes are."""
    page = show("long notes", 688)
    page.emulate_media(media="print")
    assert page.evaluate("document.documentElement.scrollWidth") <= 688
    assert page.evaluate("Math.max(...[...document.querySelectorAll('table')].map(each => each.offsetWidth))") <= 688
    notes = page.locator("#amounts td.text").first
    assert notes.evaluate("cell => getComputedStyle(cell).textAlign") == "left"


def test_payouts_by_values_that_nobody_should_pay_by_have_a_warning(show):
    """It is above the amounts, and there is none if the values are sound."""
    warning = "section[aria-labelledby=payouts] .verdict"
    assert "only 4 of 9 rounds are recorded" in show("unfinished").locator(warning).inner_text()
    assert show("payouts").locator(warning).count() == 0


def test_hovering_shows_the_numbers_of_the_json(show, summaries):
    """The tooltip has client, round and value of the point nearest to the pointer."""
    page = show("20")
    chart = page.locator("#chart-rounds svg")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.move(box["x"] + box["width"] / 2 + 3, box["y"] + box["height"] / 2)
    tooltip = page.locator("#vg-tooltip-element.visible")
    tooltip.wait_for()
    cells = dict(
        tooltip.locator("tr").evaluate_all(
            "rows => rows.map(row => [...row.cells].map(cell => cell.textContent.replace(':', '')))"
        )
    )
    client = next(client for client in summaries["20"].clients if client.name == cells["client"])
    place = client.cumulative.rounds.index(int(cells["round"]))
    assert float(cells["value"]) == pytest.approx(client.cumulative.values[place], rel=1e-4)


def test_names_do_nothing(show):
    """Names of clients and texts of files are shown as they are; no script runs, not even in a tooltip."""
    page = show("evil")
    shown = page.locator("#numbers tbody th").all_text_contents()
    assert shown[:5] == EVIL[:5]
    assert shown[5] == "\N{REPLACEMENT CHARACTER}[31m\N{REPLACEMENT CHARACTER}gnp.exe"
    assert page.title() == f"Contributions in {EVIL[0]}"
    bars = page.locator("#chart-shares .layer_0_marks path")
    for number in range(bars.count()):
        bars.nth(number).hover()
        tooltip = page.locator("#vg-tooltip-element.visible")
        tooltip.wait_for()
        assert tooltip.locator("td.value").first.text_content() == shown[number]
    assert page.locator("#vg-tooltip-element script, #vg-tooltip-element img, main img").count() == 0


@pytest.mark.parametrize("script", [True, False])
def test_names_that_objects_have_blank_no_chart(show, script):
    """Each client has its bar and its line, with and without a script."""
    page = show("objects", script=script)
    assert page.locator("#chart-shares .layer_0_marks path").count() == 4
    labels = page.locator("#chart-shares .role-axis-label text").all_text_contents()
    assert labels[-4:] == OBJECTS
    assert page.locator("#chart-rounds .mark-line.role-mark path:not([d=''])").count() == 4


def test_no_other_script_or_style_is_allowed(browser, files):
    """The policy names the page's own by their hashes, so injected ones do nothing."""
    assert "unsafe-inline" not in files["2"].read_text(encoding="utf-8")
    page = browser.new_page()
    page.goto(files["2"].as_uri())
    blocked = page.evaluate(
        """() => new Promise((resolve) => {
            const found = [];
            addEventListener("securitypolicyviolation", (event) => {
                found.push(event.effectiveDirective);
                if (found.length === 2) resolve([found.sort(), window.isOwned ?? false]);
            });
            const script = document.createElement("script"), style = document.createElement("style");
            script.textContent = "window.isOwned = true";
            style.textContent = "body { display: none }";
            document.body.append(script, style);
        })"""
    )
    page.close()
    assert blocked == [["script-src-elem", "style-src-elem"], False]


@pytest.mark.parametrize("name", ["2", "20", "loss rose", "unfinished"])
@pytest.mark.parametrize(("colours", "width"), [("light", 1100), ("dark", 360)])
def test_axe_finds_nothing(show, name, colours, width):
    """Contrast, labels, tables, landmarks, headings and scrolling by keyboard are accessible, in light and dark."""
    found = Axe().run(show(name, width, colours=colours)).response["violations"]
    assert [(each["id"], [node["html"][:200] for node in each["nodes"][:3]]) for each in found] == []


@pytest.mark.parametrize("name", ["2", "20", "200", "evil", "payouts"])
def test_narrow_screens_do_not_scroll_sideways(show, name):
    """At 320 pixels, only tables scroll, in boxes of their own."""
    page = show(name, 320)
    assert page.evaluate("document.documentElement.scrollWidth") <= 320


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_on_a_phone_nothing_is_cut_or_broken(show, colours):
    """No table scrolls sideways, each number says what it is, and no word of a table is broken in two."""
    page = show("phone", 360, colours=colours)
    cut = "boxes => boxes.filter(box => box.scrollWidth > box.clientWidth + 1).map(box => box.firstElementChild.id)"
    assert page.locator(".scroll").evaluate_all(cut) == []
    assert page.get_by_text("7,462.20 to 7,537.70").bounding_box()["x"] > 0
    label = page.locator("#amounts tbody td").nth(1).evaluate("cell => getComputedStyle(cell, '::before').content")
    assert label == '"Range"'
    broken = page.locator("tbody th, td").evaluate_all(
        """cells => cells.flatMap(cell => {
            const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT), found = [];
            for (let node = walker.nextNode(); node; node = walker.nextNode()) {
                for (const match of node.data.matchAll(/[A-Za-z0-9.,]+/g)) {
                    const range = document.createRange();
                    range.setStart(node, match.index);
                    range.setEnd(node, match.index + match[0].length);
                    if (new Set([...range.getClientRects()].map(box => box.top)).size > 1) found.push(match[0]);
                }
            }
            return found;
        })"""
    )
    assert broken == []


def test_payouts_are_those_of_the_settlement(show, summaries):
    """The table has ranges, notes as text, and the sum."""
    page, known = show("payouts"), summaries["payouts"].settlement
    rows = page.locator("section[aria-labelledby=payouts] tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.children].map(cell => cell.textContent))"
    )
    assert rows == [
        [known.payouts[0].client, "750.00", "746.20 to 753.70", EVIL[2]],
        [known.payouts[1].client, "250.00", "unknown", ""],
    ]
    assert plain(page.locator("section[aria-labelledby=payouts] tfoot").inner_text()) == "Sum 1,000.00"


def test_without_scripts_the_essentials_are_there(show):
    """Sentences, tables and drawn charts are visible, and switches, which would do nothing, are not."""
    page = show("20", script=False)
    said = plain(page.locator(".sentences p").first.inner_text())
    assert said == "bank 1 contributed 18.78 % (17.78 to 19.82 %)."
    assert page.locator("#chart-shares svg .layer_0_marks path").count() == 20
    assert page.locator("#chart-rounds svg .mark-line path").count() == 10
    assert not page.locator(".controls").is_visible()


def test_print_is_black_on_white(show):
    """This holds in dark mode too; folded parts are printed, and switches are not."""
    page = show("20", colours="dark")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    fill = "getComputedStyle(document.querySelector('#chart-shares text')).fill"
    assert page.evaluate(fill) == "rgb(0, 0, 0)"
    assert not page.locator(".switch").is_visible()
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.get_by_text("raised the loss: ").first.is_visible()
    assert page.pdf().startswith(b"%PDF")


@pytest.mark.parametrize("n_clients", [2, 20, 200, 1000])
def test_pages_are_small_and_always_the_same(files, summaries, n_clients):
    """A page has less than 2 MB, and the same bytes each time."""
    summary = summaries.get(str(n_clients)) or make_large_summary(n_clients)
    page = to_html(summary)
    assert len(page.encode()) < 2_000_000
    if str(n_clients) in files:
        assert page == files[str(n_clients)].read_text(encoding="utf-8")


@pytest.mark.skipif("VERFEDSV_SCREENSHOTS" not in os.environ, reason="VERFEDSV_SCREENSHOTS names no folder")
@pytest.mark.parametrize("name", ["2", "20", "200", "payouts"])
def test_screenshots(show, name):
    """Leave pictures to look at: light, dark, on a phone."""
    folder = Path(os.environ["VERFEDSV_SCREENSHOTS"])
    for colours, width in (("light", 1100), ("dark", 1100), ("light", 360)):
        page = show(name, width, colours=colours)
        page.screenshot(path=folder / f"{name}-{colours}-{width}.png", full_page=True)
