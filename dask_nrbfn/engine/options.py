"""Where tasks run; this module loads neither dask nor numpy."""

from dataclasses import dataclass
from typing import Literal

from dask_nrbfn.errors import ParameterError
from dask_nrbfn.params import Params, count, document, word


@dataclass(frozen=True, kw_only=True)
class EngineOptions(Params):
    """Where tasks run. None of this changes a result, except for rounding on a GPU.

    Without a scheduler and workers, the tasks run in this process. With ``bar=True``, they draw
    progress bars if standard error is a terminal. Options that contradict each other or cannot be
    read are a ParameterError.
    """

    scheduler: str | None = word(None, "", "A running scheduler.", none="unset", metavar="ADDRESS")
    scheduler_file: str | None = word(
        None, "", "File that a running scheduler wrote.", none="unset", metavar="FILE"
    )
    workers: int | None = count(None, "Local processes; 0: only this one.", least=0, none="0")
    threads: int | None = count(None, "Threads of each process.", none="the cores / workers")
    memory: str | None = word(
        None, "", "Limit of each process, such as 4GiB.", none="all / workers", metavar="BYTES"
    )
    device: Literal["cpu", "gpu"] = word(
        "cpu",
        "cpu|gpu",
        "Where blocks of rows are computed; gpu needs CuPy and a GPU in every process. A run can "
        "continue on the other device.",
    )
    bar: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.device == "gpu" and (self.workers or 0) > 1:
            raise ParameterError(
                f"`workers` is {self.workers}, but one process uses the GPU.",
                "Leave `workers` out, or start LocalCUDACluster of dask-cuda, which has a worker "
                "for every GPU, and give its `scheduler`.",
            )
        if self.scheduler and self.scheduler_file:
            raise ParameterError("`scheduler` and `scheduler_file` are both given.", "Give one.")
        local = ("workers", "threads", "memory")
        given = [f"`{name}`" for name in local if getattr(self, name) is not None]
        if given and (self.scheduler or self.scheduler_file):
            raise ParameterError(
                f"{' and '.join(given)} given with a running scheduler.",
                "Leave them out: they configure work on this machine only.",
            )
        if self.memory is not None:
            parse_memory(self.memory)

    @property
    def run_here(self) -> bool:
        """Whether the tasks run in this process, because no option selects a cluster."""
        return not (self.scheduler or self.scheduler_file or self.workers)


document(EngineOptions, EngineOptions.options())


def parse_memory(text: str) -> int:
    """Return the number of bytes that a text such as 4GiB means."""
    from dask.utils import parse_bytes

    try:
        n_bytes = int(parse_bytes(text))
    except ValueError as error:
        raise ParameterError(f"`memory` is {text!r}.", "Give bytes with a unit: 4GiB.") from error
    if n_bytes < 2**28:
        raise ParameterError(f"`memory` is {text!r}.", "A worker needs at least 256MiB to start.")
    return n_bytes
