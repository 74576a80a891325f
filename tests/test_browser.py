"""The page in a browser: it loads in silence, sorts, filters, opens details, and fits phone and desk in light and dark.

Needs Debian's chromium (or CHROMIUM, a path) and playwright, whose own browser builds are not used.
"""

import itertools
import os
import shutil

import pytest

from compare import html, readme, runs
from tests.rows_for_reports import full_run, timed
from tests.test_html import EVIL, RUN

pytestmark = [pytest.mark.browser, pytest.mark.slow]
sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome") or ""
SIZES = [(1400, "light"), (1400, "dark"), (768, "light"), (400, "light"), (400, "dark"), (320, "light")]


@pytest.fixture(scope="module")
def browser():
    if not CHROMIUM:
        pytest.skip("no Chromium here: apt-get install chromium, or set CHROMIUM to a browser's path")
    with sync_api.sync_playwright() as playwright:
        # Chromium's own sandbox does not start for root in a container; the page is ours and asks for nothing.
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def open_page(browser, tmp_path):
    """Opens a page text; what it says on the console, throws, or asks for must be nothing by the end."""
    heard, contexts = [], []

    def opened(text, width=1400, scheme="light", **more):
        path = tmp_path / "page.html"
        path.write_text(text, encoding="utf-8")
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **more)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: heard.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: heard.append(f"error: {error}"))
        page.on("dialog", lambda dialog: heard.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: heard.append(request.url) if request.url != path.as_uri() else None)
        page.goto(path.as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert heard == []


def shipped():
    return (runs.latest() / readme.PAGE).read_text(encoding="utf-8")


def shown(page):
    return page.locator("#rows tbody tr:not(.detail):visible")


def filters(page):
    return page.locator("#filters")


def column(page, title):
    """Texts of the column of that head."""
    place = 1 + [one.title for one in html.TABLE_COLUMNS].index(title)
    return shown(page).locator(f"td:nth-child({place})").all_inner_texts()


@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_the_shipped_page_fits_every_width(width, scheme, open_page):
    page = open_page(shipped(), width, scheme)
    across = "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    needed, given = page.evaluate(across)
    assert needed <= given
    shown(page).locator("button").first.click()
    for summary in page.locator("summary:visible").all():
        summary.click()
    needed, given = page.evaluate(across)
    assert needed <= given
    assert page.locator("svg.chart:visible").count() == 6


CUT_OR_COVERED = """() => {
      const found = [];
      for (const chart of document.querySelectorAll("svg.chart")) {
        const box = chart.getBoundingClientRect();
        if (!box.width) continue;
        const texts = [...chart.querySelectorAll("text")].filter((text) => text.textContent.trim());
        const boxes = texts.map((text) => [text, text.getBoundingClientRect()]);
        for (const [text, b] of boxes) {
          if (b.left < box.left - 3 || b.right > box.right + 3 || b.top < box.top - 3 || b.bottom > box.bottom + 3)
            found.push(`cut: ${text.textContent}`);
        }
        const level = boxes.filter(([text]) => !text.hasAttribute("transform"));
        level.forEach(([one, a], index) => {
          for (const [other, b] of level.slice(index + 1)) {
            const x = Math.min(a.right, b.right) - Math.max(a.left, b.left);
            const y = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
            if (x > 3 && y > 5) found.push(`${one.textContent} over ${other.textContent}`);
          }
        });
      }
      return found;
    }"""
"""What is wrong with the words of the pictures that are shown, as a list."""


@pytest.mark.parametrize("width", [1400, 400])
def test_no_words_of_a_picture_are_cut_or_on_top_of_each_other(width, open_page):
    page = open_page(shipped(), width)
    assert page.evaluate(CUT_OR_COVERED) == []
    names = page.locator("#ladder svg.chart:visible text.kernel")
    x, y = (names.nth(0).get_attribute(name) for name in ("x", "y"))
    names.nth(1).evaluate("(text, place) => { text.setAttribute('y', place); }", y)
    assert page.evaluate(CUT_OR_COVERED) == ["v0_naive over v1_thread_tile"]
    names.nth(1).evaluate("(text, place) => { text.setAttribute('x', place); }", str(float(x) - 1500))
    assert page.evaluate(CUT_OR_COVERED) == ["cut: v1_thread_tile"]


def test_columns_sort_both_ways_and_what_has_no_number_comes_last(open_page):
    page = open_page(html.render(full_run(), RUN))
    page.get_by_role("button", name="Show all").click()
    head = page.locator("#rows thead th", has_text="TFLOP/s")
    assert head.get_attribute("aria-sort") == "descending"
    numbers = [float(text) for text in column(page, "TFLOP/s") if text]
    assert numbers == sorted(numbers, reverse=True)
    assert column(page, "TFLOP/s")[-1] == ""
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    numbers = [float(text) for text in column(page, "TFLOP/s") if text]
    assert numbers == sorted(numbers)
    assert column(page, "TFLOP/s")[-1] == ""
    page.locator("#rows thead th", has_text="kernel").locator("button").click()
    names = shown(page).locator("th button").all_inner_texts()
    assert names == sorted(names)
    assert page.locator("#rows thead [aria-sort]").count() == 1


def test_filters_and_search_narrow_the_rows_and_say_how_many(open_page):
    rows = full_run()
    page = open_page(html.render(rows, RUN))
    status = page.get_by_role("status")
    page.get_by_role("button", name="Show all").click()
    assert status.inner_text() == f"{len(rows)} of {len(rows)} rows"
    filters(page).get_by_label("Track").select_option("fp16_tensor")
    assert set(column(page, "track")) == {"FP16"}
    filters(page).get_by_label("Track").select_option("")
    filters(page).get_by_label("Window").select_option("burst")
    filters(page).get_by_label("Size").select_option("4096x4096x4096")
    assert (set(column(page, "m × n × k")), set(column(page, "window"))) == ({"4096³"}, {"burst"})
    filters(page).get_by_label("Search").fill("SIMT cutlass")
    names = shown(page).locator("th button").all_inner_texts()
    assert sorted(names) == ["cutlass_simt_a_default", "cutlass_simt_b"]
    assert status.inner_text() == f"2 of {len(rows)} rows"
    filters(page).get_by_label("Search").fill("no such kernel")
    assert shown(page).count() == 0


def test_the_table_opens_where_most_of_the_ladder_was_timed(open_page):
    page = open_page(html.render(full_run(), RUN))
    assert set(column(page, "m × n × k")) == {"4096³"}
    assert set(column(page, "window")) == {"sustained"}


def test_details_open_by_click_and_by_key_and_go_with_their_row(open_page):
    code = {"v7_best": {"per_k_step": {"FFMA": 128.0, "LDS": 6.0}, "facts": {"limited by": "registers"}}}
    page = open_page(html.render(full_run(), RUN, code=code))
    button = page.get_by_role("button", name="v7_best")
    button.focus()
    page.keyboard.press("Enter")
    assert button.get_attribute("aria-expanded") == "true"
    text = page.locator("tr.detail").inner_text()
    for word in ("kernel_name", "max_error", "x_cublas_hi", "registers", "FFMA", "128 (95.5 %)", "limited by"):
        assert word in text, word
    filters(page).get_by_label("Search").fill("v0")
    assert page.locator("tr.detail:visible").count() == 0
    filters(page).get_by_label("Search").fill("")
    page.locator("#rows thead button").first.click()
    assert page.locator("tr:has(button[aria-expanded=true]) + tr.detail").count() == 1
    button.click()
    assert page.locator("tr.detail").count() == 0
    shown(page).locator("td").first.click()
    assert page.locator("tr.detail").count() == 1


def test_tabs_change_the_picture_by_key(open_page):
    page = open_page(html.render(full_run(), RUN))
    visible = page.locator("#tracks svg.chart:visible")
    before = visible.get_attribute("aria-label")
    page.locator("#tracks input:checked").focus()
    page.keyboard.press("ArrowLeft")
    assert visible.count() == 1
    assert visible.get_attribute("aria-label") != before


def test_pointing_at_a_mark_says_what_it_is(open_page):
    page = open_page(html.render(full_run(), RUN))
    page.locator("#tracks svg.chart:visible .mark.cublas").first.hover(force=True)
    assert "cublas_sgemm · 50.0 TFLOP/s" in page.get_by_role("tooltip").inner_text()
    page.keyboard.press("Escape")
    assert page.get_by_role("tooltip").count() == 0


def test_everything_that_takes_focus_has_a_name_and_headings_are_in_order(open_page):
    page = open_page(html.render(full_run(), RUN))
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("a, button, input, select, [tabindex], svg[role]")].filter((e) =>
      !(e.textContent.trim() || e.getAttribute("aria-label") || e.getAttribute("aria-labelledby")
        || (e.labels && e.labels[0] && e.labels[0].textContent.trim()))).map((e) => e.outerHTML)"""
    )
    assert nameless == []
    levels = [int(tag[1]) for tag in page.evaluate("[...document.querySelectorAll('h1,h2,h3')].map((e) => e.tagName)")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((e) => e.id)")
    assert len(ids) == len(set(ids))


def test_what_a_row_holds_never_runs(open_page):
    rows = [
        timed(EVIL, "handwritten", "fp32_simt", 40.0, kernel_name=EVIL, throttle=EVIL),
        timed("cublas_sgemm", "cublas", "fp32_simt", 50.0),
    ]
    code = {EVIL: {"per_k_step": {EVIL: 1.0}, "facts": {EVIL: EVIL}}}
    page = open_page(html.render(rows, {"gpu": {"name": EVIL}}, code=code, summaries={EVIL: EVIL}))
    page.get_by_role("button", name="alert(1)").click()
    assert EVIL in page.locator("tr.detail").inner_text()
    assert page.locator("img").count() == 0


def test_without_scripts_every_row_is_there_and_in_print_the_wide_picture(open_page):
    rows = full_run()
    page = open_page(html.render(rows, RUN), java_script_enabled=False)
    assert shown(page).count() == len(rows)
    assert not page.locator("#filters").is_visible()
    page.emulate_media(media="print")
    assert page.locator("svg.chart.wide:visible").count() == 4  # these rows carry no tile and no clock
    assert not page.locator("nav").is_visible()
