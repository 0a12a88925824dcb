"""Metrics of text answers: corpus BLEU, ROUGE, perplexity and token accuracy.

Each is one score from sums over all questions, so that cells merge exactly. BLEU is computed by sacrebleu (Post, 2018,
https://aclanthology.org/W18-6319), with its defaults, and ROUGE by rouge_score; the extra `text` installs both.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from importlib.util import find_spec
from math import exp, log
from typing import Any

from numerate.errors import UserError
from numerate.evaluation.sums import Metric, add_sums, check_pairs, ratio, sums_from_record, sums_to_record

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
    sum of -ln(probability), in nats, over all `tokens` tokens of the references, including end tokens;
    `correct_tokens` of them have the highest probability. `ended` answers ended with an end token.

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
    tokens: int = 0
    correct_tokens: int = 0
    ended: int = 0

    @classmethod
    def from_texts(
        cls, predictions: Sequence[str], references: Sequence[str], *, use_stemmer: bool = False
    ) -> "TextScores":
        """`use_stemmer`: whether ROUGE compares the stems of words (Porter's). Raises `UserError` if their numbers
        differ, and without the packages."""
        check_pairs(predictions, references)
        if not predictions:
            return cls()
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
        )

    @classmethod
    def merge(cls, scores_of_cells: Iterable["TextScores"]) -> "TextScores":
        return reduce(add_sums, scores_of_cells, cls())

    def metrics(self) -> dict[str, float | None]:
        """Every metric of `TEXT_METRICS` by name; None if undefined."""
        found = {"bleu": _bleu(self), **{name: ratio(total, self.count) for name, total in self.rouge.items()}}
        found |= {"perplexity": perplexity(self.nll, self.tokens), "ended": ratio(self.ended, self.count)}
        found["token_accuracy"] = ratio(self.correct_tokens, self.tokens)
        return {name: found[name] for name in TEXT_METRICS}

    def to_record(self) -> dict[str, Any]:
        """The entry `texts` in the record of a cell: the sums and the metrics."""
        metrics = {name: None if value is None else round(value, 6) for name, value in self.metrics().items()}
        rouge = {name: round(total, 9) for name, total in self.rouge.items()}
        return sums_to_record(self) | {"nll": round(self.nll, 6), "rouge": rouge, "metrics": metrics}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "TextScores | None":
        """From the record of a cell; None for one without texts. Raises `ValueError` for an invalid record."""
        return None if record.get("texts") is None else sums_from_record(cls, record["texts"])


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
    "bleu": Metric("BLEU of the corpus"),
    **{name: Metric(f"ROUGE-{name[-1]}") for name in ROUGE_METRICS},
    "perplexity": Metric("perplexity per token", lower_is_better=True),
    "token_accuracy": Metric("correct tokens after the correct prefix", True),
    "ended": Metric("answers with an end token", True),
}
"""The metrics of texts; docs/metrics.md defines them."""


def perplexity(nll: float, tokens: int) -> float | None:
    """exp(nll / tokens); None without tokens or on overflow.

    >>> round(perplexity(4.60517, 2), 4)
    10.0
    """
    return exp(nll / tokens) if tokens and nll / tokens <= 709.0 else None
