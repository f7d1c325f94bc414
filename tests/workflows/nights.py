"""A place where nights can be run: rows to begin with, files that come in, and the settings."""

import json

from dask_nrbfn import Model, Run
from tests.tables import spirals
from tests.workflows.script import run_here

SETTINGS = """
[data]
train = { source = "train.csv", label = "class" }
test = { source = "test.csv", label = "class" }

[fit]
basis_size = 60
alpha = 1e-9

[engine]
workers = 0
threads = 1

[night]
incoming = { source = "incoming", label = "class" }
max_error_rate = 0.15
tolerance = 0.02
refresh = false

[output]
directory = "output"
"""
NAMES = ("a", "b", "c", "d")
NIGHT = "workflows/jobs/night.py"


class Place:
    def __init__(self, directory, settings=SETTINGS):
        self.directory, self.incoming = directory, directory / "incoming"
        self.settings = directory / "night.toml"
        self.run_location = directory / "output/run.zarr"
        self.model_location = directory / "output/model.zarr"
        self.settings.write_text(settings)
        self.incoming.mkdir(exist_ok=True)

    def write_sources(self):
        for seed, (name, n_rows) in enumerate((("train.csv", 600), ("test.csv", 300))):
            write_csv(self.directory / name, *spirals(n_rows, seed=seed))

    def bring(self, name, X, y, names=NAMES):
        write_csv(self.incoming / name, X, y, names)

    def night(self):
        return run_here(NIGHT, self.settings, cwd="/")

    def nights(self):
        lines = (self.directory / "output/nights.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines if line.endswith("}")]

    def waiting(self):
        return sorted({path.name for path in self.incoming.iterdir()} - {"done", "rejected"})

    def moved_to(self, place):
        """Return the names of the files that are done or rejected, without their digests."""
        paths = sorted((self.incoming / place).glob("*"))
        return [path.name.rsplit("-", 1)[0] for path in paths if path.suffix != ".reason"]

    def reasons(self):
        """Return why files were rejected, in the order of their names."""
        return [path.read_text() for path in sorted(self.incoming.glob("rejected/*.reason"))]

    def published(self):
        files = [path for path in self.model_location.rglob("*") if path.is_file()]
        return {path.relative_to(self.model_location): path.read_bytes() for path in files}

    def model(self):
        return Model.load(self.model_location)

    def run(self):
        return Run.open(self.run_location)

    def versions(self):
        return self.run().versions

    def n_rows(self):
        """Return the number of rows behind the run's latest model."""
        return self.run().n_rows_held


def write_csv(path, X, y, names=NAMES):
    """Write rows and labels under a hidden name first, as whoever lets files come in must."""
    unfinished = path.with_name(f".{path.name}")
    rows = ([*row, label] for row, label in zip(X.tolist(), y.tolist(), strict=True))
    lines = [[*names, "class"], *rows]
    unfinished.write_text("".join(",".join(map(str, line)) + "\n" for line in lines))
    unfinished.rename(path)
