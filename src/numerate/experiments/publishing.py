"""Publishing on the Hugging Face Hub: the folder of a run as a model, that of a study's results as a dataset."""

import re
from pathlib import Path

from numerate.errors import OperationalError, UserError, error_text, import_extra
from numerate.experiments import exporting
from numerate.experiments.run import Run
from numerate.records.heads import RECIPE_FILE
from numerate.reports.card import card
from numerate.reports.groups import group_runs
from numerate.reports.page import comparison_page, run_page
from numerate.reports.records import read_run
from numerate.reports.sections import Subject
from numerate.text.data.new_folder import atomic_folder
from numerate.training import disk
from numerate.training.run_folder import header_yaml

_USAGE = """A run of numerate, at the checkpoint of step {step:,}. `recipe.yaml` has \
its recipe, `evaluation.jsonl` a record for each cell that was evaluated, `report.html` its figures.

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("{repository}"{trust})
tokenizer = AutoTokenizer.from_pretrained("{repository}"{trust})
```"""

_RESULTS = """The results of a study with numerate. `runs.csv` has a row for each \
run, `cells.csv` one for each run, checkpoint and cell, with its interval; `report.html` has the figures."""


def parse_repository(address: str) -> str:
    """The repository of `hub:USER/NAME`.

    >>> parse_repository("hub:ada/adder")
    'ada/adder'

    Raises `UserError` for any other text.
    """
    match = re.fullmatch(r"hub:([\w.-]+/[\w.-]+)", address)
    if not match:
        raise UserError(f"publish: {address!r} must have the form hub:USER/NAME, as in hub:ada/adder")
    return match[1]


def write_model_folder(run: Run, out: Path, repository: str, license: str, *, checkpoint: str = "final") -> None:
    """Writes what is published of a run: the exported model, its recipe and records, its report, and a model card.

    `license` is an identifier of the Hub, such as apache-2.0. Raises `UserError` as `exporting.export` does, and for a
    run that is not evaluated.
    """
    records = read_run(run.path)
    if not run.folder.file("evaluation.jsonl").is_file():
        raise UserError(f"publish: {run.path} has no results to show; evaluate it first: numerate evaluate {run.path}")
    exporting.export(run, out, checkpoint_name=checkpoint)
    for name in ("metrics.jsonl", "evaluation.jsonl"):  # what was read and checked, not the files themselves
        if run.folder.file(name).is_file():
            (out / name).write_bytes(b"".join(map(disk.json_line, run.folder.records(name))))
    (out / RECIPE_FILE).write_bytes(header_yaml(run.folder.metadata()))
    (out / "report.html").write_text(run_page(records), encoding="utf-8")
    note = exporting.loading_note(out)
    introduction = _USAGE.format(
        step=run.checkpoints(checkpoint)[0].step,
        repository=repository,
        trust=", trust_remote_code=True" if "trust_remote_code" in note else "",
    )
    metadata = {"license": license, "library_name": "transformers", "pipeline_tag": "text-generation"}
    base = getattr(run.recipe.model, "weights", None)
    if base and not Path(base).is_absolute():  # a name on the Hub
        metadata["base_model"] = str(base)
    subject = Subject(group_runs([records])[:1], "run")
    text = card(subject, repository.partition("/")[2], introduction, metadata | {"tags": ["numerate"]})
    (out / "README.md").write_text(text, encoding="utf-8")


def write_results_folder(study: str, subject: Subject, tables: dict[str, str], out: Path, license: str) -> None:
    """Writes what is published of a study: its tables by file name, its report and a card."""
    metadata = {
        "license": license,
        "tags": ["numerate"],
        "configs": [
            {"config_name": Path(name).stem, "data_files": name, **({"default": True} if position == 0 else {})}
            for position, name in enumerate(tables)
        ],
    }
    with atomic_folder(out) as folder:
        for name, text in tables.items():
            (folder / name).write_text(text, encoding="utf-8")
        (folder / "report.html").write_text(comparison_page(subject.groups, study), encoding="utf-8")
        (folder / "README.md").write_text(card(subject, study, _RESULTS, metadata), encoding="utf-8")


def files_of(folder: Path) -> list[tuple[str, int]]:
    """The files of a folder with their bytes, by name."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return [(path.relative_to(folder).as_posix(), path.stat().st_size) for path in paths]


def require_token() -> str:
    """The user's token for the Hub. Raises `UserError` without one."""
    token: str | None = import_extra("huggingface_hub", "publish", "huggingface").get_token()
    if token is None:
        raise UserError(
            "publish: there is no token of the Hugging Face Hub; run `hf auth login`, or set HF_TOKEN to a token that "
            "may write"
        )
    return token


def upload(folder: Path, repository: str, repo_type: str, token: str, *, private: bool, message: str) -> str:
    """Adds the files of a folder to a repository of the Hub in one commit, creates it if necessary, and returns its
    address. Other files there stay, and former versions of these remain in its history.

    Raises `OperationalError` if the Hub refuses or cannot be reached.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError, OfflineModeIsEnabled

    api = HfApi(token=token, library_name="numerate")
    try:
        address = api.create_repo(repository, repo_type=repo_type, private=private, exist_ok=True)
        api.upload_folder(repo_id=repository, repo_type=repo_type, folder_path=folder, commit_message=message)
    except HFValidationError as error:
        raise UserError(f"publish: {error}") from error
    except OfflineModeIsEnabled as error:
        raise UserError("publish: HF_HUB_OFFLINE is set; unset it to upload") from error
    except Exception as error:  # of many kinds: refused, no network, metadata of the card
        raise OperationalError(f"publish: {repository} was not uploaded: {error_text(error)}") from error
    return str(address)
