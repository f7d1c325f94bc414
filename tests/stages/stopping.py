"""Engines that count tasks, and stop as a killed job does."""

from collections import Counter
from itertools import accumulate

from dask_nrbfn.engine import InlineEngine


class StoppedError(Exception):
    pass


class CountingEngine(InlineEngine):
    """Counts tasks by label and, once so many of a label or of all have run, raises."""

    def __init__(self, n_tasks=None, *, label=None):
        super().__init__()
        self.n_tasks, self.label, self.done = n_tasks, label, Counter()

    def run(self, task, arguments, *, label):
        results = []
        for values in arguments:
            n_done = self.done[label] if self.label else self.done.total()
            if self.label in (None, label) and n_done == self.n_tasks:
                raise StoppedError
            results += super().run(task, [values], label=label)
            self.done[label] += 1
        return results


def middles(done):
    """Return how many tasks have run where half of a label's have, for every label in its order."""
    ends = accumulate(done.values())
    return [end - (n_tasks + 1) // 2 for end, n_tasks in zip(ends, done.values(), strict=True)]
