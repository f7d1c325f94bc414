"""Files of a dataset, a run and a model that flip, end early, vanish or change places."""

import random
import shutil
from contextlib import contextmanager

import numpy as np
import pytest
import zarr

from dask_nrbfn.storage.model import Model
from tests.cli.program import run, succeed
from tests.tables import spirals, write_table

N_SEEDS = 28
FIT = ("--basis-size", 8, "--alpha", 1e-6, "--n-parts", "3", "--workers", 0)
HARMS = ("flip", "cut", "remove")
KINDS = ("data", "run", "updated", "model")


class Sound:
    """A dataset in chunks, a run, one with a version of its own, a model, and what they say."""

    def __init__(self, place):
        self.place = place
        X, y = spirals(90)
        write_table(place / "data", X, y, weights=np.linspace(1, 2, 90), chunk_rows=30)
        write_table(place / "more", *spirals(30, seed=5), chunk_rows=10)
        succeed("fit", place / "data", place / "run", *FIT)
        shutil.copytree(place / "run", place / "updated")
        succeed("update", place / "updated", place / "more", "--workers", 0)
        Model.load(place / "updated").save(place / "model")
        self.digests = {name: Model.load(place / name).digest() for name in KINDS[1:]}
        self.labels = {name: labels_of(place, name) for name in KINDS[1:]}
        self.errors = {name: evaluation_of(place, name) for name in KINDS[1:]}
        # None would stand for a refusal, and equal any other.
        assert None not in (*self.labels.values(), *self.errors.values())


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    return Sound(tmp_path_factory.mktemp("sound"))


def labels_of(place, name):
    out = place / f"labels-{name}"
    if code_of("predict", place / name, place / "data", out, "--workers", 0):
        return None
    labels = zarr.open_group(str(out), mode="r")["labels"][:].tolist()
    shutil.rmtree(out)
    return labels


def evaluation_of(place, name):
    code, out, err = run("evaluate", place / name, place / "data", "--workers", 0)
    return None if refused(code, err) else out


def code_of(*arguments):
    code, _, err = run(*arguments)
    refused(code, err)
    return code


def refused(code, err):
    """Return whether a command told the user what to mend; anything else but success fails."""
    assert code in (0, 2), err
    if code == 2:
        lines = err.strip().split("\n")
        assert lines[0].startswith("error: "), err
        assert lines[-1].startswith("  fix: "), err
    return code == 2


class Harm:
    """A file under a directory that is harmed, and can be put right for a while."""

    def __init__(self, rng, root):
        files = sorted(path for path in root.rglob("*") if path.is_file())
        kind, self.path = rng.choice(HARMS), rng.choice(files)
        self.what, self.sound = f"{kind} {self.path}", self.path.read_bytes()
        harmed = bytearray(self.sound)
        if kind == "cut":
            del harmed[rng.randrange(max(1, len(harmed))) :]
        elif kind == "flip" and harmed:
            harmed[rng.randrange(len(harmed))] ^= 1 << rng.randrange(8)
        self.harmed = None if kind == "remove" else bytes(harmed)
        self.put(self.harmed)

    def put(self, content):
        if content is None:
            self.path.unlink()
        else:
            self.path.write_bytes(content)

    @contextmanager
    def undone(self):
        self.put(self.sound)
        yield
        self.put(self.harmed)


def is_needed(path):
    """Return whether a prediction reads a file: of the rows, of a model, or what says which."""
    return path.parts[0] == "data" or "model" in path.parts or path.parts[1:] == ("zarr.json",)


def check_uses(sound, place, name, harm):
    """Every command that reads a run or model gives what it gave before, or refuses.

    It may refuse only if what it reads is harmed, and no longer once that is put right.
    """
    expected = (sound.labels[name], sound.errors[name])
    found = uses(place, name)
    if None in found:
        assert is_needed(harm.path.relative_to(place))
        with harm.undone():
            assert uses(place, name) == expected
    for value, right in zip(found, expected, strict=True):
        assert value is None or value == right
    refused(*run("inspect", place / name)[::2])


def uses(place, name):
    return labels_of(place, name), evaluation_of(place, name)


def check_data(sound, place, harm):
    """What is learnt from a dataset is what it was, or `inspect --verify` says why not."""
    checked, out, err = run("inspect", "--verify", place / "data")
    assert "problem            none" in out if checked == 0 else "problem  " in out or err
    refused(*run("inspect", place / "data")[::2])
    if code_of("fit", place / "data", place / "fitted", *FIT) == 0:
        assert Model.load(place / "fitted").digest() == sound.digests["run"]
    else:
        assert checked == 2
    check_uses(sound, place, "run", harm)


def check_run(sound, place, name, harm):
    """A fit of the same rows ends with the same network, also where it has to be done again."""
    check_uses(sound, place, name, harm)
    if name == "updated":
        code_of("update", place / name, place / "data", "--forget", "--workers", 0)
    fitted = code_of("fit", place / "data", place / name, *FIT) == 0
    if name == "run":
        # Only what says which run it is cannot be computed again.
        assert fitted or harm.path == place / name / "zarr.json"
        if fitted:
            assert Model.load(place / name).digest() == sound.digests[name]
            assert labels_of(place, name) == sound.labels[name]
    refused(*run("report", place / name, "--out", place / "page.html")[::2])


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("seed", range(N_SEEDS))
def test_mutations__end_in_the_right_result_or_one_line(sound, tmp_path, seed):
    """Harm one thing, the seed says which and how, and use it in every way."""
    kind = KINDS[seed % len(KINDS)]
    for name in ("data", "more", *KINDS[1:]):
        shutil.copytree(sound.place / name, tmp_path / name)
    harm = Harm(random.Random(seed), tmp_path / kind)
    try:
        if kind == "data":
            check_data(sound, tmp_path, harm)
        elif kind == "model":
            check_uses(sound, tmp_path, "model", harm)
        else:
            check_run(sound, tmp_path, kind, harm)
    except BaseException as error:
        error.add_note(harm.what)
        raise
