"""Metrics of text answers: corpus BLEU, ROUGE, perplexity and token accuracy.

Each is one score from sums over all questions, so that it does not depend on the batch size, and merging cells gives
the result of all their questions together.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Any

from numerate.errors import UserError
from numerate.evaluation.sums import cell_means

MAX_NGRAM_ORDER = 4
"""The maximum n-gram order of BLEU."""

TEXT_METRICS: dict[str, str] = {
    "bleu": "BLEU of the corpus",
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "rougeL": "ROUGE-L",
    "perplexity": "perplexity per token",
    "token_accuracy": "correct tokens after the correct prefix",
    "ended": "answers with an end token",
}
"""The metrics of texts and their names in reports; docs/metrics.md defines them."""

ROUGE_METRICS = ("rouge1", "rouge2", "rougeL")

_ENTITIES = (("&quot;", '"'), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">"))
_RULES_13A = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"([{-~\[-` -&(-+:-@/])", r" \1 "),  # punctuation except apostrophe, comma, hyphen and point
        (r"([^0-9])([.,])", r"\1 \2 "),  # points and commas, unless both neighbors are digits
        (r"([.,])([^0-9])", r" \1 \2"),
        (r"([0-9])(-)", r"\1 \2 "),  # a hyphen after a digit
    )
)


def tokenize_13a(text: str) -> list[str]:
    """The words of a text as BLEU counts them: the tokenization `13a`, that of the script mteval-v13a of NIST.

    Implemented as in sacreBLEU (Post, 2018, https://aclanthology.org/W18-6319), so that scores are comparable.

    >>> tokenize_13a("It's 1,000.5, isn't it?")
    ["It's", '1,000.5', ',', "isn't", 'it', '?']
    """
    text = text.replace("<skipped>", "").replace("-\n", "").replace("\n", " ")
    for entity, character in _ENTITIES:
        text = text.replace(entity, character)
    text = f" {text} "
    for pattern, replacement in _RULES_13A:
        text = pattern.sub(replacement, text)
    return text.split()


@dataclass(frozen=True)
class BleuCounts:
    """The sums of corpus BLEU: the numbers of n-grams of predictions (n = 1 to 4) and of those that match the
    reference; and the numbers of words of both.

    >>> round(BleuCounts.from_pair("the cat sat on the mat", "the cat sat on a mat").score(), 2)
    53.73
    """

    matches: tuple[int, ...] = (0,) * MAX_NGRAM_ORDER
    totals: tuple[int, ...] = (0,) * MAX_NGRAM_ORDER
    prediction_length: int = 0
    reference_length: int = 0

    @classmethod
    def from_pair(cls, prediction: str, reference: str) -> "BleuCounts":
        """From one answer."""
        predicted, expected = tokenize_13a(prediction), tokenize_13a(reference)
        matches, totals = [], []
        for order in range(1, MAX_NGRAM_ORDER + 1):
            predicted_ngrams, reference_ngrams = _ngrams(predicted, order), _ngrams(expected, order)
            matches.append((predicted_ngrams & reference_ngrams).total())
            totals.append(predicted_ngrams.total())
        return cls(tuple(matches), tuple(totals), len(predicted), len(expected))

    def __add__(self, other: "BleuCounts") -> "BleuCounts":
        return BleuCounts(
            tuple(map(sum, zip(self.matches, other.matches, strict=True))),
            tuple(map(sum, zip(self.totals, other.totals, strict=True))),
            self.prediction_length + other.prediction_length,
            self.reference_length + other.reference_length,
        )

    def score(self) -> float:
        """BLEU from 0 to 100: Papineni et al. (2002), https://aclanthology.org/P02-1040, as sacreBLEU computes it.

        The geometric mean of the n-gram precisions, times exp(1 - reference words / predicted words) if predictions are
        shorter. The first order without a match counts half a match, the next a quarter and so on. Predictions without
        4-grams, such as single numbers, score 0.
        """
        if not any(self.matches) or not all(self.totals):
            return 0.0
        log_precision_sum, halvings = 0.0, 0
        for matches, total in zip(self.matches, self.totals, strict=True):
            halvings += not matches
            log_precision_sum += log((matches or 0.5**halvings) / total)
        brevity = min(0.0, 1.0 - self.reference_length / self.prediction_length)
        return 100.0 * exp(brevity + log_precision_sum / MAX_NGRAM_ORDER)


def _ngrams(words: Sequence[str], order: int) -> "Counter[tuple[str, ...]]":
    return Counter(tuple(words[i : i + order]) for i in range(len(words) - order + 1))


# ROUGE ----------------------------------------------------------------------------------------------------------------

Stemmer = Callable[[str], str]


def porter_stemmer() -> Stemmer:
    """Porter's stemmer of the package nltk, as rouge_score uses it. Raises `UserError` without nltk."""
    try:
        from nltk.stem.porter import PorterStemmer
    except ImportError:
        raise UserError("stemming: needs the package nltk; pip install nltk, or leave stemming off") from None
    stem: Stemmer = PorterStemmer().stem
    return stem


def tokenize_rouge(text: str, stem: Stemmer | None = None) -> list[str]:
    """The words of a text as ROUGE counts them: runs of letters a to z and digits, in lower case; with a stemmer those
    of more than three letters by their stems. As the package rouge_score has it.

    >>> tokenize_rouge("It costs $1,000.")
    ['it', 'costs', '1', '000']
    """
    words = re.findall(r"[a-z0-9]+", text.lower())
    if stem is None:
        return words
    stems = [stem(word) if len(word) > 3 else word for word in words]
    return [word for word in stems if re.fullmatch(r"[a-z0-9]+", word)]


def rouge(prediction: str, reference: str, stem: Stemmer | None = None) -> dict[str, float]:
    """ROUGE-1, ROUGE-2 and ROUGE-L of one answer, each as F1 of precision and recall, from 0 to 1.

    Lin (2004), https://aclanthology.org/W04-1013: runs of one and of two words that both have, and the longest common
    subsequence of words.

    >>> {name: round(share, 3) for name, share in rouge("the cat sat", "the cat lay").items()}
    {'rouge1': 0.667, 'rouge2': 0.5, 'rougeL': 0.667}
    """
    predicted, expected = tokenize_rouge(prediction, stem), tokenize_rouge(reference, stem)
    scores = {}
    for order in (1, 2):
        predicted_ngrams, reference_ngrams = _ngrams(predicted, order), _ngrams(expected, order)
        scores[f"rouge{order}"] = _f1(
            (predicted_ngrams & reference_ngrams).total(), predicted_ngrams.total(), reference_ngrams.total()
        )
    return scores | {"rougeL": _f1(_lcs_length(predicted, expected), len(predicted), len(expected))}


def _f1(common: int, prediction: int, reference: int) -> float:
    """The harmonic mean of common / prediction and common / reference."""
    return 2.0 * common / (prediction + reference) if common else 0.0


def _lcs_length(prediction: Sequence[str], reference: Sequence[str]) -> int:
    """The length of the longest common subsequence, a row of the usual table as the bits of one integer: Hyyrö (2004),
    "Bit-parallel LCS-length computation revisited"."""
    masks: dict[str, int] = {}
    for index, word in enumerate(prediction):
        masks[word] = masks.get(word, 0) | 1 << index
    mask = (1 << len(prediction)) - 1
    row = mask
    for word in reference:
        hits = row & masks.get(word, 0)
        row = (row + hits | row - hits) & mask
    return len(prediction) - row.bit_count()


# Scores ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TextScores:
    """Scores of text answers, as sums that can be merged.

    `rouge_sums` are the sums of F over `count` answers. `nll` is the teacher-forced sum of -ln(probability), in nats,
    over all `num_tokens` tokens of the references, including end tokens; `num_correct_tokens` of them have the highest
    probability. `num_ended` answers ended with an end token.

    >>> TextScores.from_texts(["the cat sat"], ["the cat lay"]).metrics()["rouge2"]
    0.5
    """

    count: int = 0
    bleu: BleuCounts = BleuCounts()
    rouge_sums: tuple[float, float, float] = (0.0, 0.0, 0.0)
    nll: float = 0.0
    num_tokens: int = 0
    num_correct_tokens: int = 0
    num_ended: int = 0

    @classmethod
    def from_texts(
        cls,
        predictions: Sequence[str],
        references: Sequence[str],
        *,
        nll: float = 0.0,
        num_tokens: int = 0,
        num_correct_tokens: int = 0,
        num_ended: int = 0,
        stem: Stemmer | None = None,
    ) -> "TextScores":
        """From predictions and references. Raises `UserError` if their counts differ."""
        if len(predictions) != len(references):
            raise UserError(
                f"text_metrics: {len(predictions)} answers to {len(references)} questions; give one to each"
            )
        pairs = list(zip(predictions, references, strict=True))
        shares = [rouge(*pair, stem) for pair in pairs]
        return cls(
            count=len(pairs),
            bleu=sum((BleuCounts.from_pair(*pair) for pair in pairs), BleuCounts()),
            rouge_sums=(
                sum(s["rouge1"] for s in shares),
                sum(s["rouge2"] for s in shares),
                sum(s["rougeL"] for s in shares),
            ),
            nll=nll,
            num_tokens=num_tokens,
            num_correct_tokens=num_correct_tokens,
            num_ended=num_ended,
        )

    def __add__(self, other: "TextScores") -> "TextScores":
        first, second, longest = (one + more for one, more in zip(self.rouge_sums, other.rouge_sums, strict=True))
        return TextScores(
            self.count + other.count,
            self.bleu + other.bleu,
            (first, second, longest),
            self.nll + other.nll,
            self.num_tokens + other.num_tokens,
            self.num_correct_tokens + other.num_correct_tokens,
            self.num_ended + other.num_ended,
        )

    @classmethod
    def merge(cls, scores_of_cells: Iterable["TextScores"]) -> "TextScores":
        """Merges cells into one."""
        return sum(scores_of_cells, cls())

    def metrics(self) -> dict[str, float | None]:
        """Every metric of `METRICS` by name; None if undefined. Perplexity is exp(nll / tokens)."""
        shares = (total / self.count if self.count else None for total in self.rouge_sums)
        return {
            "bleu": self.bleu.score() if self.count else None,
            **dict(zip(ROUGE_METRICS, shares, strict=True)),
            "perplexity": perplexity(self.nll, self.num_tokens),
            "token_accuracy": self.num_correct_tokens / self.num_tokens if self.num_tokens else None,
            "ended": self.num_ended / self.count if self.count else None,
        }

    def to_record(self) -> dict[str, Any]:
        """The entry `texts` in the record of a cell: the sums and the metrics."""
        return {
            "count": self.count,
            "matches": list(self.bleu.matches),
            "totals": list(self.bleu.totals),
            "prediction_words": self.bleu.prediction_length,
            "reference_words": self.bleu.reference_length,
            "rouge": dict(zip(ROUGE_METRICS, (round(total, 9) for total in self.rouge_sums), strict=True)),
            "nll": round(self.nll, 6),
            "tokens": self.num_tokens,
            "correct_tokens": self.num_correct_tokens,
            "ended": self.num_ended,
            "metrics": {name: None if value is None else round(value, 6) for name, value in self.metrics().items()},
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "TextScores | None":
        """From the record of a cell; None for one without texts. Raises `KeyError`, `TypeError` or `ValueError` for an
        invalid record."""
        data = record.get("texts")
        if data is None:
            return None
        matches, totals = (tuple(map(int, data[name])) for name in ("matches", "totals"))
        first, second, longest = (float(data["rouge"][name]) for name in ROUGE_METRICS)
        return cls(
            count=int(data["count"]),
            bleu=BleuCounts(matches, totals, int(data["prediction_words"]), int(data["reference_words"])),
            rouge_sums=(first, second, longest),
            nll=float(data["nll"]),
            num_tokens=int(data["tokens"]),
            num_correct_tokens=int(data["correct_tokens"]),
            num_ended=int(data["ended"]),
        )


def pooled_metrics(cells: Sequence[TextScores]) -> dict[str, float | None]:
    """Every metric twice: over all questions of several cells, `bleu`, and as the mean over the cells that have it,
    each weighing the same, `bleu (mean of modules)`. Raises `UserError` for no cells."""
    if not cells:
        raise UserError("text_metrics: must be given at least one cell")
    metrics_by_cell = [scores.metrics() for scores in cells]
    return TextScores.merge(cells).metrics() | cell_means(metrics_by_cell, TEXT_METRICS)


def perplexity(nll: float, num_tokens: int) -> float | None:
    """exp(nll / tokens); None without tokens or on overflow.

    >>> round(perplexity(2 * log(10), 2), 6)
    10.0
    """
    if not num_tokens or nll / num_tokens > 709.0:
        return None
    return exp(nll / num_tokens)
