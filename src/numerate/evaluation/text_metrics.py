"""Metrics of text answers: corpus BLEU, ROUGE, perplexity and token accuracy.

Each is one score from sums over all questions, so that it does not depend on the batch size, and merging cells gives
the result of all their questions together. BLEU is computed by sacrebleu (Post, 2018,
https://aclanthology.org/W18-6319), with its defaults, and ROUGE by rouge_score; the extra `text` installs both.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import reduce
from importlib.util import find_spec
from math import exp, log
from typing import Any

from numerate.errors import UserError
from numerate.evaluation.sums import Metric, add_sums, check_pairs, ratio, sums_to_record

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
    (`matches`), and the words of both. `rouge` has the sums of F1 over `count` answers. `nll` is the teacher-forced
    sum of -ln(probability), in nats, over all `num_tokens` tokens of the references, including end tokens;
    `num_correct_tokens` of them have the highest probability. `num_ended` answers ended with an end token.

    >>> TextScores.from_texts(["the cat sat"], ["the cat lay"]).metrics()["rouge2"]
    0.5
    """

    count: int = 0
    matches: tuple[int, ...] = (0,) * 4
    totals: tuple[int, ...] = (0,) * 4
    prediction_words: int = 0
    reference_words: int = 0
    rouge: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(ROUGE_METRICS, 0.0))
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
        rouge = [scorer.score(*pair) for pair in zip(references, predictions, strict=True)]
        return cls(
            count=len(predictions),
            matches=tuple(bleu.counts),
            totals=tuple(bleu.totals),
            prediction_words=bleu.sys_len,
            reference_words=bleu.ref_len,
            rouge={name: sum((scores[name].fmeasure for scores in rouge), 0.0) for name in ROUGE_METRICS},
            **sums,
        )

    @classmethod
    def merge(cls, scores_of_cells: Iterable["TextScores"]) -> "TextScores":
        """Merges cells into one."""
        return reduce(add_sums, scores_of_cells, cls())

    def metrics(self) -> dict[str, float | None]:
        """Every metric of `TEXT_METRICS` by name; None if undefined."""
        return {name: metric.compute(self) for name, metric in TEXT_METRICS.items()}

    def to_record(self) -> dict[str, Any]:
        """The entry `texts` in the record of a cell: the sums and the metrics."""
        record = sums_to_record(self) | {"nll": round(self.nll, 6)}
        record["rouge"] = {name: round(total, 9) for name, total in self.rouge.items()}
        metrics = self.metrics().items()
        return record | {"metrics": {name: None if value is None else round(value, 6) for name, value in metrics}}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "TextScores | None":
        """From the record of a cell; None for one without texts. Raises `KeyError`, `TypeError` or `ValueError` for an
        invalid record."""
        data = record.get("texts")
        if data is None:
            return None
        sums = {one.name: data[one.name.removeprefix("num_")] for one in fields(cls)}
        sums |= {name: tuple(sums[name]) for name in ("matches", "totals")}
        return cls(**sums | {"rouge": {name: float(data["rouge"][name]) for name in ROUGE_METRICS}})


def _bleu(scores: TextScores) -> float | None:
    """From 0 to 100, from the counts alone, so that records can be read without sacrebleu: Papineni et al. (2002),
    https://aclanthology.org/P02-1040. The precision of the k-th order without a match is smoothed to 1 / (2**k n-grams)
    (Chen and Cherry, 2014, https://aclanthology.org/W14-3346, "smoothing 3"). Predictions without 4-grams, such as
    single numbers, score 0."""
    if not scores.count or not any(scores.matches) or not all(scores.totals):
        return 0.0 if scores.count else None
    smoothing, log_precisions = 1.0, []
    for matches, total in zip(scores.matches, scores.totals, strict=True):
        smoothing *= 1 if matches else 2
        log_precisions.append(log((matches or 1 / smoothing) / total))
    log_brevity_penalty = min(0.0, 1 - scores.reference_words / scores.prediction_words)
    return 100 * exp(log_brevity_penalty + sum(log_precisions) / len(log_precisions))


TEXT_METRICS: dict[str, Metric] = {
    "bleu": Metric("BLEU of the corpus", _bleu),
    "rouge1": Metric("ROUGE-1", lambda s: ratio(s.rouge["rouge1"], s.count)),
    "rouge2": Metric("ROUGE-2", lambda s: ratio(s.rouge["rouge2"], s.count)),
    "rougeL": Metric("ROUGE-L", lambda s: ratio(s.rouge["rougeL"], s.count)),
    "perplexity": Metric("perplexity per token", lambda s: perplexity(s.nll, s.num_tokens), lower_is_better=True),
    "token_accuracy": Metric(
        "correct tokens after the correct prefix", lambda s: ratio(s.num_correct_tokens, s.num_tokens), True
    ),
    "ended": Metric("answers with an end token", lambda s: ratio(s.num_ended, s.count), True),
}
"""The metrics of texts; docs/metrics.md defines them."""


def perplexity(nll: float, num_tokens: int) -> float | None:
    """exp(nll / tokens); None without tokens or on overflow.

    >>> round(perplexity(4.60517, 2), 4)
    10.0
    """
    return exp(nll / num_tokens) if num_tokens and nll / num_tokens <= 709.0 else None
