"""How near answers that are texts are to the right ones: corpus BLEU, ROUGE, perplexity and token accuracy.

Each is of a corpus: sums over all questions, of which one score is made at the end. A mean of the scores of batches
changes with their size; these do not, and cells taken together give what all their questions at once give.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Any

from numerate.errors import UserError
from numerate.evaluation.sums import means_of_modules

ORDER = 4
"""BLEU counts runs of up to so many words."""

METRICS: dict[str, str] = {
    "bleu": "BLEU of the corpus",
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "rougeL": "ROUGE-L",
    "perplexity": "perplexity per token",
    "token_accuracy": "tokens right behind the right prefix",
    "ended": "answers that came to an end",
}
"""What is measured of texts, with the words that reports use; docs/metrics.md defines them."""

ROUGES = ("rouge1", "rouge2", "rougeL")

_ENTITIES = (("&quot;", '"'), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">"))
_13A = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"([{-~\[-` -&(-+:-@/])", r" \1 "),  # punctuation but for apostrophe, comma, hyphen and point
        (r"([^0-9])([.,])", r"\1 \2 "),  # points and commas, unless both neighbours are digits
        (r"([.,])([^0-9])", r" \1 \2"),
        (r"([0-9])(-)", r"\1 \2 "),  # a hyphen behind a digit
    )
)


def words_13a(text: str) -> list[str]:
    """The words of a text as BLEU counts them: the tokenisation `13a`, that of the script mteval-v13a of NIST.

    As sacreBLEU has it (Post, 2018, https://aclanthology.org/W18-6319): what makes scores of two papers comparable.

    >>> words_13a("It's 1,000.5, isn't it?")
    ["It's", '1,000.5', ',', "isn't", 'it', '?']
    """
    text = text.replace("<skipped>", "").replace("-\n", "").replace("\n", " ")
    for entity, character in _ENTITIES:
        text = text.replace(entity, character)
    text = f" {text} "
    for pattern, replacement in _13A:
        text = pattern.sub(replacement, text)
    return text.split()


@dataclass(frozen=True)
class Bleu:
    """What corpus BLEU is made of: of the runs of 1 to 4 words said, how many there are and how many match the right
    answer; and the words of both.

    >>> round(Bleu.of("the cat sat on the mat", "the cat sat on a mat").score(), 2)
    53.73
    """

    matches: tuple[int, ...] = (0,) * ORDER
    totals: tuple[int, ...] = (0,) * ORDER
    said_words: int = 0
    right_words: int = 0

    @classmethod
    def of(cls, said: str, right: str) -> "Bleu":
        """Of one answer."""
        ours, theirs = words_13a(said), words_13a(right)
        matches, totals = [], []
        for order in range(1, ORDER + 1):
            found, wanted = _runs(ours, order), _runs(theirs, order)
            matches.append((found & wanted).total())
            totals.append(found.total())
        return cls(tuple(matches), tuple(totals), len(ours), len(theirs))

    def __add__(self, other: "Bleu") -> "Bleu":
        return Bleu(
            tuple(map(sum, zip(self.matches, other.matches, strict=True))),
            tuple(map(sum, zip(self.totals, other.totals, strict=True))),
            self.said_words + other.said_words,
            self.right_words + other.right_words,
        )

    def score(self) -> float:
        """BLEU from 0 to 100: Papineni et al. (2002), https://aclanthology.org/P02-1040, as sacreBLEU computes it.

        The geometric mean of the shares of runs that match, times exp(1 - right / said words) where too little is
        said. An order of which nothing matches counts as half a match, the next such one as a quarter and so on. A
        corpus that says no run of 4 words at all has 0: answers that are single numbers have no BLEU to speak of.
        """
        if not any(self.matches) or not all(self.totals):
            return 0.0
        logs, halvings = 0.0, 0
        for matches, total in zip(self.matches, self.totals, strict=True):
            halvings += not matches
            logs += log((matches or 0.5**halvings) / total)
        brevity = min(0.0, 1.0 - self.right_words / self.said_words)
        return 100.0 * exp(brevity + logs / ORDER)


def _runs(words: Sequence[str], order: int) -> "Counter[tuple[str, ...]]":
    return Counter(tuple(words[i : i + order]) for i in range(len(words) - order + 1))


# ROUGE ----------------------------------------------------------------------------------------------------------------

Stem = Callable[[str], str]


def porter() -> Stem:
    """Porter's stemmer as rouge_score takes it, that of the package nltk. Raises `UserError` where it is not there."""
    try:
        from nltk.stem.porter import PorterStemmer
    except ImportError:
        raise UserError("stemming: needs the package nltk; pip install nltk, or leave stemming off") from None
    stem: Stem = PorterStemmer().stem
    return stem


def rouge_words(text: str, stem: Stem | None = None) -> list[str]:
    """The words of a text as ROUGE counts them: runs of letters a to z and digits, in lower case; with a stemmer those
    of more than three letters by their stems. As the package rouge_score has it.

    >>> rouge_words("It costs $1,000.")
    ['it', 'costs', '1', '000']
    """
    words = re.findall(r"[a-z0-9]+", text.lower())
    if stem is None:
        return words
    stems = [stem(word) if len(word) > 3 else word for word in words]
    return [word for word in stems if re.fullmatch(r"[a-z0-9]+", word)]


def rouge(said: str, right: str, stem: Stem | None = None) -> dict[str, float]:
    """ROUGE-1, ROUGE-2 and ROUGE-L of one answer, each the F of precision and recall, from 0 to 1.

    Lin (2004), https://aclanthology.org/W04-1013: runs of one and of two words that both have, and the longest common
    subsequence of words.

    >>> {name: round(share, 3) for name, share in rouge("the cat sat", "the cat lay").items()}
    {'rouge1': 0.667, 'rouge2': 0.5, 'rougeL': 0.667}
    """
    ours, theirs = rouge_words(said, stem), rouge_words(right, stem)
    found = {}
    for order in (1, 2):
        one, other = _runs(ours, order), _runs(theirs, order)
        found[f"rouge{order}"] = _f((one & other).total(), one.total(), other.total())
    return found | {"rougeL": _f(_common(ours, theirs), len(ours), len(theirs))}


def _f(common: int, said: int, right: int) -> float:
    """The harmonic mean of common / said and common / right."""
    return 2.0 * common / (said + right) if common else 0.0


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """The length of the longest common subsequence, a row of the usual table as the bits of one integer: Hyyrö (2004),
    "Bit-parallel LCS-length computation revisited"."""
    masks: dict[str, int] = {}
    for place, word in enumerate(one):
        masks[word] = masks.get(word, 0) | 1 << place
    whole = (1 << len(one)) - 1
    row = whole
    for word in other:
        hits = row & masks.get(word, 0)
        row = (row + hits | row - hits) & whole
    return len(one) - row.bit_count()


# Scores ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TextScores:
    """Answers that are texts beside the right ones, as sums that can be taken together.

    `rouge` are the sums of F over `count` answers. `nll` is the sum over all `tokens` of the right answers, their ends
    among them and padding not, of -ln(probability) behind the right prefix, in nats; `tokens_right` of them are the
    likeliest. `ended` answers came to an end by themselves.

    >>> TextScores.of(["the cat sat"], ["the cat lay"]).measures()["rouge2"]
    0.5
    """

    count: int = 0
    bleu: Bleu = Bleu()
    rouge: tuple[float, float, float] = (0.0, 0.0, 0.0)
    nll: float = 0.0
    tokens: int = 0
    tokens_right: int = 0
    ended: int = 0

    @classmethod
    def of(
        cls,
        said: Sequence[str],
        right: Sequence[str],
        *,
        nll: float = 0.0,
        tokens: int = 0,
        tokens_right: int = 0,
        ended: int = 0,
        stem: Stem | None = None,
    ) -> "TextScores":
        """Of answers and right answers. Raises `UserError` for unequally many."""
        if len(said) != len(right):
            raise UserError(f"text_metrics: {len(said)} answers to {len(right)} questions; give one to each")
        pairs = list(zip(said, right, strict=True))
        shares = [rouge(*pair, stem) for pair in pairs]
        return cls(
            count=len(pairs),
            bleu=sum((Bleu.of(*pair) for pair in pairs), Bleu()),
            rouge=(
                sum(s["rouge1"] for s in shares),
                sum(s["rouge2"] for s in shares),
                sum(s["rougeL"] for s in shares),
            ),
            nll=nll,
            tokens=tokens,
            tokens_right=tokens_right,
            ended=ended,
        )

    def __add__(self, other: "TextScores") -> "TextScores":
        first, second, longest = (one + more for one, more in zip(self.rouge, other.rouge, strict=True))
        return TextScores(
            self.count + other.count,
            self.bleu + other.bleu,
            (first, second, longest),
            self.nll + other.nll,
            self.tokens + other.tokens,
            self.tokens_right + other.tokens_right,
            self.ended + other.ended,
        )

    @classmethod
    def together(cls, several: Iterable["TextScores"]) -> "TextScores":
        """All questions of several cells as those of one."""
        return sum(several, cls())

    def measures(self) -> dict[str, float | None]:
        """Every metric of `METRICS` by its name; None where there is nothing to measure. Perplexity is
        exp(nll / tokens), every token weighing the same."""
        shares = (total / self.count if self.count else None for total in self.rouge)
        return {
            "bleu": self.bleu.score() if self.count else None,
            **dict(zip(ROUGES, shares, strict=True)),
            "perplexity": perplexity(self.nll, self.tokens),
            "token_accuracy": self.tokens_right / self.tokens if self.tokens else None,
            "ended": self.ended / self.count if self.count else None,
        }

    def record(self) -> dict[str, Any]:
        """What the record of a cell says of texts: the sums, and for people the metrics themselves."""
        return {
            "count": self.count,
            "matches": list(self.bleu.matches),
            "totals": list(self.bleu.totals),
            "said_words": self.bleu.said_words,
            "right_words": self.bleu.right_words,
            "rouge": dict(zip(ROUGES, (round(total, 9) for total in self.rouge), strict=True)),
            "nll": round(self.nll, 6),
            "tokens": self.tokens,
            "tokens_right": self.tokens_right,
            "ended": self.ended,
            "measures": {name: None if value is None else round(value, 6) for name, value in self.measures().items()},
        }

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> "TextScores | None":
        """Of the record of a cell; None for one without texts. Raises `KeyError`, `TypeError` or `ValueError` for what
        is no such record."""
        told = record.get("texts")
        if told is None:
            return None
        matches, totals = (tuple(map(int, told[name])) for name in ("matches", "totals"))
        first, second, longest = (float(told["rouge"][name]) for name in ROUGES)
        return cls(
            count=int(told["count"]),
            bleu=Bleu(matches, totals, int(told["said_words"]), int(told["right_words"])),
            rouge=(first, second, longest),
            nll=float(told["nll"]),
            tokens=int(told["tokens"]),
            tokens_right=int(told["tokens_right"]),
            ended=int(told["ended"]),
        )


def pooled(cells: Sequence[TextScores]) -> dict[str, float | None]:
    """Every metric twice: over all questions of several cells, `bleu`, and as the mean over the cells that have it,
    each weighing the same, `bleu (mean of modules)`. Raises `UserError` for no cells."""
    if not cells:
        raise UserError("text_metrics: there are no cells to take together")
    each = [scores.measures() for scores in cells]
    return TextScores.together(cells).measures() | means_of_modules(each, METRICS)


def perplexity(nll: float, tokens: int) -> float | None:
    """exp(nll / tokens): one number for all tokens together; None without tokens, and where no float holds it.

    >>> round(perplexity(2 * log(10), 2), 6)
    10.0
    """
    if not tokens or nll / tokens > 709.0:
        return None
    return exp(nll / tokens)
