"""Experiment trackers: wandb, tensorboard, trackio.

The files of a run are complete without them. Each tracker works in its own thread, so that a slow, unreachable or
failing server costs a run only one warning. The library of a tracker is imported only if it is used.
"""

import importlib.util
import io
import os
import queue
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numerate.errors import UserError, check_choice

if TYPE_CHECKING:
    from numerate.training.recipe import Recipe

Record = Mapping[str, Any]

_FINISH_TIMEOUT = 30.0  # seconds that the end of a run waits for a tracker
_MAX_QUEUE_SIZE = 10_000  # records that may wait for a tracker before it counts as stuck


@dataclass(frozen=True)
class TrackerSettings:
    """The destination of a run in a tracker. `project` falls back to WANDB_PROJECT, then `numerate`; `entity` to
    WANDB_ENTITY."""

    project: str | None = None
    entity: str | None = None
    group: str | None = None
    tags: tuple[str, ...] = ()

    @property
    def project_name(self) -> str:
        return self.project or os.environ.get("WANDB_PROJECT") or "numerate"

    @property
    def entity_name(self) -> str | None:
        return self.entity or os.environ.get("WANDB_ENTITY") or None


class Tracker(ABC):
    """The interface of experiment trackers. Any exception is allowed: it ends this tracker, not the run.

    `log_figure` gets a picture as PNG, `log_table` rows with the same columns as text or numbers.
    """

    package: str
    """The package that must be installed, and its module."""

    def __init__(self, settings: TrackerSettings) -> None:
        self.settings = settings

    @abstractmethod
    def start(self, run_metadata: Record, folder: Path, step: int) -> None:
        """Starts a run, or resumes it at `step`."""

    @abstractmethod
    def log_metrics(self, step: int, values: Mapping[str, float]) -> None: ...

    @abstractmethod
    def log_figure(self, step: int, name: str, png: bytes) -> None: ...

    @abstractmethod
    def log_table(self, step: int, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None: ...

    @abstractmethod
    def finish(self) -> None: ...


class Wandb(Tracker):
    """Weights & Biases; `WANDB_MODE=offline` writes into the run's folder, or WANDB_DIR. https://docs.wandb.ai"""

    package = "wandb"

    @property
    def library(self) -> Any:
        import wandb  # by its thread; little of it is typed

        return wandb

    def start(self, run_metadata: Record, folder: Path, step: int) -> None:
        online = self.library.setup().settings.mode not in ("offline", "dryrun", "disabled")
        if online and not self.library.login(prompt=False):  # `init` would prompt for a key and block
            raise PermissionError("no key is known; `wandb login` sets one, WANDB_MODE=offline needs none")
        self._run = self.library.init(
            project=self.settings.project_name,
            entity=self.settings.entity_name,
            group=self.settings.group,
            tags=list(self.settings.tags),
            name=run_name(run_metadata, folder),
            id=run_id(run_metadata),
            resume="allow" if step else None,
            dir=os.environ.get("WANDB_DIR") or str(folder),
            config=dict(run_metadata),
            settings=self.library.Settings(init_timeout=_FINISH_TIMEOUT / 2, console="off"),
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log_metrics(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"step": step, **values})

    def log_figure(self, step: int, name: str, png: bytes) -> None:
        self._run.log({"step": step, name: self.library.Image(_to_image(png))})

    def log_table(self, step: int, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        table = self.library.Table(columns=list(columns), data=[list(row) for row in rows], allow_mixed_types=True)
        self._run.log({"step": step, name: table})

    def finish(self) -> None:
        self._run.finish()


class Tensorboard(Tracker):
    """TensorBoard, into `tensorboard/` of the run's folder. https://www.tensorflow.org/tensorboard"""

    package = "tensorboard"

    def start(self, run_metadata: Record, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1 if step else None)
        text = "\n".join(f"    {name}: {value}" for name, value in flatten(run_metadata).items())
        self._writer.add_text("run", text, step)

    def log_metrics(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def log_figure(self, step: int, name: str, png: bytes) -> None:
        import numpy

        self._writer.add_image(name, numpy.asarray(_to_image(png).convert("RGB")), step, dataformats="HWC")

    def log_table(self, step: int, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        lines = [columns, ["---"] * len(columns), *rows]
        self._writer.add_text(name, "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines), step)

    def finish(self) -> None:
        self._writer.close()


class Trackio(Tracker):
    """Trackio, which keeps its data on this machine. https://huggingface.co/docs/trackio"""

    package = "trackio"

    @property
    def library(self) -> Any:
        import trackio  # by its thread; little of it is typed

        return trackio

    def start(self, run_metadata: Record, folder: Path, step: int) -> None:
        self.library.init(
            project=self.settings.project_name,
            name=f"{run_name(run_metadata, folder)}-{run_id(run_metadata)[-4:]}",
            group=self.settings.group,
            config={**flatten(run_metadata), "tags": ", ".join(self.settings.tags)},
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def log_metrics(self, step: int, values: Mapping[str, float]) -> None:
        self.library.log(dict(values), step=step)

    def log_figure(self, step: int, name: str, png: bytes) -> None:
        self.library.log({name: self.library.Image(_to_image(png))}, step=step)

    def log_table(self, step: int, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        table = self.library.Table(columns=list(columns), data=[[str(value) for value in row] for row in rows])
        self.library.log({name: table}, step=step)

    def finish(self) -> None:
        self.library.finish()


TRACKERS: dict[str, type[Tracker]] = {"wandb": Wandb, "tensorboard": Tensorboard, "trackio": Trackio}


class Trackers:
    """The trackers of a run, none by default. No call raises, and only `finish` waits, briefly.

    For example:

        trackers = make_trackers("tensorboard", TrackerSettings(project="abacus"))
        trackers.start(folder.metadata(), folder.path)
        trackers.log_record({"step": 500, "loss": 0.0123})
        trackers.finish()
    """

    def __init__(self, trackers: Mapping[str, Tracker], warn: Callable[[str], None]) -> None:
        self._workers = [_Worker(name, tracker, warn) for name, tracker in trackers.items()]

    def start(self, run_metadata: Record, folder: Path, step: int = 0) -> None:
        """Starts with the metadata of a run and its folder; `step` is where a resumed run continues."""
        self._send("start", dict(run_metadata), folder, step)

    def log_record(self, record: Record) -> None:
        """Logs a record of `metrics.jsonl`: its numbers, as `train/loss` or `validation/exact_match`."""
        if self._workers:
            self._send("log_metrics", int(record.get("step", 0)), scalar_metrics(record))

    def log_figure(self, name: str, figure: Any, step: int = 0) -> None:
        """Logs a picture: a matplotlib figure, or the path of a PNG."""
        for worker in self._workers:
            worker.send("log_figure", lambda: (step, name, _to_png(figure)))

    def log_table(self, name: str, samples: Sequence[Record], step: int = 0) -> None:
        """Logs samples, such as records of `samples.jsonl`."""
        columns = list(dict.fromkeys(key for sample in samples for key in sample))
        rows = [[_to_cell(sample.get(column)) for column in columns] for sample in samples]
        self._send("log_table", step, name, columns, rows)

    def finish(self, timeout: float = _FINISH_TIMEOUT) -> None:
        """Ends every tracker, and waits `timeout` seconds at most for pending calls."""
        for worker in self._workers:
            worker.send("finish", lambda: ())
        for worker in self._workers:
            worker.join(timeout)
        self._workers = []

    def _send(self, method: str, *args: Any) -> None:
        for worker in self._workers:
            worker.send(method, lambda: args)


class _Worker:
    """One tracker and the thread it works in. At the first error it is dropped, with one warning."""

    def __init__(self, name: str, tracker: Tracker, warn: Callable[[str], None]) -> None:
        self._name, self._tracker, self._warn = name, tracker, warn
        self._stopped = threading.Event()
        self._calls: queue.Queue[tuple[str, tuple[Any, ...]]] = queue.Queue(_MAX_QUEUE_SIZE)
        self._thread: threading.Thread | None = None

    def send(self, method: str, make_args: Callable[[], tuple[Any, ...]]) -> None:
        if self._stopped.is_set():
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"tracker {self._name}", daemon=True)
            self._thread.start()
        try:
            self._calls.put_nowait((method, make_args()))
        except queue.Full:
            self._stop("it cannot keep up")
        except Exception as error:
            self._stop(_describe_error(error))

    def join(self, timeout: float) -> None:
        if self._thread is not None and not self._stopped.is_set():
            self._thread.join(timeout)
            if self._thread.is_alive():
                self._stop(f"it did not finish within {timeout:g} s")

    def _run(self) -> None:
        while not self._stopped.is_set():
            method, args = self._calls.get()
            try:
                getattr(self._tracker, method)(*args)
            except (Exception, SystemExit) as error:
                self._stop(_describe_error(error))
            if method == "finish":
                return

    def _stop(self, reason: str) -> None:
        if not self._stopped.is_set():
            self._stopped.set()
            self._warn(f"warning: tracker {self._name}: {reason}. The run continues; its files are complete.")


def make_trackers(
    names: str | Sequence[str], settings: TrackerSettings | None = None, warn: Callable[[str], None] | None = None
) -> Trackers:
    """The trackers of these names: `make_trackers("wandb,tensorboard")`, `make_trackers(())` for none.

    `warn` gets the one line about a tracker that is dropped (default: stderr). Raises `UserError` for a name
    that is unknown or whose package is not installed, since that can still be fixed at the start of a run.
    """
    requested = [name.strip() for name in (names.split(",") if isinstance(names, str) else names)]
    trackers = {}
    for name in dict.fromkeys(name for name in requested if name):
        check_choice("trackers", name.lower(), TRACKERS)
        tracker_class = TRACKERS[name.lower()]
        spec = importlib.util.find_spec(tracker_class.package)
        if spec is None or spec.origin is None:  # a folder ./wandb is no package
            raise UserError(
                f"trackers: {tracker_class.package} is not installed; `pip install {tracker_class.package}` does that."
            )
        trackers[name.lower()] = tracker_class(settings or TrackerSettings())
    return Trackers(trackers, warn or _to_stderr)


def recipe_trackers(recipe: "Recipe", warn: Callable[[str], None] | None = None) -> Trackers:
    """The trackers of a recipe, as `make_trackers`."""
    tracking = recipe.tracking
    settings = TrackerSettings(tracking.project, tracking.entity, recipe.group, tracking.tags)
    return make_trackers(recipe.trackers, settings, warn)


def scalar_metrics(record: Record) -> dict[str, float]:
    """The numbers of a record under the names of curves.

    `{"step": 500, "split": "validation", "exact_match": 0.98}` gives `{"validation/exact_match": 0.98}`; a record
    without a split is of training, `train/loss`.
    """
    split = record.get("split", "train")
    return {
        f"{split}/{name}": float(value)
        for name, value in record.items()
        if name != "step" and isinstance(value, int | float) and not isinstance(value, bool)
    }


def flatten(tree: Any, path: str = "") -> dict[str, Any]:
    """A tree of settings as one level: `flatten({"model": {"hidden_size": 64}})` is `{"model.hidden_size": 64}`."""
    if isinstance(tree, Mapping):
        items = tree.items()
    elif isinstance(tree, list | tuple) and any(isinstance(item, Mapping | list | tuple) for item in tree):
        items = dict(enumerate(tree)).items()
    else:
        return {path: tree}
    flattened: dict[str, Any] = {}
    for key, value in items:
        flattened |= flatten(value, f"{path}.{key}" if path else str(key))
    return flattened


def run_name(run_metadata: Record, folder: Path) -> str:
    """The display name: the run's `name=`, otherwise its recipe and the beginning of its id."""
    return str(run_metadata.get("name") or f"{folder.absolute().parent.name}-{folder.absolute().name[:6]}")


def run_id(run_metadata: Record) -> str:
    """An id that is the same for all sessions of a run folder, and differs between folders of the same recipe."""
    created = run_metadata.get("times", {}).get("created") or run_metadata.get("times", {}).get("started")
    return f"{run_metadata.get('id')}-{sha256(str(created).encode()).hexdigest()[:4]}"


def _to_png(figure: Any) -> bytes:
    if isinstance(figure, str | os.PathLike):
        return Path(figure).read_bytes()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()


def _to_image(png: bytes) -> Any:
    from PIL import Image

    return Image.open(io.BytesIO(png))


def _to_cell(value: Any) -> Any:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={item}" for key, item in value.items())
    return value if value is None or isinstance(value, bool | int | float) else str(value)


def _describe_error(error: BaseException) -> str:
    text = " ".join(str(error).split())[:200].rstrip(". ")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _to_stderr(text: str) -> None:
    try:
        print(text, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        return
