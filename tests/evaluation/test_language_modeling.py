"""Promises of loss, perplexity and bits per byte of text."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from numerate.batch import IGNORE_INDEX, StepContext
from numerate.evaluation.evaluation_data import EvaluationData
from numerate.evaluation.evaluator import CellRequest, evaluate_cell
from numerate.evaluation.kinds import text_likelihood as language
from numerate.evaluation.kinds.text_likelihood import compute_chunk_losses, compute_portion_losses
from numerate.evaluation.likelihoods import Likelihoods, merge_portions
from numerate.tasks.language_modeling import LanguageModeling
from numerate.text.data.corpora import write_corpus
from numerate.text.data.vocabularies import save_vocabulary, train_vocabulary
from numerate.text.tokenizers.stored_tokenizer import PretrainedTokenizer, TokenBytes, load_tokenizer

pytest.importorskip("tokenizers", reason="the extra huggingface has it")

from text_corpus import STORIES, recipe_of, task_in


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> tuple[EvaluationData, Any]:
    """An exam of stories, and a model that was never trained."""
    recipe = recipe_of(task_in(tmp_path_factory.mktemp("stories")))
    exam = EvaluationData(recipe.task, recipe.tokenizer, recipe.layout)
    return exam, recipe.model.rebuild(exam.vocabulary, 0, None).eval()


def plainly(model: Any, batch: Any) -> torch.Tensor:
    """The loss of every token, by all logits at once."""
    with torch.no_grad():
        logits = model(model.assign_positions(batch.tokens, StepContext.for_evaluation())).logits
    return cross_entropy(
        logits.flatten(0, 1).double(), batch.targets.flatten(), ignore_index=IGNORE_INDEX, reduction="none"
    )


def test_sums_are_those_of_all_logits_at_once_and_perplexity_is_weighed_by_tokens(
    read: tuple[EvaluationData, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    exam, model = read
    whole = exam.task.all_questions("test")
    assert whole is not None
    batch = exam.batch(whole)
    plain = plainly(model, batch)
    monkeypatch.setitem(language.MAX_LOGITS, "cpu", 7 * len(exam.vocabulary.tokens))  # seven places at a time
    found = compute_chunk_losses(model, exam, batch).likelihoods()
    tokens = int((batch.targets != IGNORE_INDEX).sum())
    assert found.tokens == tokens == batch.counts["tokens"]
    assert found.loss == pytest.approx(float(plain.sum()) / tokens, rel=1e-6)
    assert found.perplexity == pytest.approx(math.exp(float(plain.sum()) / tokens), rel=1e-6)
    assert found.bits_per_byte == pytest.approx(float(plain.sum()) / math.log(2) / found.bytes, rel=1e-6)
    with torch.no_grad():
        predictions = model(model.assign_positions(batch.tokens, StepContext.for_evaluation())).logits.argmax(-1)
    assert found.correct_tokens == int((predictions == batch.targets).sum())


def test_never_more_logits_are_made_at_once_than_allowed(
    read: tuple[EvaluationData, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    exam, model = read
    seen: list[int] = []
    losses = language._token_losses

    def watched(hidden: Any, head: Any, targets: Any, vocabulary: int) -> Any:
        return losses(hidden, lambda x: (seen.append(len(x) * vocabulary), head(x))[1], targets, vocabulary)

    monkeypatch.setattr(language, "_token_losses", watched)
    monkeypatch.setitem(language.MAX_LOGITS, "cpu", 5000)
    compute_portion_losses(model, exam, CellRequest({"context_length": 16, "chunk": 0}, 30))
    assert len(seen) > 5
    assert max(seen) <= 5000


def test_the_published_perplexity_is_the_mean_over_batches_of_exp(read: tuple[EvaluationData, Any]) -> None:
    exam, model = read
    batches = [exam.batch(exam.task.examples("validation", 0, start, 4)) for start in (0, 4, 8)]
    means = [plainly(model, batch).sum().item() / batch.counts["tokens"] for batch in batches]
    each = [compute_chunk_losses(model, exam, batch).likelihoods().as_batch() for batch in batches]
    found = sum(each, Likelihoods())
    assert found.mean_of_exp == pytest.approx(np.mean(np.exp(means)), rel=1e-6)
    assert found.batch_loss == pytest.approx(np.mean(means), rel=1e-6)
    assert found.mean_of_exp is not None
    assert found.mean_of_exp >= found.perplexity - 1e-9


def test_portions_together_are_the_whole_and_no_chunk_counts_twice(read: tuple[EvaluationData, Any]) -> None:
    exam, model = read
    chunks = exam.task.num_chunks("test")  # type: ignore[attr-defined]

    def part(first: int, count: int) -> tuple[int, Likelihoods]:
        record = evaluate_cell(model, exam, {"context_length": 16, "chunk": first}, count=count)
        return first, Likelihoods.from_sums(record["language"])

    whole = part(0, chunks)[1]
    together = merge_portions([part(20, chunks - 20), part(0, 5), part(0, 20), part(10, 3)])
    assert (together.chunks, together.tokens, together.bytes) == (chunks, whole.tokens, whole.bytes)
    assert together.loss == pytest.approx(whole.loss, rel=1e-6)
    assert together.loss_interval() == pytest.approx(whole.loss_interval(), rel=1e-4)


def test_the_interval_is_that_of_a_ratio_of_sums_over_chunks() -> None:
    rng = np.random.default_rng(0)
    tokens = rng.integers(8, 17, 400)
    nll = tokens * rng.normal(2.0, 0.5, 400)
    found = language.ChunkLosses(nll, tokens, 2 * tokens, 0 * tokens).likelihoods()
    drawn = rng.integers(0, 400, (4000, 400))
    losses = nll[drawn].sum(1) / tokens[drawn].sum(1)
    interval = found.loss_interval()
    assert interval is not None
    assert interval == pytest.approx(np.quantile(losses, [0.025, 0.975]), abs=6e-3)
    assert found.bits_per_byte_interval() == pytest.approx([end / math.log(2) / 2 for end in interval], rel=1e-3)
    assert language.ChunkLosses(nll[:1], tokens[:1], tokens[:1], tokens[:1]).likelihoods().loss_interval() is None


def bytes_of(known: PretrainedTokenizer, texts: list[str]) -> int:
    """Of documents one behind the other, by the table."""
    ids = np.concatenate([[known.document_start_id, *known.encode([text])[0].tolist()] for text in texts])
    return int(TokenBytes.from_tokenizer(known).target_byte_counts(ids[:-1], ids[1:]).sum())


TEXTS = ["Once upon a time, 12 cats.", " a space first", "two\nlines", "Émile → 你好 🙂", "x"]


def stored_in(folder: Path, kind: str) -> PretrainedTokenizer:
    """A small tokenizer: of bytes, of bytes with a space in front of a text, or of words and their ends."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    special = ["[PAD]", "[UNK]", "<s>"]
    if kind == "word ends":
        own = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        own.pre_tokenizer, own.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
        learner = trainers.WordPieceTrainer(vocab_size=60, special_tokens=special, show_progress=False)
    else:
        own = Tokenizer(models.BPE())
        own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=kind == "bytes behind a space")
        own.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        learner = trainers.BpeTrainer(
            vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        )
    own.train_from_iterator([*STORIES, "a, b"], learner)
    (folder / "tokenizer.json").write_text(own.to_str())
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<s>", "unk_token": "[UNK]"}')
    return load_tokenizer(str(folder))


@pytest.mark.parametrize("kind", ["bytes", "bytes behind a space", "word ends"])
def test_bytes_are_those_of_the_text_that_was_written(tmp_path: Path, kind: str) -> None:
    known = stored_in(tmp_path, kind)
    texts = [story.replace(":", ",") for story in STORIES] if kind == "word ends" else [*STORIES, *TEXTS]
    texts = [text for text in texts if not (kind == "bytes behind a space" and text[0] == " ")]  # it puts none there
    assert bytes_of(known, texts) == sum(len(text.encode()) for text in texts)


def test_bytes_are_those_of_the_text_for_letters() -> None:
    from numerate.text.tokenizers.tokenizer_files import CHARACTER_TOKENIZER

    assert bytes_of(load_tokenizer(CHARACTER_TOKENIZER), STORIES) == sum(map(len, STORIES))


def test_all_held_out_text_has_the_bytes_of_its_documents_and_no_space_between_them(tmp_path: Path) -> None:
    known = load_tokenizer(str(save_vocabulary(train_vocabulary(lambda: STORIES, 290), tmp_path / "words")))
    text = tmp_path / "stories.txt"
    text.write_text("<|endoftext|>".join(STORIES))
    corpus = write_corpus([text], tmp_path / "tokens", str(tmp_path / "words"), processes=1)
    task = LanguageModeling(
        str(tmp_path / "tokens"), str(tmp_path / "tokens"), str(tmp_path / "words"), context_length=16
    )
    recipe = recipe_of(task)
    exam = EvaluationData(task, recipe.tokenizer, recipe.layout)
    model = recipe.model.rebuild(exam.vocabulary, 0, None).eval()
    found = compute_portion_losses(
        model, exam, CellRequest({"context_length": 16, "chunk": 0}, task.num_chunks("test"))
    )
    ids = corpus.shards[0].ids
    one_by_one = [known.decode(document) for document in known.split_documents(ids)]
    assert one_by_one == STORIES
    assert found.num_bytes.sum() == sum(len(story.encode()) for story in one_by_one) == corpus.text_bytes
    assert len(known.decode(ids).encode()) == found.num_bytes.sum() + len(STORIES) - 1, (
        "a space before all but the first"
    )


def test_bytes_are_those_of_the_text_for_sentencepiece(shared: Path) -> None:
    known = load_tokenizer(str(shared / "data" / "tokenizers" / "mistral" / "tokenizer.model.v1"))
    texts = [*TEXTS, *STORIES[:5]]
    assert bytes_of(known, texts) == sum(len(text.encode()) for text in texts)
