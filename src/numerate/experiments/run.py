"""A stored run: its recipe, its weights, its results."""

from collections.abc import Callable, Mapping, Sequence
from math import exp
from pathlib import Path
from typing import Any

from numerate.batch import Model
from numerate.evaluation.evaluation_data import SPARE, questions_of
from numerate.evaluation.evaluator import Method
from numerate.evaluation.grid import Cell, parse_shard
from numerate.evaluation.passages import Listen, Passage
from numerate.evaluation.samples import AnswerSample, answers
from numerate.evaluation.sampling import Sampling
from numerate.executors.executor import Executor
from numerate.experiments.estimating import EvaluationEstimate, estimate
from numerate.experiments.generating import continued
from numerate.experiments.maps import MOST, AttentionMaps, maps_of
from numerate.experiments.plan import (
    EvaluatedModel,
    EvaluationPlan,
    EvaluationRequest,
    ProgressCallback,
    ProgressMessage,
)
from numerate.experiments.results import Results
from numerate.experiments.shards import refuse_shard, script, spread
from numerate.experiments.store import Key, Store, lines_of
from numerate.experiments.stored_run import StoredRun
from numerate.records.heads import read_metrics
from numerate.tasks.questions import Questions
from numerate.training import checkpoint
from numerate.training.run_folder import find, runs_directory


def load(address: str | Path, runs_dir: str | Path | None = None, device: str | None = None) -> "Run":
    """A run by its path, the beginning of its id, its name, or `latest`. Raises `UserError` where there is none.

    >>> run = numerate.load("latest")
    >>> run.ask("321+654=")
    """
    return Run(find(address, runs_directory(runs_dir)), device=device)


class Run(StoredRun):
    """A trained run; displays as its results in a notebook."""

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
        on_progress: ProgressCallback | None = None,
        executor: Executor | None = None,
    ) -> Results:
        """Exact match on a grid of cells, with intervals, at every fixed placement of the model.

        >>> results = run.evaluate("1:12x1:12", count=200, checkpoint="best")
        >>> results.regions()[0]["mean"]
        >>> run.evaluate("equal:1:18", settings=["model.backbone.num_loops=4,8,16"])
        >>> run.evaluate("1:100x1:100", count=10, checkpoint="all", executor=Local(workers=2))

        Cells that `evaluation.jsonl` has already are not computed again. `checkpoint` is final, best, all or a step.
        `shard="2/4"` computes the second of four pieces of equal cost into a file of its own; evaluating without a
        shard afterwards gathers them. `predictions` also writes the answer to every question. `settings` change how
        the model is run, several values of one are a sweep; records then carry in what they differ from training.
        Twice the same call leaves the same bytes. Raises `UserError` for a grid that the model cannot read, and for
        settings that would need other weights, before any work is done.

        An `executor` spreads what is missing over its workers, in pieces of equal cost, and leaves the same bytes. What
        a worker has recorded is kept, however it ended: the same call resumes by cell. Where a piece fails, the others
        are done first; then an error names it: `UserError` for one of the user's, else `OperationalError`.
        """
        refuse_shard(executor, shard)
        inquiry = EvaluationRequest.of(self, grid, count, method, checkpoint, settings)
        cells = inquiry.cells(shard)
        store = self._store(shard)
        with store.lock():
            store.relabel(inquiry.steps())
            read_metrics(self.path, self.folder.head(), self.warn)
            missing = inquiry.missing(cells, store, predictions)
            progress = ProgressMessage(on_progress, inquiry.count(cells, predictions), missing)
            if executor is None:
                inquiry.score(missing, store, progress)
            else:
                spread(inquiry, cells, missing, store, progress, executor, predictions=predictions)
            gathered: set[Key] = set()
            for way in inquiry.ways if predictions else ():
                gathered |= _write_predictions(way, cells, store, progress)
            if shard is None:
                for run, plan in inquiry.plans:
                    if not plan.settings and not run.exam.running:  # of running text samples are drawn in training
                        _write_samples(run, plan, inquiry.checkpoints[-1])
            store.settle()
            store.clear(gathered)
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
        """The script that `evaluate` would submit with this executor. Nothing is started or written."""
        inquiry = EvaluationRequest.of(self, grid, count, method, checkpoint, settings)
        store = Store(self.folder, None)
        store.relabel(inquiry.steps())
        cells = inquiry.cells()
        return script(
            inquiry, cells, inquiry.missing(cells, store, predictions), store, executor, predictions=predictions
        )

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
    ) -> EvaluationEstimate:
        """Estimated cost of `evaluate` in this process: cells, questions, operations, and time from a short sample.

        >>> run.estimate("1:100x1:100", shard="3/20").seconds

        Cells that are recorded already take nothing. Nothing is written. Raises `UserError` as `evaluate` does.
        """
        inquiry = EvaluationRequest.of(self, grid, count, method, checkpoint, settings)
        store = self._store(shard)
        store.relabel(inquiry.steps())
        return estimate(inquiry, inquiry.cells(shard), store, predictions=predictions)

    def _store(self, shard: str | None) -> Store:
        """The records of the run, or those of a shard."""
        return Store(self.folder, "{}-of-{}".format(*parse_shard(shard)) if shard is not None else None)

    def _best(self) -> Mapping[str, Any] | None:
        """The best step so far and what it was chosen on, from the last valid checkpoint."""
        known = self.checkpoints("final")[0].state.get("progress", {})
        if known.get("best") is None:
            return None
        by = known.get("best_by", "accuracy")
        return {"step": known["best"], "score": known["best_score"], "chosen_on": known["best_split"], "by": by}

    # Questions, generation, maps ----------------------------------------------------------------------------------

    def ask(self, question: str, checkpoint: str = "final", *, settings: Sequence[str] = ()) -> AnswerSample:
        """The model's answer to a question as a person writes it, its probability, and the correct answer.

        >>> run.ask("321+654=").said
        '975'

        A task of texts takes any text, whose correct answer is unknown: `gold` and `right` are None. Answers may then
        be somewhat longer than those of its longest rows. A run on running text continues the text by greedy decoding;
        `generate` has more options. `settings` change how the model is run, as in `evaluate`, one value each.
        """
        if settings:
            return self.with_settings(*settings).ask(question, checkpoint)
        if self.exam.running:
            return self._continue_text(question, checkpoint)
        self.refuse_other_contents()
        questions = self.exam.task.read(question)
        batch = self.exam.batch(questions)
        for warning in self.blank.check(batch.tokens, self.exam.longest(self.recipe.task)):
            self.warn(warning)
        if questions.texts is None:
            return answers(self.model(checkpoint), self.exam, questions)[0]
        most = self.exam.batch(self._longest()).target_ids.shape[1] + SPARE
        spare = max(0, most - batch.target_ids.shape[1])
        return answers(self.model(checkpoint), self.exam, questions, spare=spare, known=False)[0]

    def generate(
        self,
        prompts: str | Sequence[str] = (),
        *,
        max_new_tokens: int | None = None,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        do_sample: bool = True,
        repetition_penalty: float = 1.0,
        seed: int = 0,
        count: int = 1,
        checkpoint: str = "final",
        stop: str | Sequence[str] = (),
        context_length: int | None = None,
        told: Listen | None = None,
        ended: Callable[[], bool] | None = None,
    ) -> list[Passage]:
        """Continues texts: `count` passages after each prompt; without one, from the start of a document.

        >>> [passage] = run.generate("Once upon a time", max_new_tokens=50, temperature=0.8)
        >>> print(passage)
        >>> run.generate(["12+34=", "5+6="])[0].text
        '46'

        `max_new_tokens` defaults to 200, or what the context has room for. `stop` are strings that end a passage. With
        `context_length` only that many of the last tokens are read; `do_sample=False` is greedy decoding. `told` is
        called with the text of each passage as it is generated; when `ended` returns True, generation stops. Passages
        depend on prompts, samples and seed alone, not on what else is in the batch (except for rounding).

        Raises `UserError` for a run that continues no texts, and for more tokens than its position tables have.
        """
        sampling = Sampling(temperature, top_k, top_p, min_p, do_sample, repetition_penalty, seed)
        return continued(
            self,
            [prompts] if isinstance(prompts, str) else prompts,
            sampling,
            max_new_tokens=max_new_tokens,
            count=count,
            checkpoint=checkpoint,
            stop=[stop] if isinstance(stop, str) else stop,
            context_length=context_length,
            on_text=told,
            ended=ended,
        )

    def _continue_text(self, text: str, checkpoint: str) -> AnswerSample:
        """The continuation of a text by greedy decoding."""
        (found,) = self.generate(text, do_sample=False, checkpoint=checkpoint)
        sure = exp(max(found.log_probability, -700.0))
        return AnswerSample(text, None, found.text, None, str(found), sure, None, found.stopped)

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
        max_tokens: int = MOST,
        position_offset: int = 0,
        settings: Sequence[str] = (),
    ) -> AttentionMaps:
        """Attention maps of a prompt and the generated answer: every head of every layer.

        >>> maps = run.maps("321+654=")
        >>> maps.tokens[:4], maps.layers[0].of("attention").shape
        (('1', '2', '3', '+'), (4, 12, 12))
        >>> maps.layers[0].heads[2].weights[7]

        Without a prompt a question of the test split is read, or the beginning of the text held out. `layers` are those
        wanted, all without; with `answer=False` no answer is generated. Raises `UserError` for a model that does
        not attend, and for more than `max_tokens` tokens. Nothing is written; `numerate maps` does.
        """
        if settings:
            return self.with_settings(*settings).maps(
                prompt, checkpoint, layers=layers, answer=answer, max_tokens=max_tokens, position_offset=position_offset
            )
        return maps_of(
            self,
            prompt,
            checkpoint=checkpoint,
            layers=layers,
            answer=answer,
            max_tokens=max_tokens,
            position_offset=position_offset,
        )

    def report(self) -> Path:
        """Writes `report.html`, one self-contained page, and returns its path."""
        from numerate.reports.page import write_page

        return write_page(self.path)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    def _repr_html_(self) -> str:
        from numerate.reports.page import fragment

        return fragment(self.path)


def _write_predictions(way: EvaluatedModel, cells: Sequence[Cell], store: Store, progress: ProgressMessage) -> set[Key]:
    """Writes the answer to every question; returns the keys that workers had recorded already."""
    model: Model | None = None
    lines: list[dict[str, Any]] = []
    there: set[Key] = set()
    for key, (cell, position_offset) in zip(way.keys(cells), way.placements(cells), strict=True):
        predictions = store.predictions_of(key)
        if predictions is None:
            model = model or way.run.model(way.found)
            predictions = way.say(model, cell, position_offset)
            progress.one()
        else:
            there.add(key)
        lines += predictions
    store.write("predictions.jsonl", lines, ("checkpoint", "step", "position_offset", "settings"))
    return there


def _write_samples(run: StoredRun, planned: EvaluationPlan, found: checkpoint.Checkpoint, each: int = 4) -> None:
    """A few answers in and out of distribution, for the report."""
    cells = planned.telling(run.recipe)
    model = run.model(found)
    records = []
    for cell in cells:
        questions = questions_of(run.exam.task, dict(cell), count=each, seed=planned.seed)
        predictions = answers(model, run.exam, questions, method=planned.method)
        records += [one.record(dict(cell)) | {"step": found.step} for one in predictions]
    drawn, _ = run.folder.parted("samples.jsonl", lambda record: "prompt" in record)  # in training
    run.folder.write("samples.jsonl", drawn + lines_of(records).encode())
