import re
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest

from dask_nrbfn.report import charts
from dask_nrbfn.report.finished import Confidences, FinishedRun
from dask_nrbfn.report.results import ClassResults, DrawnTarget


def entry(alpha, error_rate=0.1, fitting_error=1.5, spectral_risk=20.0):
    return {
        "alpha": alpha,
        "error_rate": error_rate,
        "fitting_error": fitting_error,
        "spectral_risk": spectral_risk,
    }


PATH = [entry(10.0**-power, 0.5 / power, 1 + 1 / power, 10.0**power) for power in range(1, 10)]
SINGULAR = entry(1e-12, None, None, None)
ERRORS = ClassResults.criterion
MET = DrawnTarget("<size> & $1$", np.arange(30.0), np.arange(30.0) ** 1.1, 0.9, 2.5)


def tried(*factors, kernels=("gaussian",), error_rate=0.1):
    return [
        {
            "features": "plain",
            "kernel": kernel,
            "basis_rule": "uniform",
            "width_factor": factor,
            "error_rate": error_rate,
        }
        for kernel in kernels
        for factor in factors
    ]


@pytest.fixture
def confidences(fitted):
    return Confidences.of(FinishedRun.of(fitted))


@pytest.fixture
def drawn(confidences):
    combinations = tried(0.1, 0.5, 1.0, kernels=("gaussian", "laplacian"))
    return [
        charts.confidence_chart(confidences, 0.95),
        charts.threshold_chart(confidences, 0.95, 40),
        charts.penalty_chart([*PATH, SINGULAR], 1e-3, ERRORS),
        charts.width_chart(combinations, {"width_factor": 0.5}, ERRORS),
        charts.prediction_chart(MET, 1),
        charts.prediction_chart(MET, 2),
        charts.residual_chart(MET, 1),
        charts.residual_chart(MET, 2),
    ]


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


def test_charts__share_no_id_and_refer_to_their_own(drawn):
    ids = [re.findall(r'\bid="([^"]+)"', svg) for svg in drawn]
    every = [name for own in ids for name in own]
    assert len(set(every)) == len(every)
    for svg, own in zip(drawn, ids, strict=True):
        assert set(re.findall(r'(?:url\(|href=")#([^)"]+)', svg)) <= set(own)


def test_charts__leave_colours_and_typeface_to_the_page(drawn):
    for svg in drawn:
        assert "<style" not in svg
        assert "<metadata" not in svg
        assert "var(--ink)" in svg
        assert not re.findall(r"#[0-9a-f]{6}\b", svg)
        assert "<text" in svg


def test_charts__are_the_same_each_time(confidences):
    first = charts.confidence_chart(confidences, 0.95)
    with mpl.rc_context({"font.size": 30, "axes.facecolor": "red", "svg.hashsalt": None}):
        assert charts.confidence_chart(confidences, 0.95) == first
        assert mpl.rcParams["font.size"] == 30


@pytest.mark.parametrize("threshold", [0.001, 0.5, 1.0])
def test_charts__any_threshold(confidences, threshold):
    assert f"threshold {threshold:g}" in charts.confidence_chart(confidences, threshold)
    assert "1,234 rows" in charts.threshold_chart(confidences, threshold, 1234)


def test_charts__all_rows_alike():
    counts = np.zeros(1000, dtype=np.int64)
    counts[-1] = 7
    alike = Confidences(counts, 7, None, None)
    for svg in (
        charts.confidence_chart(alike, 0.9),
        charts.threshold_chart(alike, 0.9, 0),
    ):
        ElementTree.fromstring(svg)


def test_prediction_chart__has_a_point_for_each_row():
    def marks(target):
        return charts.prediction_chart(target, 1).count("<use ")

    half = MET._replace(true=MET.true[:15], predicted=MET.predicted[:15])
    # Those of the ticks may differ.
    assert 10 <= marks(MET) - marks(half) <= 20


@pytest.mark.fast_cases(4)
@pytest.mark.parametrize("missed", [0.0, 1e-300, 0.1, 1e300])
@pytest.mark.parametrize("true", [[7.0], [3.0, 3.0, 3.0], [0.0, 1e-17, 2e-17]])
def test_number_charts__all_rows_alike(true, missed):
    alike = DrawnTarget("same", np.array(true), np.array(true) + missed, 0.0, missed)
    for chart in (charts.prediction_chart, charts.residual_chart):
        ElementTree.fromstring(chart(alike, 1))


@pytest.mark.parametrize(
    "path",
    [
        [entry(1e-3), entry(0.0)],
        [entry(1e-3), SINGULAR],
        [entry(1e-3)],
    ],
)
def test_penalty_chart__too_few(path):
    assert charts.penalty_chart(path, 1e-3, ERRORS) is None


def test_penalty_chart__what_a_logarithm_cannot_show():
    path = [entry(1e-3, 0.0, 1.0, 1.0), entry(1e-5, 0.0, 1.0, 1e9), entry(0.0), SINGULAR]
    ElementTree.fromstring(charts.penalty_chart(path, 0.0, ERRORS))


def test_width_chart__one_width_is_none():
    assert charts.width_chart(tried(0.5), {"width_factor": 0.5}, ERRORS) is None


def test_width_chart__names_only_what_differs():
    svg = charts.width_chart(
        tried(0.1, 0.5, kernels=("gaussian", "laplacian")), {"width_factor": 0.5}, ERRORS
    )
    assert ">gaussian<" in svg
    assert "uniform" not in svg
    assert "gaussian" not in charts.width_chart(tried(0.1, 0.5), {"width_factor": 0.5}, ERRORS)


def test_width_chart__scales_are_lines_of_their_own():
    records = [
        each | {"scale": f"scale{place}"}
        for place in range(9)
        for each in tried(0.1, 0.5, error_rate=0.1 + place)
    ]
    svg = charts.width_chart(records, {"width_factor": 0.5}, ERRORS)
    assert [f">scale{place}<" in svg for place in range(9)] == [True] * 8 + [False]


def test_width_chart__combinations_without_figures():
    none = tried(0.1, 0.5, error_rate=None)
    ElementTree.fromstring(charts.width_chart(none, {"width_factor": 0.5}, ERRORS))
