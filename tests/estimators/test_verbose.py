import logging
import re

from dask_nrbfn import NRBFNRegressorCV
from dask_nrbfn.estimators.network import printed_log
from tests.tables import surfaces


def test_verbose__prints_once_what_logging_leaves_out(capsys, caplog):
    log = logging.getLogger("dask_nrbfn")
    tried = {"alphas": (1e-6, 1e-3), "width_factors": (1.0,), "scale": "none", "folds": 2}
    network, before = NRBFNRegressorCV(effort="quick", **tried), vars(log) | {"_cache": {}}
    network.set_params(verbose=1).fit(*surfaces(120))
    printed = capsys.readouterr().out
    assert re.search(r"^validation: relative error [\d.]{3,7}, fold deviation", printed, re.M)
    with printed_log(0), printed_log(1), printed_log(1):
        log.info("printed once")
        log.getChild("fit").warning("for the handlers")
    assert (capsys.readouterr().out, caplog.messages) == ("printed once\n", ["for the handlers"])
    assert vars(log) | {"_cache": {}} == before
    with caplog.at_level(logging.INFO, logger=log.name):
        network.fit(*surfaces(120))
    assert (caplog.text.count("search: chosen: scale "), capsys.readouterr().out) == (1, "")
