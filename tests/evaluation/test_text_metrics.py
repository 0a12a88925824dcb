"""Promises of the metrics of texts: BLEU is sacreBLEU's, ROUGE that of rouge_score, and cells pool exactly."""

import json
import math
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from numerate.errors import UserError
from numerate.evaluation.text_metrics import (
    TEXT_METRICS,
    TextScores,
    perplexity,
    pooled_metrics,
    porter_stemmer,
    rouge,
    tokenize_13a,
    tokenize_rouge,
)

WORDS = st.sampled_from(
    ["the", "cat", "sat", "on", "mats", "running", "12", "1,000.5", "it's", "-3", "x.", "(a)", "&amp;"]
)
SENTENCE = st.lists(WORDS, max_size=9).map(" ".join)
CORPUS = st.lists(st.tuples(SENTENCE, SENTENCE), min_size=1, max_size=5)
LETTERS = st.text(alphabet="aB1 .,-&;qut<>()'\"\n\N{LATIN SMALL LETTER E WITH ACUTE}", max_size=30)


@pytest.fixture(scope="module")
def sacrebleu() -> Any:
    return pytest.importorskip("sacrebleu", reason="sacrebleu is the oracle of BLEU")


@pytest.fixture(scope="module")
def scorer() -> Any:
    return pytest.importorskip("rouge_score.rouge_scorer", reason="rouge_score is the oracle of ROUGE").RougeScorer


@given(LETTERS)
@example("It's 1,000.5-fold -- isn't it? &quot;x&quot; <skipped>re-\nad\nno")
def test_words_of_bleu_are_those_of_13a(sacrebleu: Any, text: str) -> None:
    from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

    assert " ".join(tokenize_13a(text)) == Tokenizer13a()(text)


@given(CORPUS)
@example([("the cat sat on the mat", "the cat sat on a mat")])
@example([("a b c d e", "a x c y e")])
@example([("", "a"), ("a b", "")])
def test_bleu_is_that_of_sacrebleu(sacrebleu: Any, corpus: list[tuple[str, str]]) -> None:
    predictions, references = ([pair[side] for pair in corpus] for side in (0, 1))
    expected = sacrebleu.corpus_bleu(predictions, [references], force=True).score
    assert TextScores.from_texts(predictions, references).metrics()["bleu"] == pytest.approx(expected, abs=1e-9)


def test_bleu_by_hand() -> None:
    """Five of six words, three of five pairs, two of four, one of three match; nothing is too short."""
    measured = TextScores.from_texts(["the cat sat on the mat"], ["the cat sat on a mat"]).metrics()["bleu"]
    assert measured == pytest.approx(100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** (1 / 4))


def test_a_corpus_is_not_the_mean_of_its_answers() -> None:
    long, short = ("a b c d e f", "a b c d e f"), ("a b c d", "w x y z")
    whole = TextScores.from_texts([long[0], short[0]], [long[1], short[1]]).metrics()["bleu"]
    assert whole != pytest.approx(
        sum(TextScores.from_texts([a], [b]).metrics()["bleu"] or 0 for a, b in (long, short)) / 2
    )


@pytest.mark.parametrize("stemmed", [False, True])
def test_rouge_is_that_of_rouge_score(scorer: Any, stemmed: bool) -> None:
    if stemmed:
        pytest.importorskip("nltk", reason="nltk has the stemmer")
    stem, oracle = porter_stemmer() if stemmed else None, scorer(["rouge1", "rouge2", "rougeL"], use_stemmer=stemmed)
    random = Random(0)
    words = ["the", "cat", "sat", "mats", "Mat", "running", "runs", "12", "1,000.5", "it's", "a-b", "..."]
    for _ in range(60):
        predictions, references = (" ".join(random.choices(words, k=random.randrange(9))) for _ in range(2))
        expected = {name: score.fmeasure for name, score in oracle.score(references, predictions).items()}
        assert rouge(predictions, references, stem) == pytest.approx(expected), (predictions, references)
    assert stemmed == (rouge("running", "runs", stem)["rouge1"] == 1.0)


@given(LETTERS)
def test_words_of_rouge_are_those_of_rouge_score(scorer: Any, text: str) -> None:
    from rouge_score.tokenizers import DefaultTokenizer

    assert tokenize_rouge(text) == DefaultTokenizer(use_stemmer=False).tokenize(text)


def test_rouge_by_hand() -> None:
    """Of "the cat sat on" and "the dog sat down on" three words are common, in order; no pair is."""
    found = rouge("the cat sat on", "the dog sat down on")
    assert found == {"rouge1": pytest.approx(2 * 3 / 9), "rouge2": 0.0, "rougeL": pytest.approx(2 * 3 / 9)}
    assert rouge("on sat the", "the sat on")["rougeL"] == pytest.approx(1 / 3)
    assert rouge("", "the")["rouge1"] == rouge("", "")["rougeL"] == 0.0


@given(st.lists(CORPUS, min_size=1, max_size=4))
def test_cells_taken_together_are_all_their_questions_at_once(cells: list[list[tuple[str, str]]]) -> None:
    def of(corpus: list[tuple[str, str]]) -> TextScores:
        tokens = sum(len(references) for _, references in corpus)
        return TextScores.from_texts(
            *([pair[side] for pair in corpus] for side in (0, 1)),
            nll=0.5 * tokens,
            num_tokens=tokens,
            num_ended=len(corpus),
        )

    whole = of([pair for cell in cells for pair in cell])
    read = [TextScores.from_record({"texts": json.loads(json.dumps(of(cell).to_record()))}) for cell in cells]
    together = TextScores.merge([scores for scores in read if scores is not None])
    assert together.bleu == whole.bleu
    assert together.metrics() == pytest.approx(whole.metrics(), abs=1e-7)


def test_perplexity_weighs_every_token_alike() -> None:
    short, long = TextScores(count=1, nll=4.0, num_tokens=1), TextScores(count=1, nll=3.0, num_tokens=6)
    metrics = pooled_metrics([short, long])
    assert metrics["perplexity"] == pytest.approx(math.exp(7 / 7))
    assert metrics["perplexity (mean of modules)"] == pytest.approx((math.exp(4.0) + math.exp(0.5)) / 2)
    assert perplexity(1e6, 1) is None


def test_nothing_is_made_up_where_nothing_was_predicted() -> None:
    assert TextScores().metrics() == dict.fromkeys(TEXT_METRICS)
    assert TextScores.from_texts(["42"], ["42"]).metrics()["bleu"] == 0.0, "no run of four words"
    assert TextScores.from_record({"correct": 1}) is None
    with pytest.raises(UserError, match="1 answers to 0"):
        TextScores.from_texts(["a"], [])
    with pytest.raises(UserError, match="at least one cell"):
        pooled_metrics([])
