"""What engines cost: seconds until the first worker works, and how long a worker waits between two items.

    python benchmarks/engines.py [--items 2000] [--workers 2] [--repeats 3]

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

from numerate.runs.engines import Local, Ray
from numerate.runs.engines.engine import Engine

AT_MOST = 20.0  # milliseconds per item


def same(item: Any) -> Any:
    """An item that is over at once."""
    return item


def loaded(item: Any) -> Any:
    """The same, after what a study loads."""
    from numerate.runs.train import train

    assert train is not None
    return item


def measured(over: Iterable[Any], items: int, workers: int) -> tuple[float, float]:
    """Seconds to the first item that is over, and milliseconds of a worker per item after it."""
    began = time.perf_counter()
    times = [time.perf_counter() for _ in over]
    assert len(times) == items
    return times[0] - began, 1000 * (times[-1] - times[0]) * workers / (items - 1)


def of_engine(engine: Engine, function: Callable[[Any], Any], items: int, workers: int) -> tuple[float, float]:
    return measured(engine.map(function, range(items)), items, workers)


def of_python(items: int, workers: int) -> tuple[float, float]:
    def over() -> Iterator[Any]:
        with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as engine:
            for future in as_completed([engine.submit(same, item) for item in range(items)]):
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
        local.append(of_engine(Local(workers=workers), same, items, workers))
        python.append(of_python(items, workers))
    line(f"local, {workers} workers, empty items", local, python)
    line("concurrent.futures.ProcessPoolExecutor", python)
    line("local, with what a study loads", [of_engine(Local(workers=workers), loaded, items, workers)])
    try:
        import ray
    except ImportError:
        return
    line("ray, with what a study loads, cluster included", [of_engine(Ray(workers=workers), loaded, items, workers)])
    ray.init("local", num_cpus=workers, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
    ours: list[tuple[float, float]] = []
    theirs: list[tuple[float, float]] = []
    for _ in range(given.repeats):
        ours.append(of_engine(Ray(workers=workers), same, items, workers))
        theirs.append(of_ray(items, workers))
    line(f"ray, {workers} workers, empty items, on a cluster that is there", ours, theirs)
    line("ray.util.ActorPool", theirs)
    ray.shutdown()


if __name__ == "__main__":
    main()
