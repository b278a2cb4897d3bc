"""The documentation site: it builds without a warning, is complete, and asks nothing of the network."""

import html.parser
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import lilliput
from lilliput.public import homes_of

pytest.importorskip("mkdocs")
pytest.importorskip("mkdocstrings")

REPO = Path(lilliput.__file__).parent.parent.parent
CHROMIUM = os.environ.get("CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


class Page(html.parser.HTMLParser):
    """What a page refers to, and what can be referred to in it."""

    def __init__(self, path):
        super().__init__()
        self.loaded, self.links, self.ids, self.text = [], [], set(), []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.ids.update(x for x in (attributes.get("id"), attributes.get("name")) if x)
        if tag == "a":
            self.links.append(attributes.get("href") or "")
        else:
            self.loaded += [attributes[key] for key in ("src", "href") if attributes.get(key)]

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=REPO,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site):
    return {path: Page(path) for path in sorted(site.rglob("*.html"))}


def leads_to(path, link):
    """Return the file and the place in it that a relative link means."""
    parts = urlsplit(link)
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    return (target / "index.html" if target.is_dir() else target), unquote(parts.fragment)


def test_every_page_is_in_the_navigation():
    navigation = (REPO / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    pages = [p.relative_to(REPO / "docs").as_posix() for p in (REPO / "docs").rglob("*.md")]
    assert not [page for page in pages if page not in navigation]


def test_nothing_is_loaded_from_elsewhere(site, pages):
    for path, page in pages.items():
        for address in page.loaded:
            if path.name == "404.html":  # is served from any place, so its addresses are absolute
                assert address.startswith("/") and not address.startswith("//"), address
            elif not address.startswith("data:"):
                assert not urlsplit(address).netloc, f"{path.name}: {address}"
                assert leads_to(path, address)[0].exists(), f"{path.name}: {address}"
    for style in site.rglob("*.css"):
        imports = re.findall(r"(?:url\(|@import)\s*[\"']?(https?:)?//", style.read_text("utf-8"))
        assert not imports, style.name


def test_links_and_their_anchors_lead_somewhere(pages):
    for path, page in pages.items():
        for link in page.links if path.name != "404.html" else ():
            if not link or urlsplit(link).scheme:
                continue
            target, place = leads_to(path, link)
            assert target.exists(), f"{path.name}: {link}"
            if place and target.suffix == ".html":
                assert place in pages[target].ids, f"{path.name}: {link}"


def documented(pages, name):
    return any(name in page.ids for page in pages.values())


def test_every_name_for_torch_is_in_the_reference(pages):
    names = homes_of("lilliput.torch")
    assert not [name for name in names if not documented(pages, f"lilliput.torch.{name}")]


def test_constructors_show_the_arguments_that_they_pass_on(site):
    page = (site / "reference" / "pruning.html").read_text(encoding="utf-8")
    text = html.unescape(re.sub(r"<[^>]+>", "", page))
    head = re.search(r"^RandomPruner\(\n(.*?)^\)", text, re.DOTALL | re.MULTILINE)[1]
    names = re.findall(r"^\s*(\*?\w*)", head.replace(",", "\n"), re.MULTILINE)
    assert [name for name in names if name] == [
        *("model", "config_list", "optimizer", "example_inputs"),
        *("*", "seed", "groups"),
    ]


def test_every_name_for_keras_is_in_the_reference(pages, site):
    shared = set(pages[site / "reference" / "keras.html"].text)
    for name in homes_of("lilliput.keras"):
        is_shared = documented(pages, f"lilliput.torch.{name}")
        has_entry = documented(pages, f"lilliput.keras.{name}")
        assert has_entry or (is_shared and name in shared), name


def test_other_public_names_are_in_the_reference(pages):
    from lilliput import errors, testing

    names = [f"lilliput.testing.{name}" for name in testing.__all__]
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, errors.LilliputError):
            names.append(f"lilliput.errors.{name}")
    names += [
        f"lilliput.integrations.{x}.CompressionCallback" for x in ("lightning", "transformers")
    ]
    names += ["lilliput.integrations.accelerate.follow", "lilliput.algorithms.config_schema"]
    assert not [name for name in names if not documented(pages, name)]


def test_entries_show_docstrings_without_the_markup_of_another_language(pages, site):
    text = " ".join(pages[site / "reference" / "pruning.html"].text)
    assert "Prune each layer's smallest weights in one shot, to an exact sparsity." in text
    assert "The simplest pruner: in every layer" in text  # the story of its module
    assert not re.search(r":(class|func|meth|mod):", text)


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_the_site_works_as_files_in_a_browser(site):
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        asked, faults = [], []
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: message.type == "error" and faults.append(message.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto((site / "index.html").as_uri())
        page.click("input.md-search__input")
        page.keyboard.type("saturate")
        page.wait_for_selector(".md-search-result__item", timeout=60_000)
        found = page.inner_text(".md-search-result__list")
        page.set_viewport_size({"width": 390, "height": 844})
        page.goto((site / "tutorial.html").as_uri())
        overflow = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        browser.close()
    assert "Why int8 can be slow" in found
    assert overflow <= 0
    assert not faults
    assert not [address for address in asked if not address.startswith("file:")]
