"""`bench v1`: models on the fixed test sets of the benchmark."""

from collections.abc import Sequence
from pathlib import Path

from numerate.bench.results import BenchResult, cells_table, results_table
from numerate.bench.running import bench_model, bench_run
from numerate.bench.test_sets import TestSet, select
from numerate.commands.pretrained import evaluate_with_progress, is_pretrained
from numerate.errors import UserError
from numerate.experiments.results import content_text
from numerate.experiments.run import load
from numerate.recipes.hugging_face import hugging_face_recipe
from numerate.reports.output_files import check_output_file, write_output
from numerate.terminal import output_width


def bench(
    *addresses: str,
    settings: Sequence[str] = (),
    sets: str = "",
    data_dir: str | None = None,
    count: int | None = None,
    checkpoint: str = "final",
    cells: bool = False,
    out: str | None = None,
    device: str | None = None,
    runs_dir: str | None = None,
) -> None:
    """Prints the results of runs, Hugging Face models and files of results in one table, and writes those of one."""
    if out is not None:
        if len(addresses) > 1:
            raise UserError("out: is the file of one model, and several are named; leave it out for a table of them")
        check_output_file(out, "jsonl")
    names = [name.strip() for name in sets.split(",") if name.strip()]
    results = [
        BenchResult.from_json(address)
        if address.endswith(".json")
        else _bench_one(address, select(names, data_dir), settings, count, checkpoint, device, runs_dir)
        for address in addresses
    ]
    print(content_text(results_table(results), output_width()))
    for result in results if cells else []:
        print(f"\n{result.name}\n\n{cells_table(result).to_text(output_width())}")
    if out is not None:
        write_output(Path(out), results[0].to_json().encode())
        print(f"\n{out}")


def _bench_one(
    address: str,
    sets: Sequence[TestSet],
    settings: Sequence[str],
    count: int | None,
    checkpoint: str,
    device: str | None,
    runs_dir: str | None,
) -> BenchResult:
    if is_pretrained(address):
        return bench_model(
            hugging_face_recipe(address.removeprefix("hf:")),
            sets,
            count=count,
            settings=settings,
            runs_dir=runs_dir,
            device=device,
            evaluate=lambda run, name, count: evaluate_with_progress(run, name, count=count),
        )
    if settings or count is not None:
        raise UserError(f"{[*settings, f'count={count}'][0]}: is for hf: models; a run is asked as it was trained")
    return bench_run(load(address, runs_dir, device), sets, checkpoint=checkpoint)
