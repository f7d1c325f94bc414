"""What the tests know of this machine."""

import os


def cores():
    """Return the number of cores that this process may use."""
    known = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if known else os.cpu_count()
