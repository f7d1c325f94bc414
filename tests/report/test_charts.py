import re
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest

from dask_nrbfn.report import charts
from dask_nrbfn.report.finished import Confidences, FinishedRun
from dask_nrbfn.report.results import NumberResults


def predictions(true, predicted, n_targets=1):
    """Return charts of `n_targets` with the same numbers."""
    sample = SimpleNamespace(
        true=np.column_stack([true] * n_targets), predicted=np.column_stack([predicted] * n_targets)
    )
    evaluation = SimpleNamespace(sample=sample, r2=[0.9] * n_targets)
    finished = SimpleNamespace(attributes={"target_names": ["<size> & $1$"] * n_targets})
    return [chart.svg for chart in charts.prediction_charts(NumberResults(finished, evaluation))]


def met(n_rows=30, n_targets=1):
    true = np.arange(float(n_rows))
    return predictions(true, true**1.1, n_targets)


@pytest.fixture(scope="module")
def counts(fitted):
    return Confidences.of(FinishedRun.of(fitted)).counts


@pytest.fixture(scope="module")
def drawn(counts):
    return [charts.confidence_chart(counts, 0.95, "rows"), *met(n_targets=2)]


def test_charts__are_svg_elements_with_a_name(drawn):
    for svg in drawn:
        root = ElementTree.fromstring(svg)
        assert root.tag.endswith("}svg")
        assert root.get("role") == "img"
        ids = {element.get("id"): element for element in root.iter() if element.get("id")}
        for named in root.get("aria-labelledby").split():
            assert ids[named].text
        # The page says how large it is.
        assert root.get("width") is None
        assert root.get("viewBox")


def test_charts__leave_colours_and_typeface_to_the_page(drawn):
    for svg in drawn:
        assert "<style" not in svg
        assert "<metadata" not in svg
        assert "var(--ink)" in svg
        assert not re.findall(r"#[0-9a-f]{6}\b", svg)
        assert "<text" in svg


@pytest.mark.parametrize("threshold", [0.001, 1.0])
def test_charts__any_threshold(counts, threshold):
    assert f"threshold {threshold:g}" in charts.confidence_chart(counts, threshold, "rows")


def test_charts__all_rows_alike():
    counts = np.zeros(1000, dtype=np.int64)
    counts[-1] = 7
    ElementTree.fromstring(charts.confidence_chart(counts, 0.9, "rows"))


def test_prediction_chart__has_a_point_for_each_row():
    # The marks of the ticks may differ.
    assert 10 <= met()[0].count("<use ") - met(15)[0].count("<use ") <= 20


@pytest.mark.parametrize(
    ("true", "missed"), [([7.0], 0.0), ([3.0, 3.0, 3.0], 1e300), ([0.0, 1e-17, 2e-17], 1e-300)]
)
def test_prediction_chart__all_rows_alike(true, missed):
    true = np.array(true)
    ElementTree.fromstring(*predictions(true, true + missed))
