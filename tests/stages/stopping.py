"""Engines that count tasks, and stop as a killed job does."""

from collections import Counter
from itertools import accumulate

from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.engine.measure import measure


class StoppedError(Exception):
    pass


class CountingEngine(InlineEngine):
    """Counts tasks by label and, once so many of a label or of all have run, raises."""

    def __init__(self, n_tasks=None, *, label=None):
        super().__init__()
        self.n_tasks, self.label, self.done = n_tasks, label, Counter()

    def _finished(self, task, waiting, label):
        while waiting:
            # Additions of sums are not counted.
            is_counted = waiting[0][0] >= 0
            n_done = self.done[label] if self.label else self.done.total()
            if is_counted and self.label in (None, label) and n_done == self.n_tasks:
                raise StoppedError
            number, values = waiting.popleft()
            measured = measure(task, *values)
            self.done[label] += is_counted
            yield number, measured


def middles(done):
    """Return how many tasks have run where half of a label's have, for every label that stores."""
    labels = zip(done.items(), accumulate(done.values()), strict=True)
    return [end - (n + 1) // 2 for (label, n), end in labels if label != "measure speed"]
