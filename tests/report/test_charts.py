import re
from base64 import b64decode
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest

from dask_nrbfn import FitParams, NumberEvaluation
from dask_nrbfn.report.charts import Charts


def drawn(finished):
    """Return the elements of every chart, by its caption."""
    sections = Charts(finished).by_section.values()
    charts = [chart for charts in sections for chart in charts]
    kind = "data:image/svg+xml;base64,"
    assert all(chart.image.startswith(kind) for chart in charts)
    return {
        chart.caption: ElementTree.fromstring(b64decode(chart.image.removeprefix(kind)))
        for chart in charts
    }


def texts_of(chart):
    """Return the texts of a chart, which comments of the image repeat."""
    return re.findall("<!-- (.*) -->", b64decode(chart.image.partition(",")[2]).decode())


def finished(**changes):
    nothing = dict.fromkeys(["evaluation", "confidences", "names", "unlike"])
    plain = {"judged_rows": {}, "stages": {}, "labels": [], "params": FitParams(), **nothing}
    return SimpleNamespace(run=SimpleNamespace(embeds=False), **plain | changes)


def predictions(true, predicted, r2=(0.9,)):
    """Return the captions of charts of targets with the same numbers."""
    n_targets = len(r2)
    sample = np.stack([np.column_stack([each] * n_targets) for each in (true, predicted)])
    evaluation = NumberEvaluation(
        len(true), tuple("abcdef"[:n_targets]), 0.1, list(r2), [1.0], [1.0], sample
    )
    return [*drawn(finished(evaluation=evaluation))]


@pytest.mark.parametrize(("n_classes", "n_charts"), [(2, 1), (31, 0)])
def test_confusion_chart__any_number_of_classes(n_classes, n_charts):
    counts = np.vstack([np.eye(n_classes), np.zeros(n_classes)])
    labels = [f"a very long name of class {code} $x$" for code in range(n_classes)]
    judged = {"rows": {"confusion": counts}}
    assert len(drawn(finished(judged_rows=judged, labels=labels))) == n_charts


def test_search_chart__sizes_in_order_before_the_compared_combinations():
    bases = [("sknn", 16), ("sknn", 64), ("random", 32)]
    curve = [{"basis": basis, "n_basis": size, "error_rate": 1 / size} for basis, size in bases]
    final = {"scale": "none", "features": "plain", "kernel": "gaussian", "error_rate": 0.1}
    search = {"curve": curve, "finals": [final], "chosen": {"basis_size": 64}, "linear": 0.3}
    network = finished(stages={"search": search}, criterion="error_rate")
    ((chart,),) = Charts(network).by_section.values()
    assert texts_of(chart)[:4] == ["16", "32", "64", "none plain gaussian"]


@pytest.mark.parametrize("threshold", [0.001, 1.0])
def test_confidence_chart__all_rows_alike(threshold):
    stages = {"confidence": {"n_below_threshold": 0}}
    params = FitParams(confidence_threshold=threshold)
    (caption,) = drawn(finished(stages=stages, params=params, confidences=np.ones(7)))
    assert f"threshold {threshold:g} " in caption


def test_histograms__numbers_on_logarithmic_axes_are_plain():
    stages, values = {"confidence": {"n_below_threshold": 0}}, np.arange(1000) / 1000
    params = FitParams(confidence_threshold=0.9)
    network = finished(
        stages=stages, params=params, confidences=values, unlike=(values**4, np.ones(1000))
    )
    charts = [chart for charts in Charts(network).by_section.values() for chart in charts]
    assert len(charts) == 2
    for chart in charts:
        assert "10" in texts_of(chart)
        assert not any("$" in text for text in texts_of(chart))


@pytest.mark.parametrize("values", [np.zeros(5), np.ones(5), np.array([0.1, 0.2, 1e6])])
def test_unlike_chart__any_distances(values):
    (caption,) = drawn(finished(unlike=(values, np.ones(len(values)))))
    assert caption.startswith(f"Distances of {len(values)} held-out rows")


def test_unlike_chart__shares_are_of_the_weight():
    values = np.linspace(0, 1, 50)
    images = [
        chart.image
        for weights in (np.ones(50), np.full(50, 7.0), np.linspace(0, 1, 50))
        for charts in Charts(finished(unlike=(values, weights))).by_section.values()
        for chart in charts
    ]
    assert images[0] == images[1] != images[2]


@pytest.mark.parametrize(("true", "missed"), [([3.0, 3.0, 3.0], 1.0), ([0.0, 1e-17, 2e-17], 0.0)])
def test_prediction_chart__all_rows_alike(true, missed):
    assert len(predictions(np.array(true), np.array(true) + missed)) == 1


def test_prediction_charts__of_the_targets_that_are_met_worst():
    rows = np.arange(9.0)
    captions = predictions(rows, rows, r2=[0.9, 0.1, 0.95, 0.2, 0.99, 0.3])
    assert [caption.partition(":")[0] for caption in captions] == ["a", "b", "d", "f"]
