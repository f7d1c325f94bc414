import numpy as np

from dask_nrbfn.report.finished import Confidences, FinishedRun


def test_confidences__are_those_of_all_rows(fitted):
    assert len(fitted.spans) == 3
    values = fitted.read("confidence/values")
    found = Confidences.of(FinishedRun.of(fitted))
    assert found.counts.sum() == 300
    for place in (0, 499, 949, 998):
        below = np.count_nonzero(values < found.thresholds[place])
        assert found.n_below[place] == below
    assert found.n_below[-1] == np.count_nonzero(values < 1)
    assert found.n_certain == np.count_nonzero(values == 1)
    # The threshold of the fit.
    assert found.n_below[949] == fitted.stages["confidence"]["n_below_threshold"]


def test_confidences__name_the_ends(fitted):
    values = fitted.read("confidence/values")
    found = Confidences.of(FinishedRun.of(fitted))
    np.testing.assert_array_equal(found.least.rows, np.lexsort([np.arange(300), values])[:10])
    np.testing.assert_array_equal(found.most.rows, np.lexsort([np.arange(300), -values])[:10])
    for named in (found.least, found.most):
        np.testing.assert_array_equal(named.values, values[named.rows])


def test_confidences__read_a_part_at_a_time(fitted, monkeypatch):
    read, most = type(fitted).read, []

    def counted(run, name, start=0, stop=None):
        values = read(run, name, start, stop)
        if name == "confidence/values":
            most.append(len(values))
        return values

    monkeypatch.setattr(type(fitted), "read", counted)
    Confidences.of(FinishedRun.of(fitted))
    assert most == [100, 100, 100]
