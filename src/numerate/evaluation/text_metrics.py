"""Metrics of text answers: corpus BLEU, ROUGE, perplexity and token accuracy.

Each is one score from sums over all questions, so that it does not depend on the batch size, and merging cells gives
the result of all their questions together. BLEU is computed by sacrebleu (Post, 2018,
https://aclanthology.org/W18-6319), with its defaults, and ROUGE by rouge_score; the extra `text` installs both.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from math import exp
from typing import Any

from numerate.errors import UserError
from numerate.evaluation.sums import Metric, add_sums, cell_means, check_pairs, ratio

ROUGE_METRICS = ("rouge1", "rouge2", "rougeL")


def require_text_packages() -> None:
    """Raises `UserError` if the packages that score texts are not installed; imports nothing."""
    missing = [name for name in ("sacrebleu", "rouge_score") if find_spec(name) is None]
    if missing:
        raise UserError(f'answers that are texts need {" and ".join(missing)}: pip install "numerate[text]"')


@dataclass(frozen=True)
class TextScores:
    """Scores of text answers, as sums that can be merged.

    Of BLEU: the numbers of n-grams (n = 1 to 4) of the predictions (`totals`), those that match the reference
    (`matches`), and the words of both. `rouge_sums` are the sums of F1 over `count` answers. `nll` is the
    teacher-forced sum of -ln(probability), in nats, over all `num_tokens` tokens of the references, including end
    tokens; `num_correct_tokens` of them have the highest probability. `num_ended` answers ended with an end token.

    >>> TextScores.from_texts(["the cat sat"], ["the cat lay"]).metrics()["rouge2"]
    0.5
    """

    count: int = 0
    matches: tuple[int, ...] = (0,) * 4
    totals: tuple[int, ...] = (0,) * 4
    prediction_words: int = 0
    reference_words: int = 0
    rouge_sums: tuple[float, ...] = (0.0,) * 3
    nll: float = 0.0
    num_tokens: int = 0
    num_correct_tokens: int = 0
    num_ended: int = 0

    @classmethod
    def from_texts(
        cls, predictions: Sequence[str], references: Sequence[str], *, use_stemmer: bool = False, **sums: Any
    ) -> "TextScores":
        """From predictions and references, and the sums of likelihoods (`nll`, `num_tokens`, ...). `use_stemmer`:
        whether ROUGE compares the stems of words (Porter's). Raises `UserError` if their counts differ, and without
        the packages."""
        check_pairs(predictions, references)
        if not predictions:
            return cls(**sums)
        require_text_packages()
        from rouge_score.rouge_scorer import RougeScorer
        from sacrebleu.metrics.bleu import BLEU

        bleu = BLEU(force=True).corpus_score(predictions, [references])
        scorer = RougeScorer(list(ROUGE_METRICS), use_stemmer=use_stemmer)
        pairs = zip(references, predictions, strict=True)
        rouge = [[score.fmeasure for score in scorer.score(*pair).values()] for pair in pairs]
        return cls(
            count=len(predictions),
            matches=tuple(bleu.counts),
            totals=tuple(bleu.totals),
            prediction_words=bleu.sys_len,
            reference_words=bleu.ref_len,
            rouge_sums=tuple(sum(values, 0.0) for values in zip(*rouge, strict=True)),
            **sums,
        )

    @classmethod
    def merge(cls, scores_of_cells: Iterable["TextScores"]) -> "TextScores":
        """Merges cells into one."""
        return sum(scores_of_cells, cls())

    def __add__(self, other: "TextScores") -> "TextScores":
        return add_sums(self, other)

    def metrics(self) -> dict[str, float | None]:
        """Every metric of `TEXT_METRICS` by name; None if undefined."""
        return {name: metric.compute(self) for name, metric in TEXT_METRICS.items()}

    def to_record(self) -> dict[str, Any]:
        """The entry `texts` in the record of a cell: the sums and the metrics."""
        record = {key: getattr(self, name) for key, name in _RECORD_FIELDS.items()}
        record |= {"matches": list(self.matches), "totals": list(self.totals), "nll": round(self.nll, 6)}
        record["rouge"] = dict(zip(ROUGE_METRICS, (round(total, 9) for total in self.rouge_sums), strict=True))
        metrics = self.metrics().items()
        return record | {"metrics": {name: None if value is None else round(value, 6) for name, value in metrics}}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "TextScores | None":
        """From the record of a cell; None for one without texts. Raises `KeyError`, `TypeError` or `ValueError` for an
        invalid record."""
        data = record.get("texts")
        if data is None:
            return None
        sums = {name: data[key] for key, name in _RECORD_FIELDS.items()}
        sums |= {"matches": tuple(data["matches"]), "totals": tuple(data["totals"])}
        return cls(**sums | {"rouge_sums": tuple(float(data["rouge"][name]) for name in ROUGE_METRICS)})


_RECORD_FIELDS = {
    **{name: name for name in ("count", "matches", "totals", "prediction_words", "reference_words")},
    **{"rouge": "rouge_sums", "nll": "nll"},
    **{name: f"num_{name}" for name in ("tokens", "correct_tokens", "ended")},
}
"""The entries of a record, with the fields of `TextScores`."""


def _bleu(scores: TextScores) -> float | None:
    """From 0 to 100. Orders without a match are smoothed; predictions without 4-grams, such as single numbers, score
    0."""
    if not scores.count or not any(scores.matches):
        return 0.0 if scores.count else None
    require_text_packages()
    from sacrebleu.metrics.bleu import BLEU

    counts = list(scores.matches), list(scores.totals), scores.prediction_words, scores.reference_words
    return float(BLEU.compute_bleu(*counts, smooth_method="exp").score)


def _rouge(index: int) -> Any:
    return lambda scores: ratio(scores.rouge_sums[index], scores.count)


TEXT_METRICS: dict[str, Metric] = {
    "bleu": Metric("BLEU of the corpus", _bleu),
    "rouge1": Metric("ROUGE-1", _rouge(0)),
    "rouge2": Metric("ROUGE-2", _rouge(1)),
    "rougeL": Metric("ROUGE-L", _rouge(2)),
    "perplexity": Metric(
        "perplexity per token", lambda scores: perplexity(scores.nll, scores.num_tokens), lower_is_better=True
    ),
    "token_accuracy": Metric(
        "correct tokens after the correct prefix",
        lambda scores: ratio(scores.num_correct_tokens, scores.num_tokens),
        is_proportion=True,
    ),
    "ended": Metric("answers with an end token", lambda s: ratio(s.num_ended, s.count), is_proportion=True),
}
"""The metrics of texts; docs/metrics.md defines them."""


def pooled_metrics(cells: Sequence[TextScores]) -> dict[str, float | None]:
    """Every metric twice: over all questions of several cells, `bleu`, and as the mean over the cells that have it,
    each weighing the same, `bleu (mean of modules)`."""
    return TextScores.merge(cells).metrics() | cell_means([scores.metrics() for scores in cells], TEXT_METRICS)


def perplexity(nll: float, num_tokens: int) -> float | None:
    """exp(nll / tokens); None without tokens or on overflow.

    >>> round(perplexity(4.60517, 2), 4)
    10.0
    """
    return exp(nll / num_tokens) if num_tokens and nll / num_tokens <= 709.0 else None
