"""What a fit is expected to take, for the console."""

from dask.utils import format_bytes

from dask_nrbfn.commands.plan import Plan


def plan_table(plan: Plan) -> str:
    """Return a plan as text, a line for each stage."""
    searched = "" if plan.n_candidates is None else f" of {plan.n_candidates} candidates"
    lines = [
        f"{plan.n_workers} worker(s) x {plan.threads} thread(s), "
        f"{format_bytes(plan.memory_bytes)} for a task; {plan.n_basis} basis rows; "
        f"{plan.method} neighbours{searched} in {plan.n_partitions} partition(s)",
        f"{'stage':<12}{'GFLOP':>12}{'read':>12}{'written':>12}{'held':>12}{'seconds':>10}",
    ]
    for planned in plan.stages:
        cost = planned.cost
        sizes = (cost.read_bytes, cost.written_bytes, cost.held_bytes)
        shown = "".join(f"{format_bytes(size):>12}" for size in sizes)
        over = "  more than a worker has" if cost.held_bytes > plan.memory_bytes else ""
        lines.append(
            f"{planned.name:<12}{cost.flops / 1e9:>12,.1f}{shown}{planned.seconds:>10.1f}{over}"
        )
    lines.append(f"{'all':<60}{sum(stage.seconds for stage in plan.stages):>10.1f}")
    return "\n".join(lines)
