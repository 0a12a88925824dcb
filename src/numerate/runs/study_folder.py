"""The folder of a study: which runs belong to it. Reading it needs no torch.

    runs/<study>/
      study.json               title, question, labels; the runs of the last command, and those that earlier ones made
      log.txt                  messages of the commands
      report.html figure.png   of the last command

How each run is, its own folder says: `runs/<recipe>/<id>/`. It may belong to several studies. A search is a study, too,
whose runs are chosen one after the other.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import msgspec

from numerate.config.differences import label_settings
from numerate.errors import UserError, did_you_mean
from numerate.records.reading import FORMAT, check_format, damage_message, read_bytes
from numerate.runs.end import read_json
from numerate.training import disk
from numerate.training.lock import Lock
from numerate.training.run_folder import folder_name

STUDY_FILE = "study.json"

Parameters = dict[str, str | int | float]

REMEDY = "The runs are unharmed: move the file away, and the same command writes it again."
_LOCK_TIMEOUT = 60.0  # seconds to wait for another process that writes the study


class StudyRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A run of a study, made or not: its path below the folder of runs, the content key of its recipe, and the recipe.

    `name` is that of its recipe, `settings` are those in which recipes of its title differ. `current`: whether the last
    command requested it. A run of a search has the number of its `trial` and its `parameters`.
    """

    run: Annotated[str, msgspec.Meta(pattern=r"^(?!\.)[^/\\]+/(?!\.)[^/\\]+$")]
    key: str
    seed: int
    name: str = ""
    settings: str = ""
    current: bool = True
    trial: Annotated[int, msgspec.Meta(ge=0)] | None = None
    parameters: Parameters = {}
    tree: msgspec.Raw

    @classmethod
    def of(cls, run: str, key: str, tree: Mapping[str, Any], **more: Any) -> "StudyRun":
        """A run whose recipe is `tree`; `StudyFolder.update` names it."""
        text = msgspec.json.encode(disk.to_plain_data(tree, finite=True))
        return cls(run=run, key=key, seed=int(tree.get("seed", 0)), tree=msgspec.Raw(text), **more)

    def recipe_tree(self) -> dict[str, Any]:
        """Its recipe as plain data; infinite numbers are texts, which settings accept."""
        return msgspec.json.decode(self.tree, type=dict[str, Any])

    @property
    def label(self) -> str:
        """The name of its variant, the same for all its seeds: `Abacus (hidden_size=64)`."""
        return f"{self.name} ({self.settings})" if self.settings else self.name

    @property
    def display_name(self) -> str:
        return f"{self.label} seed {self.seed}" if self.seed else self.label


class StudyContent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of `study.json`."""

    format: int = FORMAT
    title: str
    question: str = ""
    labels: dict[str, str] = {}
    runs: list[StudyRun] = []

    def plan(self) -> list[StudyRun]:
        """The runs that the last command requested, in its order."""
        return [run for run in self.runs if run.current]


class StudyFolder:
    """A study on disk. For example, the settings of each run of the last command:

    folder = StudyFolder.find("abacus_laptop", resolve_runs_dir())
    [run.recipe_tree() for run in folder.read().plan()]
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def find_existing(cls, address: str, runs: Path) -> "StudyFolder | None":
        """The study at a path or with a title, in which `-` equals `_`; None if there is none."""
        text = address.rstrip("/")
        paths = [Path(text).expanduser(), runs / text, runs / text.replace("-", "_")] if text else []
        return next((cls(path) for path in paths if (path / STUDY_FILE).is_file()), None)

    @classmethod
    def find(cls, address: str, runs: Path) -> "StudyFolder":
        """The study at a path or with a title. Raises `UserError` if there is none, with the most similar title."""
        if (found := cls.find_existing(address, runs)) is not None:
            return found
        titles, name = sorted(path.parent.name for path in runs.glob(f"*/{STUDY_FILE}")), address.replace("-", "_")
        there_are = f"; there are: {', '.join(titles[:12])}{', ...' * (len(titles) > 12)}" if titles else ""
        made_by = f"`numerate run {name}` makes that of a recipe or study of this name"
        raise UserError(f"no study in {runs} is called {address!r} ({made_by}){there_are}.{did_you_mean(name, titles)}")

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
        path = self.path / STUDY_FILE
        content = read_json(path, StudyContent, REMEDY)
        if content is None:
            return StudyContent(title=self.title)
        check_format(path, content.format)
        if not all(bytes(run.tree).startswith(b"{") for run in content.runs):
            raise UserError(damage_message(path, "a recipe is no object", REMEDY))
        if len({run.run for run in content.runs}) < len(content.runs):
            raise UserError(damage_message(path, "a run is listed twice", REMEDY))
        return content

    def update(
        self, requested: Sequence[StudyRun], question: str = "", labels: Mapping[str, str] = {}, *, write: bool = True
    ) -> list[StudyRun]:
        """Makes these the runs of the last command, and returns them with their names, in the same order.

        Runs of earlier commands stay, marked, if they were made. Several commands may call this at the same time. With
        `write=False` nothing is written.
        """
        if write:
            disk.make_folder(self.path)
        with Lock(self.path / "study.lock").hold("planning", timeout=_LOCK_TIMEOUT) if write else nullcontext():
            old, names = self.read(), {one.run for one in requested}
            labels = {**old.labels, **labels}
            plan = _named(requested, labels)
            others = [one for one in old.runs if one.run not in names and (self.runs_dir / one.run).exists()]
            runs = [*plan, *(msgspec.structs.replace(one, current=False) for one in others)]
            content = StudyContent(title=self.title, question=question, labels=labels, runs=runs)
            text = msgspec.json.encode(content)
            if write and text != read_bytes(self.path / STUDY_FILE):
                disk.write_atomically(self.path / STUDY_FILE, text, unharmed_note="The runs are unharmed.")
        return plan


def _named(runs: Sequence[StudyRun], labels: Mapping[str, str]) -> list[StudyRun]:
    """The runs with their names: the label of a recipe's title, else its `name`, else the title; and with the settings
    in which recipes of a title differ, seeds aside."""
    variants: dict[str, dict[bytes, list[int]]] = {}
    for i, run in enumerate(runs):
        tree = run.recipe_tree() | {"seed": 0}
        variants.setdefault(tree.get("title", ""), {}).setdefault(msgspec.json.encode(tree), []).append(i)
    named, title_by_name = list(runs), dict[str, str]()
    for title, places in variants.items():
        trees = list(map(msgspec.json.decode, places))
        names = {tree.get("name") for tree in trees}
        name = labels.get(title) or (names.pop() if len(names) == 1 else None) or title
        name += f", {title}" if title_by_name.setdefault(name, title) != title else ""
        for indices, settings in zip(places.values(), label_settings(trees), strict=True):
            for i in indices:
                named[i] = msgspec.structs.replace(runs[i], name=name, settings=settings)
    return named
