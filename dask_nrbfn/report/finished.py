"""What a finished run has recorded, read once."""

from dataclasses import dataclass
from typing import Any, Self

from dask_nrbfn.commands.describe import describe_tuning
from dask_nrbfn.errors import MissingDataError, NRBFNError
from dask_nrbfn.fit import stages_of_run
from dask_nrbfn.numeric.ridge_path import Ridge
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.report.formats import class_names
from dask_nrbfn.stages.neighbor_search import of_searched
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.location import local_path
from dask_nrbfn.storage.run import Run
from dask_nrbfn.storage.versions import versions_of


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """The records of a run that has a model.

    Attributes
    ----------
    run : Run
    attributes : dict
    stages : dict
        Records of the stages by name, in the order in which they were done.
    params : FitParams
        With what tuning has chosen.
    labels : list of str
        Of the classes, in the order of the scores; none where the targets are numbers.
    """

    run: Run
    attributes: dict[str, Any]
    stages: dict[str, dict[str, Any]]
    params: FitParams
    labels: list[str]

    @classmethod
    def of(cls, run: Run) -> Self:
        """Read the records of a run.

        Raises
        ------
        MissingDataError
            If it is not finished.
        """
        # Other jobs may have added to it since it was opened.
        run = Run.open(run.location)
        attributes = run.attributes
        if attributes.get("branch_of"):
            raise MissingDataError(
                f"the run {run.location} is a branch, which was not fitted.",
                "Report on the run that it is merged into.",
            )
        stages = attributes["stages"]
        names = [stage.name for stage in stages_of_run(run)]
        missing = [name for name in names if name not in stages]
        if missing:
            raise MissingDataError(
                f"the run {run.location} is not finished: it has no {missing[0]} yet.",
                f"Finish it with {run.begun_by}, with the parameters that it was begun with.",
            )
        ordered = {name: stages[name] for name in names}
        labels = class_names(run.read("model/classes").tolist())
        return cls(run, attributes, ordered, run.chosen_params, labels)

    @property
    def versions(self) -> list[dict[str, Any]]:
        """Records of the versions after the fit."""
        return versions_of(self.attributes)

    @property
    def tuning(self) -> TuneParams | None:
        """What was tried; None for a run without tuning."""
        return self.run.tuning

    @property
    def n_searched(self) -> int:
        """Rows that have a confidence."""
        return of_searched(self.run).n_rows

    @property
    def searched(self) -> str:
        """What a row that has a confidence is called."""
        return "row" if self.n_searched == self.n_labelled else "candidate"

    @property
    def ridge(self) -> Ridge:
        """What the ridge of the model keeps small."""
        return Ridge.in_params(self.params)

    @property
    def n_rows(self) -> int:
        """Rows that were fitted, those without labels too."""
        return self.run.n_rows

    @property
    def n_labelled(self) -> int:
        """Those of them that have a label, or numbers."""
        return self.run.of_labelled().n_rows

    def tuned(self) -> dict[str, Any]:
        """Return what tuning tried and chose, as `describe_tuning` does.

        Raises
        ------
        MissingDataError
            If the run was fitted without tuning.
        """
        if self.tuning is None:
            raise MissingDataError(
                f"the run {self.run.location} was fitted without tuning.",
                "Give a run of tune.",
            )
        return describe_tuning(self.run)

    def dataset(self) -> Dataset | None:
        """Open the dataset that was fitted; None unless it is still on a disk of this machine.

        A URL would need its options again, and perhaps a network.
        """
        places = [member["dataset"] for member in self.attributes["members"]]
        if None in map(local_path, places):
            return None
        try:
            dataset, *beside = map(Dataset.open, places)
            for further in beside:
                dataset = dataset.with_unlabelled(further)
        except NRBFNError:
            return None
        return dataset if dataset.fingerprint == self.run.fingerprint else None
