"""The page in a real browser: sorting, colours, layout, printing, and no request at all.

What the layout tests prove: places and widths of the main parts (which come from the style sheet, not
from fonts), computed colours, and that the pixels of a screenshot are mostly the page's ground with text
and drawings on it. They do not compare letters, which differ between machines.
"""

import base64
import functools
import os
import shutil

import pytest

from lilliput.charts.colors import DARK, LIGHT
from lilliput.report.document import Report

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = os.environ.get("CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
if CHROMIUM is None:
    pytest.skip("no Chromium found: install it, or set CHROMIUM", allow_module_level=True)

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
FLAGS += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
DESKTOP, PHONE = 1280, 390


LAYERS = 48
ASKED, SAID = [], []  # every request and every message of the browser's console


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield found
        found.close()


@pytest.fixture(scope="module")
def medium(make_large):
    return make_large(LAYERS)


@pytest.fixture(scope="module")
def files(medium, hostile, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    medium.save(folder / "medium.html")
    hostile.save(folder / "hostile.html")
    return folder


@pytest.fixture(scope="module")
def fresh(browser, files):
    """Open a page in a profile of its own, and note what it asks for and complains of."""

    def go(name="medium", width=DESKTOP, scheme="light", **options):
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=scheme,
            reduced_motion="reduce",
            **options,
        )
        page = context.new_page()
        page.on("request", lambda request: ASKED.append(request.url))
        page.on("console", lambda message: SAID.append(message.text))
        page.on("pageerror", lambda error: SAID.append(str(error)))
        page.goto((files / f"{name}.html").as_uri())
        if options.get("java_script_enabled", True):
            page.wait_for_selector("#theme:visible")
        return page

    return go


@pytest.fixture(scope="module")
def visit(fresh):
    """Open a page, or the same one again."""
    return functools.cache(fresh)


def column(page, key):
    """The texts of a column of the table, in the order shown."""
    place = f"""() => {{
        const cells = [...document.querySelectorAll('#table thead th')];
        const at = cells.findIndex((x) => x.textContent.trim() === '{key}');
        return [...document.querySelectorAll('#table tbody tr')].filter((x) => !x.hidden)
            .map((x) => x.cells[at].textContent);
    }}"""
    return page.evaluate(place)


def number(text):
    units = {"k": 1e3, "M": 1e6, "G": 1e9}
    first, _, unit = text.replace("\u00a0", " ").replace("%", "").strip().partition(" ")
    return float(first) * units.get(unit.strip(), 1)


def header(page, key):
    return page.locator("#table thead th", has_text=key).first


def test_a_click_sorts_by_number_and_says_so(visit):
    page = visit(width=DESKTOP, scheme="light")
    for key, first, second in (
        ("MACs", "descending", "ascending"),
        ("Kept", "ascending", "descending"),
        ("SQNR dB", "ascending", "descending"),
        ("ms", "descending", "ascending"),
        ("Bits", "ascending", "descending"),
    ):
        original = column(page, key)
        for order in (first, second):
            header(page, key).get_by_role("button").click()
            assert header(page, key).get_attribute("aria-sort") == order
            values = [number(x) for x in column(page, key)]
            assert values == sorted(values, reverse=order == "descending"), (key, order)
        others = page.locator('#table [aria-sort]:not([aria-sort="none"])')
        assert others.count() == 1
        assert f"Sorted by {key}, {second}" in page.locator("#sorted").text_content()
        header(page, key).get_by_role("button").click()
        assert column(page, key) == original


def test_the_keyboard_sorts_names_as_people_count(visit):
    page = visit(width=DESKTOP, scheme="light")
    button = header(page, "Layer").get_by_role("button")
    button.focus()
    page.keyboard.press("Enter")
    assert header(page, "Layer").get_attribute("aria-sort") == "ascending"
    assert column(page, "Layer")[0] == "layer1.0.conv1"
    page.keyboard.press("Space")
    assert column(page, "Layer")[0] == "layer1.11.conv4"  # after layer1.9
    assert button.evaluate("x => getComputedStyle(x).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    assert header(page, "Layer").get_attribute("aria-sort") == "none"


def test_layers_are_found_by_a_part_of_their_name(visit):
    page = visit(width=DESKTOP, scheme="light")
    page.fill("#find", "LAYER1.3")
    assert {x[:9] for x in column(page, "Layer")} == {"layer1.3."}
    assert page.locator("#count").text_content() == f"4 of {LAYERS} layers"
    page.fill("#find", "")
    assert len(column(page, "Layer")) == LAYERS


def rgb(color):
    return f"rgb({', '.join(str(int(color[i : i + 2], 16)) for i in (1, 3, 5))})"


def ground(page):
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def test_colours_follow_the_system_and_then_the_reader(fresh):
    for scheme, first, second in (("light", LIGHT, DARK), ("dark", DARK, LIGHT)):
        page = fresh(scheme=scheme)
        assert ground(page) == rgb(first["paper"])
        assert page.evaluate("getComputedStyle(document.querySelector('.verdict')).color") == rgb(
            first["ink"]
        )
        page.click("#theme")
        assert ground(page) == rgb(second["paper"])
        pressed = page.get_attribute("#theme", "aria-pressed")
        assert pressed == ("true" if second is DARK else "false")
        fill = page.evaluate("getComputedStyle(document.querySelector('.bar .left')).fill")
        assert fill == rgb(second["accent"])
        page.wait_for_timeout(300)  # the browser writes down what a page stores after a moment
        page.reload()
        page.wait_for_selector("#theme:visible")
        assert ground(page) == rgb(second["paper"]), "the choice is remembered"


def boxes(page):
    names = ["nav", "main", ".hero", ".cards", ".cards li", ".receipt", "#table", "#heat", ".pair"]
    names += [".lines", ".scatter"]
    return page.evaluate(
        """names => Object.fromEntries(names.map((name) => {
            const box = document.querySelector(name).getBoundingClientRect();
            return [name, [box.x, box.y + scrollY, box.width, box.height]];
        }))""",
        names,
    )


def test_the_layout_on_a_desktop(visit):
    page = visit(width=DESKTOP, scheme="light")
    page.set_viewport_size({"width": DESKTOP, "height": 900})
    found = boxes(page)
    x = {name: box[0] for name, box in found.items()}
    width = {name: box[2] for name, box in found.items()}
    assert x["nav"] == pytest.approx(32, abs=9) and width["nav"] == pytest.approx(168, abs=2)
    assert x["main"] == pytest.approx(244, abs=9) and width["main"] == pytest.approx(1004, abs=18)
    for name in (".hero", ".cards"):
        assert (x[name], width[name]) == (x["main"], width["main"])
    assert width["#heat"] == width["main"]
    assert width[".cards li"] == pytest.approx(width["main"] / 5, abs=3)
    assert width[".pair"] == pytest.approx(width["main"] / 3, rel=0.1)
    y = [found[name][1] for name in (".hero", ".cards", ".receipt", "#table", "#heat")]
    assert y == sorted(y)
    assert found[".hero"][3] < 250 and found[".cards"][1] < 450, "the verdict needs no scrolling"


def test_the_layout_on_a_phone(visit):
    page = visit(width=PHONE, scheme="dark")
    found = boxes(page)
    assert found["nav"][1] < found["main"][1] and found["main"][2] > 340
    assert found[".cards li"][2] == pytest.approx(found["main"][2] / 2, abs=3)
    assert found[".receipt"][2] <= found["main"][2]
    assert found[".lines"][2] > 300 and found[".scatter"][2] > 300
    text = page.evaluate(
        """() => [...document.querySelectorAll('.lines text, .hist text')]
            .map((x) => x.getBoundingClientRect().height).filter((x) => x > 0)"""
    )
    assert min(text) > 8, "numbers in drawings can be read"


@pytest.mark.parametrize("width", [PHONE, 768, DESKTOP])
@pytest.mark.parametrize("name", ["medium", "hostile"])
def test_nothing_overflows_sideways(visit, name, width):
    page = visit(name, width=DESKTOP, scheme="light")
    page.set_viewport_size({"width": width, "height": 900})
    page.evaluate("document.querySelectorAll('details').forEach((x) => { x.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    wider = page.evaluate(
        """width => [...document.querySelectorAll('main > *, main section > *')]
            .filter((x) => x.getBoundingClientRect().right > width + 1).map((x) => x.className)""",
        width,
    )
    assert wider == []


def pixels(browser, image):
    """How often each colour is in a picture, of every 16th pixel; decoded by the browser itself."""
    page = browser.new_page()
    counts = page.evaluate(
        """async (data) => {
            const bytes = Uint8Array.from(atob(data), (x) => x.charCodeAt(0));
            const bitmap = await createImageBitmap(new Blob([bytes], { type: 'image/png' }));
            const canvas = new OffscreenCanvas(bitmap.width, bitmap.height);
            const context = canvas.getContext('2d');
            context.drawImage(bitmap, 0, 0);
            const { data: held } = context.getImageData(0, 0, bitmap.width, bitmap.height);
            const counts = {};
            for (let i = 0; i < held.length; i += 64) {
                const key = `rgb(${held[i]}, ${held[i + 1]}, ${held[i + 2]})`;
                counts[key] = (counts[key] ?? 0) + 1;
            }
            return counts;
        }""",
        base64.b64encode(image).decode(),
    )
    page.close()
    return counts


@pytest.mark.parametrize(
    ("width", "scheme", "names"), [(DESKTOP, "light", LIGHT), (PHONE, "dark", DARK)]
)
def test_a_screenshot_shows_the_page(browser, visit, scheme, names, width):
    page = visit(width=width, scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    page.evaluate("scrollTo(0, 0)")
    counts = pixels(browser, page.screenshot())
    total = sum(counts.values())
    grounds = counts.get(rgb(names["paper"]), 0) + counts.get(rgb(names["card"]), 0)
    assert 0.5 < grounds / total < 0.99
    assert counts.get(rgb(names["accent"]), 0) / total > 0.0005
    assert counts.get(rgb(names["ink"]), 0) / total > 0.0005
    assert len(counts) > 50


def test_the_data_can_be_downloaded(visit, medium, tmp_path):
    page = visit(width=DESKTOP, scheme="light")
    with page.expect_download() as started:
        page.click("#download")
    started.value.save_as(tmp_path / "data.json")
    assert started.value.suggested_filename == "resnet-152-45-of-the-channels-8-bits.json"
    assert Report.load(tmp_path / "data.json") == medium


def test_costs_are_shown_one_at_a_time(visit):
    page = visit(width=DESKTOP, scheme="light")
    shown = """[...document.querySelectorAll('div[data-cost]')]
        .filter((x) => !x.hidden).map((x) => x.dataset.cost)"""
    assert page.evaluate(shown) == ["bytes"]
    page.click(".choice button[data-cost=p50]")
    assert page.evaluate(shown) == ["p50"]
    assert page.get_attribute(".choice button[data-cost=p50]", "aria-pressed") == "true"


def test_any_histogram_can_be_picked_and_is_drawn_like_the_others(visit, medium):
    page = visit(width=DESKTOP, scheme="light")
    assert page.locator("#pick option").count() == len(medium.histograms)
    page.select_option("#pick", "7")
    assert page.locator("#picked .layer").text_content() == medium.histograms[7].layer
    assert page.locator("#picked path").count() == 3


def test_the_column_under_the_pointer_is_told(visit, medium):
    page = visit(width=DESKTOP, scheme="light")
    strip = page.locator("#heat svg").first
    strip.scroll_into_view_if_needed()
    box = strip.bounding_box()
    page.mouse.move(box["x"] + 0.5 * box["width"] / LAYERS, box["y"] + 5)
    told = page.locator("#heat .readout").text_content()
    assert told.startswith(f"{medium.layers[0].name} · {100 * medium.layers[0].kept:.1f} % kept")


def test_hostile_names_stay_names(visit):
    page = visit("hostile", width=DESKTOP, scheme="light")
    assert page.title() != "owned" and page.title().startswith("<script>")
    assert page.evaluate("document.scripts.length") == 2
    page.select_option("#pick", "3")
    assert "<script>" in page.locator("#picked .layer").text_content()


def test_without_scripts_all_is_there_and_no_button_is_dead(fresh):
    page = fresh(java_script_enabled=False)
    assert page.locator("#table tbody tr").count() == LAYERS
    assert page.locator("div[data-cost]").count() == 3
    for dead in (".tools", ".controls", ".choice", ".picker", ".readout", ".copy"):
        assert not any(x.is_visible() for x in page.locator(dead).all()), dead


def test_it_prints_in_light_colours_on_some_pages(fresh):
    page = fresh(scheme="light")
    page.click("#theme")
    assert ground(page) == rgb(DARK["paper"])
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).color") == rgb(LIGHT["ink"])
    assert page.locator("nav").is_hidden() and page.locator("#theme").is_hidden()
    height = page.evaluate("document.querySelector('#table').getBoundingClientRect().height")
    assert height > LAYERS * 15, "the whole table, not the part that scrolls"
    printed = page.pdf(format="A4")
    assert printed.startswith(b"%PDF") and len(printed) > 20_000


def test_no_page_asked_for_anything_or_complained(files):
    """Comes last: all that the pages above did is known."""
    own = {(files / name).as_uri() for name in ("medium.html", "hostile.html")}
    assert own <= set(ASKED)
    assert {x for x in ASKED if not x.startswith(("data:", "blob:"))} == own
    assert SAID == []
