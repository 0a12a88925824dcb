"""Promises of trackers: they get what a run logs, and whatever happens to them, the run continues."""

import importlib.machinery
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from numerate.errors import UserError
from numerate.integrations.trackers import (
    Tracker,
    Trackers,
    TrackerSettings,
    make_trackers,
    run_id,
    run_name,
)
from numerate.runs.trial import dry_run
from numerate.training.recipe import Recipe

HEAD: dict[str, Any] = {"id": "3f2a9c01b7de", "name": None, "recipe": {}, "times": {"created": "2026-01-01"}}
SAMPLES = [
    {"cell": {"first_digits": 3}, "question": "12+9=", "prediction": "21", "correct": True},
    {"question": "1+1="},
]
METRICS = {"step": 500, "loss": 0.25, "learning_rate": 1e-3}
DEVELOPMENT = {"step": 500, "split": "validation", "exact_match": 0.75, "note": "text is left out", "done": True}


CALLS = ["start", "log_metrics", "log_metrics", "log_figure", "log_table", "finish"]
"""What `log_everything` does."""


class Recording(Tracker):
    """Records its calls; fails at `fails_at`."""

    package = "recording"

    def __init__(self, fails_at: str = "", error: BaseException | None = None) -> None:
        super().__init__(TrackerSettings())
        self.calls: list[tuple[Any, ...]] = []
        self.fails_at, self.error = fails_at, error
        self.hanging = threading.Event()

    def _note(self, what: str, *values: Any) -> None:
        if what == self.fails_at:
            if self.error is None:
                self.hanging.wait(20)
            else:
                raise self.error
        self.calls.append((what, *values))

    def start(self, *values: Any) -> None:
        self._note("start", *values)

    def log_metrics(self, *values: Any) -> None:
        self._note("log_metrics", *values)

    def log_figure(self, *values: Any) -> None:
        self._note("log_figure", *values)

    def log_table(self, *values: Any) -> None:
        self._note("log_table", *values)

    def finish(self) -> None:
        self._note("finish")


def picture() -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1, 1))
    figure.add_subplot().plot([1, 2])
    return figure


def log_everything(active: Trackers, folder: Path) -> None:
    active.start(HEAD, folder)
    active.log_record(METRICS)
    active.log_record(DEVELOPMENT)
    active.log_figure("heat map", picture(), 500)
    active.log_table("samples", SAMPLES, 500)
    active.finish()


def test_a_tracker_gets_everything_in_order(tmp_path: Path) -> None:
    tracker, warnings = Recording(), []
    log_everything(Trackers({"recording": tracker}, warnings.append), tmp_path)
    assert not warnings
    assert [call[0] for call in tracker.calls] == CALLS
    assert tracker.calls[1][1:] == (500, {"train/loss": 0.25, "train/learning_rate": 1e-3})
    assert tracker.calls[2][1:] == (500, {"validation/exact_match": 0.75})
    assert tracker.calls[3][1:3] == (500, "heat map")
    assert tracker.calls[3][3].startswith(b"\x89PNG")
    columns, rows = tracker.calls[4][3:]
    assert columns == ["cell", "question", "prediction", "correct"]
    assert rows == [["first_digits=3", "12+9=", "21", True], [None, "1+1=", None, None]]


@pytest.mark.parametrize("error", [RuntimeError("no network\nat all"), SystemExit(1), OSError(28, "No space left")])
@pytest.mark.parametrize("moment", ["start", "log_metrics", "log_figure", "log_table", "finish"])
def test_a_tracker_that_fails_is_dropped_with_one_warning_and_the_others_go_on(
    tmp_path: Path, moment: str, error: BaseException
) -> None:
    good, warnings = Recording(), []
    both = Trackers({"bad": Recording(moment, error), "good": good}, warnings.append)
    log_everything(both, tmp_path)
    both.log_record(METRICS)
    [warning] = warnings
    assert "tracker bad" in warning
    assert "\n" not in warning
    assert "The run continues" in warning
    assert [call[0] for call in good.calls] == CALLS


def test_a_tracker_that_hangs_holds_nobody_up(tmp_path: Path) -> None:
    bad, warnings = Recording("start"), []
    active = Trackers({"bad": bad}, warnings.append)
    active.start(HEAD, tmp_path)
    active.log_record(METRICS)
    begun = time.monotonic()
    active.finish(timeout=0.05)
    bad.hanging.set()
    assert time.monotonic() - begun < 15
    assert "did not finish within" in warnings[0]
    assert len(warnings) == 1


def test_an_unknown_tracker_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UserError, match=r"wandb, tensorboard, trackio, not 'wandbb'. Did you mean 'wandb'"):
        make_trackers("tensorboard,wandbb")


@pytest.mark.parametrize("spec", [None, importlib.machinery.ModuleSpec("trackio", None)])
def test_a_package_that_is_not_installed_is_refused_with_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, spec: Any
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec)
    with pytest.raises(UserError, match="pip install trackio"):
        make_trackers(["trackio"])
    with pytest.raises(UserError, match="pip install trackio"):
        dry_run(Recipe(trackers=("trackio",)))


def test_no_tracker_is_imported_before_it_is_named() -> None:
    code = (
        "import sys; import numerate.integrations.trackers as t; t.make_trackers(()); "
        "print([name for name in ('torch', 'wandb', 'tensorboard', 'trackio', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_project_and_entity_come_from_the_settings_then_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    monkeypatch.delenv("WANDB_ENTITY", raising=False)
    assert (TrackerSettings().project_name, TrackerSettings().entity_name) == ("numerate", None)
    monkeypatch.setenv("WANDB_PROJECT", "p")
    monkeypatch.setenv("WANDB_ENTITY", "e")
    assert (TrackerSettings().project_name, TrackerSettings().entity_name) == ("p", "e")
    given = TrackerSettings(project="x", entity="y")
    assert (given.project_name, given.entity_name) == ("x", "y")


def test_a_run_keeps_its_key_in_a_tracker_and_another_folder_has_another() -> None:
    again = {**HEAD, "times": {"created": "2026-01-01", "started": "2026-02-02"}}
    other = {**HEAD, "times": {"created": "2026-03-03"}}
    assert run_id(again) == run_id(HEAD) != run_id(other)
    assert run_name(HEAD, Path("runs/addition/3f2a9c01b7de")) == "addition-3f2a9c"
    assert run_name({**HEAD, "name": "mine"}, Path("runs/a/b")) == "mine"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.slow
def test_tensorboard_gets_curves_pictures_and_tables(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    warnings: list[str] = []
    log_everything(make_trackers("tensorboard", warn=warnings.append), tmp_path)
    assert not warnings
    read = EventAccumulator(str(tmp_path / "tensorboard"))
    read.Reload()
    assert [(event.step, event.value) for event in read.Scalars("validation/exact_match")] == [(500, 0.75)]
    assert [(event.step, event.value) for event in read.Scalars("train/loss")] == [(500, 0.25)]
    assert read.Tags()["images"] == ["heat map"]
    assert "samples/text_summary" in read.Tags()["tensors"]


WANDB = """
import json, sys
from pathlib import Path
from numerate.integrations.trackers import TrackerSettings, make_trackers
sys.path.insert(0, {here!r})
from test_trackers import log_everything
warnings = []
settings = TrackerSettings(project="abacus", group="g", tags=("t",))
log_everything(make_trackers("wandb", settings, warnings.append), Path({folder!r}))
print(json.dumps(warnings))
"""


@pytest.mark.slow
@pytest.mark.parametrize("own", [False, True])
def test_wandb_offline_writes_into_the_folder_of_the_run_or_its_own(own: bool, tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    code = WANDB.format(here=str(Path(__file__).parent), folder=str(tmp_path))
    (place := tmp_path / ("own" * own)).mkdir(exist_ok=True)
    environment = {**os.environ, "WANDB_MODE": "offline", "WANDB_SILENT": "true", "HOME": str(tmp_path)}
    environment["WANDB_DIR"] = str(place) * own
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == []
    [log] = (place / "wandb").glob("offline-run-*/*.wandb")
    content = log.read_bytes()
    for part in (b"train/loss", b"validation/exact_match", b"heat map", b"samples", b"abacus", HEAD["id"].encode()):
        assert part in content, part
    assert list((place / "wandb").glob("offline-run-*/files/media/images/*.png"))
