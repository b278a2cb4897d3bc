"""The page as text: one file, nothing to load, everything of the user's escaped."""

import base64
import hashlib
import json
import re
import zlib
from html.parser import HTMLParser

import pytest

from lilliput.measure.receipt import Figures, Receipt
from lilliput.report.document import Report
from lilliput.report.page import words

ALL = ["receipt", "tried", "layers", "map", "sensitivity", "histograms", "groups"]
ALL += ["recipe", "reproduce", "environment"]
VOID = {"meta", "link", "input", "br"}


class Page(HTMLParser):
    """Tags, attributes and texts of a page; complains about tags that do not match."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.ids, self.links, self.text = [], [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        found = dict(attrs)
        self.ids += [found["id"]] if "id" in found else []
        self.links += [found[x] for x in ("src", "href", "action", "data") if found.get(x)]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def page(large):
    return large.to_html()


def test_a_report_of_160_layers_is_small(large, page):
    assert len(large.layers) == 160 and len(large.histograms) == 320
    assert len(page.encode()) <= 300_000


def test_all_sections_are_there(page):
    assert re.findall(r'<section id="(\w+)"', page) == ALL


def test_the_page_is_well_formed_and_its_ids_are_unique(page, hostile):
    for text in (page, hostile.to_html(), Report().to_html()):
        ids = Page(text).ids
        assert len(ids) == len(set(ids))


def test_every_link_leads_into_the_page(page):
    found = Page(page)
    assert all(x.startswith("#") or x == "data:," for x in found.links)
    assert {x[1:] for x in found.links if x.startswith("#")} <= set(found.ids)
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", page)


def test_the_browser_may_run_this_script_only(page):
    digest = re.search(r"script-src &#39;sha256-([^&]+)&#39;", page).group(1)
    script = page.rpartition("<script>")[2].partition("</script>")[0]
    assert base64.b64decode(digest) == hashlib.sha256(script.encode()).digest()
    assert "default-src &#39;none&#39;" in page
    assert len(script) < 12_000


def test_the_data_is_inside_plain_if_it_is_short(hostile):
    text = hostile.to_html()
    held = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert Report.model_validate(json.loads(held.group(1))) == hostile


def test_the_data_is_inside_compressed_if_it_is_long(large, page):
    held = re.search(r'<script type="text/plain" id="data">(.*?)</script>', page, re.S)
    assert zlib.decompress(base64.b64decode(held.group(1))).decode() == large.to_json()


def test_no_text_breaks_out_of_its_place(hostile):
    text = hostile.to_html()
    found = Page(text)
    assert found.tags.count("script") == 2
    assert "<script>document" not in text
    assert text.count("<!--") == 0
    assert "document.title='owned'" in "".join(found.text)  # it is there, as text


@pytest.mark.parametrize(
    ("report", "sections"),
    [
        (Report(), []),
        (Report(recipe="steps: []"), ["recipe"]),
        (Report(notes=["only a note"]), ["receipt"]),
        (Report(layers=[{"name": "fc", "parameters": 4, "nonzeros": 2}]), ["layers"]),
        (Report(sensitivity=[{"layer": "fc", "points": []}]), []),
        (Report(points=[{"name": "one", "bytes": 1, "metric": 0.5}]), []),
        (Report(environment={"cpu": "x"}), ["environment"]),
    ],
)
def test_sections_without_data_are_left_out(report, sections):
    text = report.to_html()
    assert re.findall(r'<section id="(\w+)"', text) == sections
    assert re.findall(r'<li><a href="#(\w+)"', text) == sections


def test_tables_and_drawings_can_be_read_aloud(page):
    head = page[page.index('<table id="table"') :].partition("</thead>")[0]
    assert head.count('scope="col"') == head.count("<th ")
    assert head.count("aria-sort") == head.count("<button")
    assert page.count('<th scope="row">') >= 160
    for svg in re.findall(r"<svg [^>]*>", page):
        assert 'aria-hidden="true"' in svg or 'role="img" aria-labelledby="' in svg
    named = re.findall(r'aria-labelledby="(\S+) (\S+)"', page)
    assert all(f'id="{x}"' in page for pair in named for x in pair)


def test_the_verdict_comes_first_and_says_when_only_masks_exist():
    before = Figures("model", "PyTorch", 100, 100, 10, 400, 1.0, 1.1, 5, 0.9)
    after = Figures("masked", "PyTorch", 100, 50, 10, 400, 1.0, 1.1, 5, 0.9)
    report = Report(receipt=Receipt(before, after).to_dict())
    main = report.to_html().partition("<main")[2]
    assert main.index("Masks only: 50% of the weights are zero") < main.index("<section")


def test_cards_say_what_has_become_worse():
    before = Figures("a", "", 100, 100, 10, 400, 1.0, 1.1, 5, 0.9)
    after = Figures("b", "", 50, 50, 10, 100, 2.0, 2.2, 5, 0.8)
    cards = {card.label: card for card in words.cards_of(Receipt(before, after, "accuracy"))}
    assert (cards["Size on disk"].figure, cards["Size on disk"].word) == ("4.00×", "smaller")
    assert (cards["Latency, median"].mood, cards["Latency, median"].word) == ("worse", "slower")
    assert cards["Multiplications"].mood == "same"
    assert cards["Accuracy"].detail == "−0.1000, was 0.9000"
