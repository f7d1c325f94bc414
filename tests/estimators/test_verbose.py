"""Estimators print their log with `verbose`, and logging stays as it was."""

import logging
import re

from dask_nrbfn import NRBFNRegressorCV
from dask_nrbfn.estimators.network import printed_log
from tests.tables import surfaces

LOG = logging.getLogger("dask_nrbfn")


def test_verbose__prints_once_what_logging_leaves_out(capsys, caplog):
    tried = {"alphas": (1e-6, 1e-3), "width_factors": (1.0,), "scale": "none", "folds": 2}
    network = NRBFNRegressorCV(effort="quick", **tried)
    before = {name: vars(LOG)[name] for name in ("handlers", "level", "propagate")}
    network.fit(*surfaces(120))
    assert capsys.readouterr().out == ""
    network.set_params(verbose=1).fit(*surfaces(120))
    lines = capsys.readouterr().out.splitlines()
    (judged,) = [line for line in lines if line.startswith("validation: penalty ")]
    assert re.search(r", relative error [\d.]{3,7}$", judged)
    with printed_log(1), printed_log(1):
        LOG.info("printed once")
        LOG.getChild("fit").warning("for the handlers")
    assert (capsys.readouterr().out, caplog.messages) == ("printed once\n", ["for the handlers"])
    assert {name: vars(LOG)[name] for name in before} == before
    with caplog.at_level(logging.INFO, logger=LOG.name):
        network.fit(*surfaces(120))
    assert sum(line.startswith("search: chosen: scale ") for line in caplog.messages) == 1
    assert capsys.readouterr().out == ""
