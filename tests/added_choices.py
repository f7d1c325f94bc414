"""Choices that a test adds to the tables of `dask_nrbfn.choices`."""

from dask_nrbfn import choices
from dask_nrbfn.params import FitParams

TABLES = {
    "kernel": choices.KERNELS,
    "loss": choices.LOSSES,
    "penalty": choices.PENALTIES,
    "basis": choices.BASES,
}


def add_choice(monkeypatch, parameter, name, value):
    """Let a test fit with `value` under a name of its own."""
    monkeypatch.setattr(choices, name, value, raising=False)
    monkeypatch.setitem(TABLES[parameter].places, name, f"choices:{name}")
    option = FitParams.options()[parameter]
    monkeypatch.setitem(vars(option), "choices", (*option.choices, name))
