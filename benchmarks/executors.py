"""What executors cost: seconds until the first worker works, and how long a worker waits between two items.

    python benchmarks/executors.py [--items 2000] [--workers 2] [--repeats 3]

One JSON line per measurement. The claim is that an item costs at most 20 ms beside its own work, on `Local` and on
`Ray`: `milliseconds_per_item` is the time of one worker from the first item that is over to the last, divided by its
items, where an item does nothing. Contenders are `concurrent.futures.ProcessPoolExecutor` of Python and `ActorPool` of
Ray, measured in turn on the same items; `ratio` is to the one of the same kind (below 1 is quicker). Neither knows of
timeouts or of stopping, nor does Python's survive a worker that dies.

`seconds_to_first` is the time from nothing to the first item that is over. It is paid once per command, by all workers
at the same time: for empty work, and for work that loads what a study needs (torch and the training loop). That of Ray
holds the start of a cluster on this machine. Wall time, since waiting is what is measured: it needs an idle machine.
"""

import argparse
import json
import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from statistics import median
from typing import Any

from numerate.executors import Local, Ray
from numerate.executors.executor import Executor, Work, WorkerContext

AT_MOST = 20.0  # milliseconds per item


class Nothing(Work):
    """Items are over at once."""

    def open(self, desk: WorkerContext) -> Callable[[Any], Any]:
        return same


class Loaded(Work):
    """Items are over at once, after what a study loads."""

    def open(self, desk: WorkerContext) -> Callable[[Any], Any]:
        from numerate.runs.train import train

        assert train is not None
        return same


def same(item: Any) -> Any:
    return item


def measured(over: Iterable[Any], items: int, workers: int) -> tuple[float, float]:
    """Seconds to the first item that is over, and milliseconds of a worker per item after it."""
    began = time.perf_counter()
    times = [time.perf_counter() for _ in over]
    assert len(times) == items
    return times[0] - began, 1000 * (times[-1] - times[0]) * workers / (items - 1)


def of_executor(executor: Executor, work: Work, items: int, workers: int) -> tuple[float, float]:
    return measured(executor.run(work, range(items)), items, workers)


def of_python(items: int, workers: int) -> tuple[float, float]:
    def over() -> Iterator[Any]:
        with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as executor:
            for future in as_completed([executor.submit(same, item) for item in range(items)]):
                yield future.result()

    return measured(over(), items, workers)


def of_ray(items: int, workers: int) -> tuple[float, float]:
    """Ray's own pool of actors, on a cluster that is there."""
    import ray
    from ray.util import ActorPool

    @ray.remote(num_cpus=1)
    class Same:
        def do(self, item: Any) -> Any:
            return item

    pool = ActorPool([Same.remote() for _ in range(workers)])
    return measured(pool.map_unordered(lambda actor, item: actor.do.remote(item), range(items)), items, workers)


def line(what: str, found: list[tuple[float, float]], others: list[tuple[float, float]] | None = None) -> None:
    told: dict[str, Any] = {"what": what, "milliseconds_per_item": round(median(each for _, each in found), 2)}
    told["seconds_to_first"] = round(median(first for first, _ in found), 2)
    if others is not None:
        ratios = [ours / theirs for (_, ours), (_, theirs) in zip(found, others, strict=True)]
        told |= {
            "at_most": AT_MOST,
            "ratio": round(median(ratios), 2),
            "spread": [round(min(ratios), 2), round(max(ratios), 2)],
        }
    print(json.dumps(told), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    items, workers = given.items, given.workers
    local: list[tuple[float, float]] = []
    python: list[tuple[float, float]] = []
    for _ in range(given.repeats):
        local.append(of_executor(Local(workers=workers), Nothing(), items, workers))
        python.append(of_python(items, workers))
    line(f"local, {workers} workers, empty items", local, python)
    line("concurrent.futures.ProcessPoolExecutor", python)
    line("local, with what a study loads", [of_executor(Local(workers=workers), Loaded(), items, workers)])
    try:
        import ray
    except ImportError:
        return
    line(
        "ray, with what a study loads, cluster included", [of_executor(Ray(workers=workers), Loaded(), items, workers)]
    )
    ray.init("local", num_cpus=workers, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
    ours: list[tuple[float, float]] = []
    theirs: list[tuple[float, float]] = []
    for _ in range(given.repeats):
        ours.append(of_executor(Ray(workers=workers), Nothing(), items, workers))
        theirs.append(of_ray(items, workers))
    line(f"ray, {workers} workers, empty items, on a cluster that is there", ours, theirs)
    line("ray.util.ActorPool", theirs)
    ray.shutdown()


if __name__ == "__main__":
    main()
