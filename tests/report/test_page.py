from collections import Counter
from html.parser import HTMLParser

import numpy as np
import pytest
from zarr.storage import MemoryStore

from dask_nrbfn import FitParams, InlineEngine, evaluate_dataset, fit_dataset
from dask_nrbfn.errors import MissingDataError
from dask_nrbfn.report.page import write_report
from tests.report.conftest import LABELS
from tests.schemas import stored_rows, write_rows

VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """What a browser would find: elements, their attributes, ids, and the text."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.ids, self.attributes, self.words = [], Counter(), [], [], []
        self.source = text
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags[tag] += 1
        self.attributes += attrs
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def page_of(run, place, **options):
    write_report(run, place / "page.html", **options)
    return Page((place / "page.html").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def page(tuned, tmp_path_factory):
    return page_of(tuned, tmp_path_factory.mktemp("page"))


def test_page__of_a_tuned_run(page, tuned):
    assert page.tags["h1"] == 1
    assert page.tags["img"] == page.tags["figure"] == 4
    n_below = tuned.stages["confidence"]["n_below_threshold"]
    assert f"{n_below} rows below the threshold 0.95" in page.text
    assert f"{100 * tuned.stages['validation']['error_rate']:.2f}\xa0%" in page.words
    for stage in tuned.stages:
        assert stage in page.words


def test_page__of_a_table_says_what_its_columns_are(tmp_path):
    dataset = write_rows(MemoryStore(), stored_rows(60), np.arange(60) % 2)
    params = FitParams(basis="random", basis_size=10, alpha=1e-6)
    page = page_of(fit_dataset(dataset, MemoryStore(), params, InlineEngine()), tmp_path)
    assert "town category 3 and others" in page.text
    assert "age number - 20.00 %" in page.text


def test_page__needs_no_other_file(page):
    assert not {"script", "iframe", "object", "embed"} & page.tags.keys()
    for name, value in page.attributes:
        assert not name.startswith("on")
        if name in ("src", "href"):
            assert value.startswith(("#", "data:"))
        elif value is not None:
            assert "://" not in value
    assert "@import" not in page.source
    assert "url(http" not in page.source


def test_page__can_be_read_aloud_and_labels_are_text(page):
    assert ("lang", "en") in page.attributes
    assert len(set(page.ids)) == len(page.ids)
    named = [value for name, value in page.attributes if name == "aria-labelledby"]
    assert {part for value in named for part in value.split()} <= set(page.ids)
    assert all(value for name, value in page.attributes if name in ("scope", "alt"))
    assert {"(empty)", *LABELS[:2]} <= {*page.words}
    assert "<script" not in page.source


def test_page__of_an_evaluation_of_a_fitted_run(fitted, dataset, tmp_path):
    evaluation = evaluate_dataset(fitted.location, dataset, InlineEngine())
    page = page_of(fitted, tmp_path, evaluation=evaluation)
    assert "Tuning" not in page.text
    assert str(fitted.read("confidence/values").argmin()) in page.words
    assert f"{100 * evaluation.error_rate:.2f}\xa0%" in page.words
    for of_class in evaluation.per_class:
        assert f"{100 * of_class['f1']:.2f} %" in page.words


def test_page__of_an_evaluation_has_the_sizes_of_sets(tuned, dataset, tmp_path):
    evaluation = evaluate_dataset(tuned.location, dataset, InlineEngine())
    page = page_of(tuned, tmp_path, evaluation=evaluation)
    cells = "|".join(word.strip() for word in page.words if word.strip())
    for record in evaluation.intervals:
        (covered,), (size,) = record["covered"], record["mean_size"]
        assert f"{record['coverage']}|{covered:.4g}|{size:.4g}" in cells
    assert "{'coverage'" not in page.text


def test_page__is_the_same_each_time(page, tuned, tmp_path):
    assert page_of(tuned, tmp_path).source == page.source


def test_page__of_an_unfinished_run(unfinished, tmp_path):
    target = tmp_path / "page.html"
    target.write_text("old")
    with pytest.raises(MissingDataError, match="is not finished: it has no model yet"):
        write_report(unfinished, target, overwrite=True)
    assert target.read_text() == "old"
