"""A run that is there: its recipe, its weights, its results."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from math import exp
from pathlib import Path
from typing import Any

from numerate.batch import Model
from numerate.config import from_tree
from numerate.errors import Mistake
from numerate.evaluation.evaluator import Method, evaluate_cell
from numerate.evaluation.exam import SPARE, Exam, questions_of
from numerate.evaluation.grid import Cell, parse_shard
from numerate.evaluation.language import evaluate_portion, read_portion
from numerate.evaluation.passages import Listen, Passage
from numerate.evaluation.samples import Said, answers
from numerate.evaluation.sampling import Sampling
from numerate.executors.executor import Executor
from numerate.laboratory.changes import changed, differences
from numerate.laboratory.estimating import Estimate, estimate
from numerate.laboratory.generating import continued
from numerate.laboratory.maps import MOST, Maps, maps_of
from numerate.laboratory.pieces import refuse_shard, script, spread
from numerate.laboratory.plan import Heard, Inquiry, Plan, Told, Way
from numerate.laboratory.results import Results
from numerate.laboratory.store import Key, Store, lines_of
from numerate.models.held import build
from numerate.models.strict_weights import weights_of
from numerate.records.heads import read_metrics
from numerate.tasks.questions import Questions
from numerate.training import checkpoint
from numerate.training.recipe import Recipe
from numerate.training.refusals import refuse_other_contents, refuse_other_tokenizer
from numerate.training.run import RunFolder, find, runs_directory
from numerate.training.world import device_of


def load(address: str | Path, runs_dir: str | Path | None = None, device: str | None = None) -> "Run":
    """A run by its path, the beginning of its id, its name, or `latest`. Raises `Mistake` where there is none.

    >>> run = numerate.load("latest")
    >>> run.ask("321+654=")
    """
    return Run(find(address, runs_directory(runs_dir)), device=device)


class Run:
    """A trained run. Shows itself in a notebook as its results."""

    def __init__(self, folder: RunFolder, *, device: str | None = None, changes: Sequence[str] = ()) -> None:
        self.folder = folder
        self.device, self.changes = device, tuple(changes)

    @property
    def path(self) -> Path:
        return self.folder.path

    @cached_property
    def trained_recipe(self) -> Recipe:
        """The recipe that it was trained by."""
        found = from_tree(self.folder.head()["recipe"], self.folder.file("recipe.yaml"), declared=Recipe)
        assert isinstance(found, Recipe)
        return found

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe that it is run by: as trained, unless `with_settings` changed it."""
        return changed(self.trained_recipe, self.changes) if self.changes else self.trained_recipe

    @cached_property
    def settings(self) -> dict[str, Any]:
        """In what the model is run otherwise than it was trained: {} unless `with_settings` changed something."""
        return differences(self.trained_recipe, self.recipe)

    def with_settings(self, *settings: str) -> "Run":
        """The same weights, run otherwise: more turns of a loop, another scale of the attention logits.

        >>> run.with_settings("model.trunk.times=8").ask("321+654=")

        Raises `Mistake` for settings that are not the model's, and for those by which it would have other weights.
        """
        if not settings:
            return self
        other = Run(self.folder, device=self.device, changes=(*self.changes, *settings))
        blank = other.blank
        try:
            weights_of(blank, self.blank.state_dict(), "the trained model")
        except Mistake as mistake:
            raise Mistake(
                f"{', '.join(settings)}: this model would have other weights ({mistake}); an evaluation may change "
                "only what leaves their names and shapes alone"
            ) from mistake
        return other

    @cached_property
    def exam(self) -> Exam:
        return Exam(self.recipe.task, self.recipe.tokenizer, self.recipe.layout)

    @cached_property
    def blank(self) -> Model:
        """The model as initialised, on the CPU: what can be asked without any weights (placements, tables)."""
        origin = checkpoint.last_state(self.folder.checkpoints).get("origin")
        return build(self.recipe.model, self.exam.vocabulary, self.recipe.seed, origin)

    def checkpoints(self, name: str = "final") -> list[checkpoint.Checkpoint]:
        """The checkpoints meant by `final`, `best`, `all` or a step."""
        found, warnings = checkpoint.by_name(self.folder.checkpoints, str(name))
        for text in warnings:
            self.warn(text)
        return found

    def refuse_other_contents(self) -> None:
        """Raises `Mistake` where files that it was trained on have changed since it was begun."""
        refuse_other_contents(self.trained_recipe.task, self.folder.head(), self.path)

    def model(self, name: str | checkpoint.Checkpoint = "final") -> Model:
        """The model with the weights of a checkpoint, ready to answer (dropout off).

        Raises `Mistake` where it was trained with another tokenizer file of the same name, or on questions of files
        that have changed since."""
        found = name if isinstance(name, checkpoint.Checkpoint) else self.checkpoints(name)[0]
        if not self.recipe.task.running and self.recipe.tokenizer.fingerprint() is None:
            self.refuse_other_contents()  # its vocabulary is what its questions have
        refuse_other_tokenizer(self.recipe.tokenizer, self.recipe.task, found)
        weights = found.read(only=["weights"])["weights"]
        model = build(self.recipe.model, self.exam.vocabulary, self.recipe.seed, found.state.get("origin"))
        model.load_state_dict(weights_of(model, weights, str(found.path)))
        return model.to(device_of(self.device or self.recipe.device)).eval()

    # Evaluation ---------------------------------------------------------------------------------------------------

    def evaluate(
        self,
        grid: str | None = None,
        *,
        count: int | None = None,
        checkpoint: str = "final",
        method: Method = "one pass",
        shard: str | None = None,
        predictions: bool = False,
        settings: Sequence[str] = (),
        heard: Heard | None = None,
        executor: Executor | None = None,
    ) -> Results:
        """Exact match on a grid of cells, with intervals, at every fixed placement of the model.

        >>> results = run.evaluate("1:12x1:12", count=200, checkpoint="best")
        >>> results.regions()[0]["mean"]
        >>> run.evaluate("equal:1:18", settings=["model.trunk.times=4,8,16"])
        >>> run.evaluate("1:100x1:100", count=10, checkpoint="all", executor=Local(workers=2))

        Cells that `evaluation.jsonl` has already are not computed again. `checkpoint` is final, best, all or a step.
        `shard="2/4"` computes the second of four pieces of equal cost into a file of its own; evaluating without a
        shard afterwards gathers them. `predictions` also writes what was said to every question. `settings` change how
        the model is run, several values of one are a sweep; records then carry in what they differ from training.
        Twice the same call leaves the same bytes. Raises `Mistake` for a grid that the model cannot read, and for
        settings that would need other weights, before any work is done.

        An `executor` spreads what is missing over its workers, in pieces of equal cost, and leaves the same bytes. What
        a worker has recorded is kept, however it ended: the same call goes on by cell. Where a piece fails, the others
        are done first; then an error names it: `Mistake` for one of the user's, else `Fault`.
        """
        refuse_shard(executor, shard)
        inquiry = Inquiry.of(self, grid, count, method, checkpoint, settings)
        cells = inquiry.cells(shard)
        store = self._store(shard)
        with store.lock():
            store.relabel(inquiry.steps())
            read_metrics(self.path, self.folder.head(), self.warn)
            missing = inquiry.missing(cells, store, predictions)
            told = Told(heard, inquiry.count(cells, predictions), missing)
            if executor is None:
                inquiry.score(missing, store, told)
            else:
                spread(inquiry, cells, missing, store, told, executor, said=predictions)
            said: set[Key] = set()
            for way in inquiry.ways if predictions else ():
                said |= way.run._predict(way, cells, store, told)
            if shard is None:
                for run, plan in inquiry.plans:
                    if not plan.settings and not run.exam.running:  # of running text samples are drawn in training
                        run._sample(plan, inquiry.checkpoints[-1])
            store.settle()
            store.clear(said)
        results = [store.known[key] for way in inquiry.ways for key in way.keys(cells)]
        return Results(results, inquiry.checkpoints, self._best())

    def script(
        self,
        executor: Executor,
        grid: str | None = None,
        *,
        count: int | None = None,
        checkpoint: str = "final",
        method: Method = "one pass",
        predictions: bool = False,
        settings: Sequence[str] = (),
    ) -> str:
        """What `evaluate` would submit with this executor, as text. Nothing is begun and nothing is written."""
        inquiry = Inquiry.of(self, grid, count, method, checkpoint, settings)
        store = Store(self.folder, None)
        store.relabel(inquiry.steps())
        cells = inquiry.cells()
        return script(inquiry, cells, inquiry.missing(cells, store, predictions), store, executor, said=predictions)

    def estimate(
        self,
        grid: str | None = None,
        *,
        count: int | None = None,
        checkpoint: str = "final",
        method: Method = "one pass",
        shard: str | None = None,
        predictions: bool = False,
        settings: Sequence[str] = (),
    ) -> Estimate:
        """What `evaluate` would take in this process: cells, questions, operations, and the time by a short sample.

        >>> run.estimate("1:100x1:100", shard="3/20").seconds

        Cells that are recorded already take nothing. Nothing is written. Raises `Mistake` as `evaluate` does.
        """
        inquiry = Inquiry.of(self, grid, count, method, checkpoint, settings)
        store = self._store(shard)
        store.relabel(inquiry.steps())
        return estimate(inquiry, inquiry.cells(shard), store, said=predictions)

    def _store(self, shard: str | None) -> Store:
        """The records of the run, or those of a shard."""
        return Store(self.folder, "{}-of-{}".format(*parse_shard(shard)) if shard is not None else None)

    def _best(self) -> Mapping[str, Any] | None:
        """Which step is the best so far and what it was chosen on, as the last sound checkpoint knows it."""
        known = self.checkpoints("final")[0].state.get("progress", {})
        if known.get("best") is None:
            return None
        by = known.get("best_by", "accuracy")
        return {"step": known["best"], "score": known["best_score"], "chosen_on": known["best_split"], "by": by}

    def score(self, way: Way, model: Model, cell: Cell, placement: int) -> dict[str, Any]:
        """The record of one cell."""
        plan = way.plan
        if self.exam.running:
            count = plan.count_of(self, cell)
            record = evaluate_portion(model, self.exam, dict(cell), count=count, placement=placement)
        else:
            record = evaluate_cell(
                model, self.exam, dict(cell), count=plan.count, seed=plan.seed, placement=placement, method=plan.method
            )
        return record | {
            "seed": self.recipe.seed,
            "checkpoint": way.label,
            "step": way.step,
            "questions": plan.seed,
            "region": plan.region(cell),
            **({"settings": dict(plan.settings)} if plan.settings else {}),
        }

    def say(self, way: Way, model: Model, cell: Cell, placement: int) -> list[dict[str, Any]]:
        """What the model answers to each question of a cell."""
        plan = way.plan
        place: dict[str, Any] = {"checkpoint": way.label, "step": way.step, "placement": placement}
        place["method"] = plan.method
        place |= {"settings": dict(plan.settings)} if plan.settings else {}
        if self.exam.running:
            count = plan.count_of(self, cell)
            read = read_portion(model, self.exam, dict(cell), count=count, placement=placement)
            return [line | place for line in read.lines(dict(cell))]
        questions = questions_of(self.exam.task, dict(cell), count=plan.count, seed=plan.seed)
        found = answers(model, self.exam, questions, placement, method=plan.method)
        return [said.record(dict(cell)) | place for said in found]

    def _predict(self, way: Way, cells: Sequence[Cell], store: Store, told: Told) -> set[Key]:
        """Writes what is said to every question; returns which of it workers had said already."""
        model: Model | None = None
        lines: list[dict[str, Any]] = []
        there: set[Key] = set()
        for key, (cell, placement) in zip(way.keys(cells), way.asked(cells), strict=True):
            said = store.said_to(key)
            if said is None:
                model = model or self.model(way.found)
                said = self.say(way, model, cell, placement)
                told.one()
            else:
                there.add(key)
            lines += said
        store.write("predictions.jsonl", lines, ("checkpoint", "step", "placement", "settings"))
        return there

    def _sample(self, planned: Plan, found: checkpoint.Checkpoint, each: int = 4) -> None:
        """A few answers from inside and from beyond what was trained, for the report."""
        cells = planned.telling(self.recipe)
        model = self.model(found)
        records = []
        for cell in cells:
            questions = questions_of(self.exam.task, dict(cell), count=each, seed=planned.seed)
            said = answers(model, self.exam, questions, method=planned.method)
            records += [one.record(dict(cell)) | {"step": found.step} for one in said]
        drawn, _ = self.folder.parted("samples.jsonl", lambda record: "prompt" in record)  # in training
        self.folder.write("samples.jsonl", drawn + lines_of(records).encode())

    # Asking and showing -------------------------------------------------------------------------------------------

    def ask(self, question: str, checkpoint: str = "final", *, settings: Sequence[str] = ()) -> Said:
        """What the model answers to a question as a person writes it, how sure it is, and the truth.

        >>> run.ask("321+654=").said
        '975'

        A task of texts takes any text, of which nobody knows the truth: `gold` and `right` are None. Answers may then
        be as long as those of its longest rows, and somewhat longer. A run on running text goes on with the text, the
        likeliest token each time; `generate` has more ways. `settings` change how the model is run, as in `evaluate`,
        one value each.
        """
        if settings:
            return self.with_settings(*settings).ask(question, checkpoint)
        if self.exam.running:
            return self._goes_on(question, checkpoint)
        self.refuse_other_contents()
        questions = self.exam.task.read(question)
        batch = self.exam.batch(questions)
        for warning in self.blank.check(batch.tokens, self.exam.longest(self.recipe.task)):
            self.warn(warning)
        if questions.texts is None:
            return answers(self.model(checkpoint), self.exam, questions)[0]
        most = self.exam.batch(self._longest()).asked_targets.shape[1] + SPARE
        spare = max(0, most - batch.asked_targets.shape[1])
        return answers(self.model(checkpoint), self.exam, questions, spare=spare, known=False)[0]

    def generate(
        self,
        prompts: str | Sequence[str] = (),
        *,
        most: int | None = None,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        greedy: bool = False,
        repetition_penalty: float = 1.0,
        seed: int = 0,
        count: int = 1,
        checkpoint: str = "final",
        stop: str | Sequence[str] = (),
        window: int | None = None,
        told: Listen | None = None,
        ended: Callable[[], bool] | None = None,
    ) -> list[Passage]:
        """Goes on with texts: `count` passages after each prompt; without one, from the beginning of a document.

        >>> [passage] = run.generate("Once upon a time", most=50, temperature=0.8)
        >>> print(passage)
        >>> run.generate(["12+34=", "5+6="])[0].text
        '46'

        `most` is how many tokens may be said: 200 or what the context has room for, if nothing is said. `stop` are
        texts that end a passage. With a `window` only so many of the last tokens are read. `told` hears the text of
        each passage as it comes, and `ended` may end all. Prompts, samples and seed alone decide what is said, not what
        else is asked (but for the last bits of sums, which differ with the size of a batch).

        Raises `Mistake` for a run that continues no texts, and for what its tables have no places for.
        """
        sampling = Sampling(temperature, top_k, top_p, min_p, greedy, repetition_penalty, seed)
        return continued(
            self,
            [prompts] if isinstance(prompts, str) else prompts,
            sampling,
            most=most,
            count=count,
            checkpoint=checkpoint,
            stop=[stop] if isinstance(stop, str) else stop,
            window=window,
            told=told,
            ended=ended,
        )

    def _goes_on(self, text: str, checkpoint: str) -> Said:
        """What follows a text, the likeliest token each time."""
        (found,) = self.generate(text, greedy=True, checkpoint=checkpoint)
        sure = exp(max(found.log_probability, -700.0))
        return Said(text, None, found.text, None, str(found), sure, None, found.stopped)

    def _longest(self) -> Questions:
        """Questions of the task, the longest there are where that is known."""
        task = self.recipe.task
        known = task.longest()
        return task.examples("development", 0, 0, 64) if known is None else known

    def maps(
        self,
        prompt: str = "",
        checkpoint: str = "final",
        *,
        layers: Sequence[int] | None = None,
        answer: bool = True,
        most: int = MOST,
        placement: int = 0,
        settings: Sequence[str] = (),
    ) -> Maps:
        """Who attends to whom when the model reads a prompt and says its own answer: every head of every layer.

        >>> maps = run.maps("321+654=")
        >>> maps.tokens[:4], maps.layers[0].of("attention").shape
        (('1', '2', '3', '+'), (4, 12, 12))
        >>> maps.layers[0].heads[2].weights[7]

        Without a prompt a question of the test split is read, or the beginning of the text held out. `layers` are those
        wanted, all without; with `answer=False` nothing is said to the prompt. Raises `Mistake` for a model that does
        not attend, and for more than `most` tokens. Nothing is written; `numerate maps` does.
        """
        if settings:
            return self.with_settings(*settings).maps(
                prompt, checkpoint, layers=layers, answer=answer, most=most, placement=placement
            )
        return maps_of(
            self, prompt, checkpoint=checkpoint, layers=layers, answer=answer, most=most, placement=placement
        )

    def report(self) -> Path:
        """Writes `report.html`, one self-contained page, and returns its path."""
        from numerate.reports.page import write_page

        return write_page(self.path)

    def warn(self, text: str) -> None:
        """Says what a caller should know of, as a warning of Python's."""
        import warnings

        warnings.warn(text, stacklevel=3)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    def _repr_html_(self) -> str:
        from numerate.reports.page import fragment

        return fragment(self.path)
