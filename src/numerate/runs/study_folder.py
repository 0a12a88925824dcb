"""The folder of a study: which runs belong to it. Reading it needs no torch.

    runs/<study>/
      study.json               title, question, labels; the runs of the last command, and those that earlier ones made
      log.txt                  messages of the commands
      report.html figure.png   of the last command

How each run is, its own folder says: `runs/<recipe>/<id>/`. It may belong to several studies.
"""

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from numerate import catalogue
from numerate.errors import UserError, did_you_mean
from numerate.records.reading import FORMAT, check_format
from numerate.reports.settings import label_settings
from numerate.runs.end import read_json
from numerate.runs.patch import apply_diff, tree_diff
from numerate.training import disk
from numerate.training.lock import Lock
from numerate.training.run_folder import folder_name

STUDY_FILE = "study.json"

_REMEDY = "The runs are unharmed: move the file away, and the same `numerate run` writes it again."
_LOCK_TIMEOUT = 60.0  # seconds to wait for another process that writes the study


@dataclass(frozen=True)
class RequestedRun:
    """A run that a command requests: `run` is its path below the folder of runs, `key` the content key of its recipe,
    `tree` that recipe as plain data."""

    run: str
    key: str
    tree: Mapping[str, Any]

    @property
    def title(self) -> str:
        return str(self.tree.get("title", "recipe"))

    @property
    def seed(self) -> int:
        return int(self.tree.get("seed", 0))


class StudyRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A run of a study. `label` names its variant, the same for all its seeds; `diff` has the settings, by path, in
    which its recipe differs from the first one of its title, `base`. `current`: whether the last command requested it.
    """

    run: Annotated[str, msgspec.Meta(pattern=r"^(?!\.)[^/\\]+/(?!\.)[^/\\]+$")]
    key: str
    label: str
    seed: int
    base: str
    diff: dict[str, Any] = {}
    current: bool = True

    @property
    def display_name(self) -> str:
        """Its name in messages."""
        return f"{self.label} seed {self.seed}" if self.seed else self.label


R = TypeVar("R", RequestedRun, StudyRun)


class StudyContent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of `study.json`; `bases` are the first recipes of each title."""

    format: int
    title: str
    question: str = ""
    labels: dict[str, str] = {}
    bases: dict[str, dict[str, Any]] = {}
    runs: list[StudyRun] = []

    def plan(self) -> list[StudyRun]:
        """The runs that the last command requested, in its order."""
        return [run for run in self.runs if run.current]

    def tree(self, run: StudyRun) -> dict[str, Any]:
        """The recipe of a run as plain data, for its settings in tables; infinite numbers are texts."""
        tree: dict[str, Any] = apply_diff(self.bases.get(run.base, {}), run.diff)
        return tree


class StudyFolder:
    """A study on disk. For example, the settings of each run of the last command:

    folder = StudyFolder.find("abacus_laptop", resolve_runs_dir())
    content = folder.read()
    [content.tree(run) for run in content.plan()]
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def find_existing(cls, address: str, runs: Path) -> "StudyFolder | None":
        """The study with a title or at a path, None if there is none."""
        paths = [path for path in _study_paths(address, runs) if (path / STUDY_FILE).is_file()]
        return cls(paths[0]) if paths else None

    @classmethod
    def find(cls, address: str, runs: Path) -> "StudyFolder":
        """The study with a title or at a path. Raises `UserError` if there is none (with the most similar title), and
        for a recipe that was not run as a study."""
        if (found := cls.find_existing(address, runs)) is not None:
            return found
        text = address.rstrip("/")
        recipe = text.replace("-", "_")
        if recipe in catalogue.parts_by_kind().get("Recipe", {}) or catalogue.family_row("Recipe", recipe) is not None:
            raise UserError(f"{address} is a recipe, not a study; `numerate run {recipe}` creates one in {runs}")
        titles = sorted(path.parent.name for path in runs.glob(f"*/{STUDY_FILE}"))
        titles_text = f"; there are: {', '.join(titles[:12])}{', ...' if len(titles) > 12 else ''}" if titles else ""
        hint = "" if titles else "; `numerate run quickstart` creates one"
        suggestion = did_you_mean(text.replace("-", "_"), titles)
        raise UserError(f"no study in {runs} is called {address!r}{titles_text}{hint}.{suggestion}")

    @classmethod
    def from_title(cls, title: str, runs: Path) -> "StudyFolder":
        """The folder of a study of this title, existing or not."""
        return cls(runs / folder_name(title))

    @property
    def title(self) -> str:
        return self.path.absolute().name

    @property
    def runs_dir(self) -> Path:
        """The folder that contains its runs."""
        return self.path.parent

    def read(self) -> StudyContent:
        """Its title, question, labels and runs; without a file there are none. Raises `UserError` for a file that was
        damaged, edited, or written by another version."""
        content = read_json(self.path / STUDY_FILE, StudyContent, _REMEDY)
        if content is not None:
            check_format(self.path / STUDY_FILE, content.format)
        return content or StudyContent(format=FORMAT, title=self.title)

    def update(
        self,
        requested: Sequence[RequestedRun],
        *,
        question: str = "",
        labels: Mapping[str, str] | None = None,
        write: bool = True,
    ) -> list[StudyRun]:
        """Makes these the runs of the last command, and returns them in the same order.

        Runs of earlier commands stay, marked, if they were made. Several commands may call this at the same time. With
        `write=False` nothing is written.
        """
        if not write:
            return self._merge(requested, question, labels or {}).runs[: len(requested)]
        disk.make_folder(self.path)
        with Lock(self.path / "study.lock").hold("planning", timeout=_LOCK_TIMEOUT):
            content = self._merge(requested, question, labels or {})
            if content != self.read() or not (self.path / STUDY_FILE).is_file():
                text = msgspec.json.encode(content)
                disk.write_atomically(self.path / STUDY_FILE, text, unharmed_note="The runs are unharmed.")
        return content.runs[: len(requested)]

    def _merge(self, requested: Sequence[RequestedRun], question: str, labels: Mapping[str, str]) -> StudyContent:
        old, requested_runs = self.read(), {one.run for one in requested}
        all_labels = {**old.labels, **{str(title): str(label) for title, label in labels.items()}}
        first: dict[str, Mapping[str, Any]] = {}
        diffs = [_plain(tree_diff(first.setdefault(one.title, one.tree), one.tree)) for one in requested]
        runs = [
            StudyRun(run=one.run, key=one.key, label=label, seed=one.seed, base=one.title, diff=diff)
            for one, diff, label in zip(requested, diffs, _variant_labels(requested, diffs, all_labels), strict=True)
        ]
        bases: dict[str, Any] = {title: _plain(tree) for title, tree in first.items()}
        earlier = [one for one in old.runs if one.run not in requested_runs]
        for one in existing_runs(self.runs_dir, earlier):
            base = bases.setdefault(one.base, old.bases.get(one.base, {}))
            diff = one.diff if base == old.bases.get(one.base) else tree_diff(base, old.tree(one))
            runs.append(msgspec.structs.replace(one, diff=diff, current=False))
        return StudyContent(
            format=FORMAT, title=self.title, question=str(question), labels=all_labels, bases=bases, runs=runs
        )


def existing_runs(runs_dir: Path, runs: Iterable[R]) -> list[R]:
    """The runs whose folder exists, with one look at each folder of a recipe."""
    existing: dict[str, set[str]] = {}
    found = []
    for one in runs:
        title, _, run_id = one.run.partition("/")
        if title not in existing:
            try:
                existing[title] = set(os.listdir(runs_dir / title))
            except OSError:
                existing[title] = set()
        found += [one] if run_id in existing[title] else []
    return found


def _variant_labels(
    requested: Sequence[RequestedRun], diffs: Sequence[Mapping[str, Any]], labels: Mapping[str, str]
) -> list[str]:
    """The label of each run: that of its recipe's title, with the settings in which the runs of this title differ:
    `["Abacus (hidden_size=64)", "Abacus (hidden_size=128)", "rotary"]`. Seeds share a label."""
    variants: dict[str, dict[str, list[int]]] = {}
    for i, (one, diff) in enumerate(zip(requested, diffs, strict=True)):
        variant = repr([(path, value) for path, value in diff.items() if path != "seed"])
        variants.setdefault(one.title, {}).setdefault(variant, []).append(i)
    found, title_by_label = [""] * len(requested), dict[str, str]()
    for title, places in variants.items():
        trees = [requested[indices[0]].tree for indices in places.values()]
        names = {tree.get("name") for tree in trees}
        label = labels.get(title, str((names.pop() if len(names) == 1 else None) or title))
        for indices, settings in zip(places.values(), label_settings(trees), strict=True):
            text = f"{label} ({settings})" if settings else label
            text += f", {title}" if title_by_label.setdefault(text, title) != title else ""
            for i in indices:
                found[i] = text
    return found


def _study_paths(address: str, runs: Path) -> list[Path]:
    """Where a study may be: at the path, or under its title, in which `-` equals `_`."""
    text = address.rstrip("/")
    return [Path(os.path.expanduser(text)), runs / text, runs / text.replace("-", "_")] if text else []


def _plain(value: Any) -> Any:
    """A recipe with infinite numbers as texts, which settings accept: JSON cannot represent them."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
