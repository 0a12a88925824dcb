"""`publish`: a run, or the results of a study, on the Hugging Face Hub. Nothing is sent without a token and a yes."""

import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from numerate.commands.compare import resolve_runs
from numerate.errors import UserError
from numerate.experiments import publishing
from numerate.experiments.run import load
from numerate.reports.compare import read_comparison
from numerate.tables.results import cells_of, results_of
from numerate.tables.writing import render
from numerate.training.disk import format_bytes


def publish(
    address: str, target: str, *, license: str, checkpoint: str = "final", runs_dir: str | None = None, **options: bool
) -> None:
    """Uploads a run to the Hub as a model."""
    run = load(address, runs_dir, "cpu")

    def write(folder: Path, repository: str) -> None:
        publishing.write_model_folder(run, folder, repository, license, checkpoint=checkpoint)

    _publish(target, "model", write, f"numerate run {run.folder.id}", **options)


def publish_results(study: str, target: str, *, license: str, runs_dir: str | None = None, **options: bool) -> None:
    """Uploads the results of a study to the Hub as a dataset."""
    runs = resolve_runs([study], runs_dir)
    tables = {"runs.csv": results_of(study, runs_dir), "cells.csv": cells_of(study, runs_dir)}
    texts = {name: render(frame, "csv") for name, frame in tables.items()}
    subject = read_comparison(runs.folders, labels=runs.labels)
    title = Path(study).name

    def write(folder: Path, repository: str) -> None:
        publishing.write_results_folder(title, subject, texts, folder, license)

    _publish(target, "dataset", write, f"numerate results {title}", **options)


def _publish(
    target: str,
    repo_type: str,
    write: Callable[[Path, str], None],
    message: str,
    *,
    private: bool = False,
    dry_run: bool = False,
    yes: bool = False,
) -> None:
    repository = publishing.parse_repository(target)
    token = "" if dry_run else publishing.require_token()
    with TemporaryDirectory() as temporary_dir:
        folder = Path(temporary_dir) / repository.partition("/")[2]
        write(folder, repository)
        files = publishing.files_of(folder)
        width = max(len(name) for name, _ in files)
        print("\n".join(f"{name:<{width}}  {format_bytes(size):>9}" for name, size in files))
        if dry_run:
            print(f"\n{(folder / 'README.md').read_text(encoding='utf-8')}\nNothing was uploaded (--dry-run).")
            return
        visibility = "private" if private else "public"
        total = format_bytes(sum(size for _, size in files))
        question = f"Upload {len(files)} files, {total}, to the {visibility} {repo_type} {repository}?"
        if not (yes or _confirm(question)):
            print("Nothing was uploaded.")
            return
        print(publishing.upload(folder, repository, repo_type, token, private=private, message=message))


def _confirm(question: str) -> bool:
    """Whether the user answers yes. Raises `UserError` where nobody can answer."""
    if not sys.stdin.isatty():
        raise UserError("publish: nobody can confirm the upload here; --yes uploads without asking")
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
