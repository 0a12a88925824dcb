"""Promises of runs as models of Hugging Face: the same logits, the same words, the same loss, and all the way back."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import numerate
from hugging_face import DECODERS, QUIET, examples_of, ids_of, on_the_left, recipe_of, run_of, transformers
from numerate.batch import Tokens
from numerate.cli import main
from numerate.errors import UserError
from numerate.evaluation.generate import greedy_decode
from numerate.integrations.hf_export import export
from numerate.losses.cross_entropy import CrossEntropy
from numerate.mixers.attention import Attention
from numerate.models.decoder import Decoder
from numerate.published.dual_attention_models import published
from numerate.published.dual_attention_weights import to_published
from numerate.runs.importing import import_folder, import_published
from numerate.runs.run import Run
from numerate.tasks.arithmetic import Arithmetic
from numerate.tasks.language_modeling import LanguageModeling
from numerate.text.data.vocabularies import save_vocabulary, train_vocabulary
from numerate.text.models.numformer import Numformer
from numerate.text.tokenizers.subwords import Subwords
from numerate.text.tokenizers.text_number_formats import Groups, XVal
from numerate.text.tokenizers.token_ids import TokenIds
from numerate.tokenizers.layout import NextToken, TokenClassification
from numerate.tokenizers.tokenizer import Characters
from numerate.tokenizers.words import Words
from small_runs import small

pytestmark = QUIET


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No network, nothing written outside, and no bars."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    logging = transformers.utils.logging
    shown, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    yield
    logging.set_verbosity(level)
    if shown:
        logging.enable_progress_bar()


def opened(folder: Path | str, **how: Any) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **how).eval()


@pytest.fixture(params=DECODERS)
def pair(request: pytest.FixtureRequest) -> tuple[Run, Any]:
    """A run, and what Hugging Face makes of its folder."""
    run = run_of(recipe_of(DECODERS[request.param]))
    return run, opened(export(run, "exported"))


@torch.no_grad()
def test_the_logits_are_those_of_the_run_however_rows_are_padded(pair: tuple[Run, Any]) -> None:
    run, theirs = pair
    tokens, real = ids_of()
    ours = run.load_model()(tokens).logits
    alone = run.load_model()(Tokens(tokens.ids[:1], *_alone_of(tokens))).logits
    # Not bit by bit: weights mapped from a file begin at other addresses, for which a matrix product may sum otherwise.
    torch.testing.assert_close(theirs(tokens.ids[:1]).logits, alone, rtol=0, atol=1e-6)
    ids, mask = on_the_left(tokens, real)
    torch.testing.assert_close(theirs(ids, attention_mask=mask.long()).logits[mask], ours[real])
    torch.testing.assert_close(theirs(tokens.ids, attention_mask=real.long()).logits[real], ours[real])
    holes = torch.tensor([[1, 0, 1, 1, 0, 1]])
    some = theirs(torch.tensor([[5, 9, 6, 7, 9, 8]]), attention_mask=holes).logits[:, holes[0] == 1]
    torch.testing.assert_close(some, theirs(torch.tensor([[5, 6, 7, 8]])).logits)
    kept = theirs(ids, attention_mask=mask, logits_to_keep=2).logits
    torch.testing.assert_close(kept, theirs(ids, attention_mask=mask).logits[:, -2:])


def _alone_of(tokens: Tokens) -> tuple[Tensor, Tensor]:
    return tokens.lengths[:1], tokens.example_indices[:1]


@torch.no_grad()
def test_generate_says_what_we_say_padded_alone_and_with_beams(pair: tuple[Run, Any]) -> None:
    run, theirs = pair
    tokens, real = ids_of()
    ours = greedy_decode(run.load_model(), tokens, 6, end_id=-1).ids
    ids, mask = on_the_left(tokens, real)
    how = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    assert torch.equal(theirs.generate(ids, attention_mask=mask.long(), **how)[:, 9:], ours)
    assert torch.equal(theirs.generate(tokens.ids, attention_mask=real.long(), **how)[:, 9:], ours)
    assert torch.equal(theirs.generate(tokens.ids[1:2, :4], **how)[:, 4:], ours[1:2])
    beams = [
        theirs.generate(ids, attention_mask=mask.long(), num_beams=3, use_cache=cached, **how)
        for cached in (True, False)
    ]
    assert torch.equal(*beams)


@torch.no_grad()
def test_a_model_in_bf16_is_near_and_generates(pair: tuple[Run, Any]) -> None:
    _, theirs = pair
    half = opened("exported", dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in half.parameters()} == {torch.bfloat16}
    ids = ids_of((9, 9))[0].ids
    exact, near = theirs(ids).logits, half(ids).logits
    assert near.dtype == torch.bfloat16
    assert (near.float() - exact).norm() < 0.1 * exact.norm()
    assert half.generate(ids, max_new_tokens=3, eos_token_id=None).shape == (2, 12)


@torch.no_grad()
def test_a_cache_may_be_continued_cut_reordered_and_outgrown(pair: tuple[Run, Any]) -> None:
    from numerate.integrations.hf_cache import NumerateCache

    _, theirs = pair
    ids = ids_of((9, 9, 9))[0].ids
    whole = theirs(ids).logits
    cache = NumerateCache(capacity=5)
    output = theirs(ids[:, :4], past_key_values=cache, use_cache=True)
    torch.testing.assert_close(output.logits, whole[:, :4])
    torch.testing.assert_close(theirs(ids[:, 4:7], past_key_values=cache).logits, whole[:, 4:7])
    cache.crop(2)
    rows = torch.tensor([2, 0, 0])
    for at in (5, 6, 7, 8):  # one behind the cut, and steps from there
        if at == 7:
            cache.reorder_cache(rows)
            ids, whole = ids[rows], whole[rows]
        torch.testing.assert_close(theirs(ids[:, at : at + 1], past_key_values=cache).logits, whole[:, at : at + 1])
    assert cache.get_seq_length() == 9
    assert cache.state is not None


def test_the_loss_over_labels_is_ours_and_goes_to_every_weight(pair: tuple[Run, Any]) -> None:
    run, theirs = pair
    batch = run.evaluation_data.batch(run.recipe.task.examples("train", 0, 0, 4))
    output = run.load_model()(batch.tokens)
    part = CrossEntropy().build(run.evaluation_data.vocabulary)
    ours = part(output, batch)["cross_entropy"] / part.counts(batch)["cross_entropy"]
    rows, time = batch.targets.shape
    ids, labels = torch.zeros(rows, time + 1, dtype=torch.int64), torch.full((rows, time + 1), -100)
    ids[:, :time], labels[:, 1:] = batch.tokens.ids, batch.targets
    mask = torch.arange(time + 1) < batch.tokens.lengths[:, None]
    output = theirs.train()(ids, attention_mask=mask, labels=labels)
    if run.recipe.model != DECODERS["abacus"]:  # whose offsets are drawn in training
        torch.testing.assert_close(output.loss, ours)
    torch.testing.assert_close(theirs.eval()(ids, attention_mask=mask, labels=labels).loss, ours)
    halved = theirs(ids, attention_mask=mask, labels=labels, num_items_in_batch=2 * batch.counts["tokens"]).loss
    torch.testing.assert_close(halved, ours / 2)
    output.loss.backward()
    assert all(one.grad is not None for one in theirs.parameters() if one.requires_grad)


def test_shared_weights_are_saved_once_and_stay_shared() -> None:
    run = run_of(recipe_of())
    model = opened(export(run, "exported"))
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    from safetensors.torch import load_file

    stored = load_file("exported/model.safetensors")
    assert "model.embedding.weight" in stored
    assert "model.head.weight" not in stored
    model.save_pretrained("again", max_shard_size="4KB")
    assert len(list(Path("again").glob("*.safetensors"))) > 1
    for name, weight in opened("again").state_dict().items():
        assert torch.equal(weight, model.state_dict()[name]), name
    for name, weight in import_folder("again").load_model().state_dict().items():
        assert torch.equal(weight, model.model.state_dict()[name]), name


def test_a_folder_whose_weights_are_not_all_taken_is_not_imported(capsys: pytest.CaptureFixture[str]) -> None:
    from safetensors.torch import load_file, save_file

    export(run_of(recipe_of()), "exported")
    whole = load_file("exported/model.safetensors")
    symbols = "model.backbone.blocks.1.mixer.symbols.symbol_library"
    for name, value, message in (
        ("model.head.weight", whole["model.embedding.weight"] + 1, "head.weight differs from embedding.weight"),
        (symbols, whole[symbols] + 1, "blocks.1.mixer.symbols.symbol_library differs from backbone.blocks.0"),
        ("final_norm.weight", whole["model.final_norm.weight"] + 1, "final_norm.weight differs from"),
        ("model.adapter.lora_A", torch.ones(2), "the model does not have adapter.lora_A"),
    ):
        save_file({**whole, name: value}, "exported/model.safetensors", metadata={"format": "pt"})
        assert main(["import", "exported"]) == 2
        assert message in capsys.readouterr().err
    ids = torch.tensor([[5, 9, 6, 7]])
    save_file(whole, "exported/model.safetensors", metadata={"format": "pt"})
    save_file({"ids": ids, "logits": opened("exported")(ids).logits.detach()}, "logits.safetensors")
    assert main(["import", "exported", "check=logits.safetensors", "name=same"]) == 0
    assert main(["import", "exported", "check=logits.safetensors", "model.mixer.symbols.num_heads=2"]) == 2
    assert "logits differ from logits.safetensors" in capsys.readouterr().err


def test_offsets_are_drawn_in_training_and_never_in_evaluation() -> None:
    model = opened(export(run_of(recipe_of(DECODERS["abacus"])), "exported"))
    ids = ids_of((9,))[0].ids
    exact = model(ids).logits
    assert torch.equal(model(ids).logits, exact)
    drawn = [model.train()(ids).logits for _ in range(4)]
    assert not all(torch.equal(one, exact) for one in drawn)
    assert torch.equal(model.eval()(ids).logits, exact)


TEXTS = ["12+34=", "1+2=\n", "7?é=", ""]


@pytest.mark.parametrize("begin", [False, True])
def test_the_tokenizer_of_characters_and_words_gives_our_ids(begin: bool) -> None:
    from numerate.integrations.hf_tokenizers import to_fast_tokenizer

    for tokenizer, texts in (
        (Characters(add_bos_token=begin), TEXTS),
        (Words(add_bos_token=begin), ["a 12 b", "a  zz b", ""]),
    ):
        task = Arithmetic()
        vocabulary = tokenizer.build_vocabulary(task if isinstance(tokenizer, Characters) else ["a", "12", "b"])
        theirs = to_fast_tokenizer(tokenizer, task, vocabulary)
        theirs.save_pretrained("tokenizer")
        theirs = transformers.AutoTokenizer.from_pretrained("tokenizer")
        for text in texts:
            ids = tokenizer.encode(text, vocabulary)
            assert theirs(text)["input_ids"] == [2] * begin + ids, text
            known = [i for i in ids if i != 1]
            assert theirs.decode([*known, 3, 0], skip_special_tokens=True) == tokenizer.decode(known, vocabulary)
        padded = theirs(["1+2=", "12"], padding=True)
        assert [theirs.pad_token_id, theirs.bos_token_id, theirs.eos_token_id, theirs.unk_token_id] == [0, 2, 3, 1]
        assert isinstance(tokenizer, Words) or padded["attention_mask"][1][:2] == [0, 0]


def test_a_decoder_of_subwords_is_exported_with_its_tokenizer_and_comes_back() -> None:
    tokenizer = Subwords("characters", Groups(3, "right"), add_bos_token=True)
    run = run_of(recipe_of(Decoder(hidden_size=16, mixer=Attention(num_heads=2)), tokenizer=tokenizer))
    export(run, "exported")
    theirs = transformers.AutoTokenizer.from_pretrained("exported")
    ids = torch.tensor([[2, *tokenizer.encode("12345+6=", run.evaluation_data.vocabulary)]])
    assert theirs("12345+6=", return_tensors="pt")["input_ids"].tolist() == ids.tolist()
    logits = run.load_model()(Tokens(ids, torch.tensor([ids.shape[1]]), torch.tensor([0]))).logits
    torch.testing.assert_close(opened("exported")(ids).logits, logits, rtol=0, atol=1e-5)
    assert import_folder("exported").evaluation_data.vocabulary.tokens == run.evaluation_data.vocabulary.tokens


def test_language_modeling_takes_its_stored_tokenizer_along_and_ends_where_a_document_begins(tmp_path: Path) -> None:
    story = "Once upon a time there was a cat. " * 20
    stored = save_vocabulary(train_vocabulary(lambda: [story], 280, allow_fewer=True), tmp_path / "stored")
    Path("text.txt").write_text(story)
    task = LanguageModeling(train="text.txt", tokenizer=str(stored), context_length=16)
    recipe = recipe_of(DECODERS["dual_attention"], task=task, tokenizer=TokenIds(), layout=NextToken())
    model = opened(export(run_of(recipe), "exported"))
    theirs, ours = transformers.AutoTokenizer.from_pretrained("exported"), task.load_tokenizer()
    for text in ("Once upon a time", "a café, 12!", ""):
        assert theirs(text)["input_ids"] == [ours.document_start_id, *ours.encode([text])[0]]
        assert theirs.decode(theirs(text)["input_ids"], skip_special_tokens=True) == text
    assert model.generation_config.eos_token_id == [1, 2]
    assert (theirs.bos_token, theirs.eos_token, theirs.model_max_length) == ("<s>", "</s>", 16)
    batch = theirs(["Once", "Once upon a time"], return_tensors="pt", padding=True)
    assert model.generate(**batch, max_new_tokens=2, eos_token_id=None).shape[1] == batch["input_ids"].shape[1] + 2
    assert import_folder("exported").recipe.task == task
    stored.rename(tmp_path / "moved")
    with pytest.raises(UserError, match="stored"):
        import_folder("exported")
    moved = import_folder("exported", settings=["task.tokenizer=exported"])
    assert torch.equal(moved.load_model().state_dict()["embedding.weight"], model.model.embedding.weight)


def _changed(change: Callable[[dict[str, Any]], Any]) -> None:
    file = Path("exported/config.json")
    config = json.loads(file.read_text())
    change(config)
    file.write_text(json.dumps(config))


def test_the_card_has_metadata_results_with_intervals_and_what_it_takes_to_run_it_again() -> None:
    recipe = small("training.steps=2 evaluation.grid=1:2x1:2 evaluation.examples_per_cell=4 name=adder")
    numerate.train(recipe, quiet=True).evaluate()
    assert main(["export", "adder", "out=exported", "license=apache-2.0"]) == 0
    card = Path("exported/README.md").read_text()
    assert card.startswith("---\nlicense: apache-2.0\nlibrary_name: ")
    assert "pipeline_tag: text-generation\ntags:\n- numerate\n---\n\n# exported\n" in card
    assert 'folder = "exported"' in card
    assert "step 2 of a run of numerate" in card
    assert re.search(r"\| adder \| [\d.]+ \[[\d., ]+\] \|", card)
    assert "| task.digits | 1:3 |" in card
    assert "@inproceedings{mcleish2024transformers," in card


def test_what_cannot_be_exported_is_refused_with_the_reason_and_nothing_is_left() -> None:
    from numerate.integrations.hf_tokenizers import to_fast_tokenizer

    run = run_of(recipe_of())
    export(run, "exported")
    export(run, "bare", tokenizer=False)
    assert not Path("bare/tokenizer.json").exists()
    before = sorted(Path().iterdir())
    with pytest.raises(UserError, match="out: exported: already exists"):
        export(run, "exported")
    with pytest.raises(UserError, match="layout TokenClassification"):
        export(run_of(recipe_of(layout=TokenClassification())), "labels")
    spec = run_of(recipe_of(title="kept"))
    object.__setattr__(spec.recipe, "model", Numformer())
    with pytest.raises(UserError, match="Numformer is not a causal decoder of numerate; the model must be a Decoder"):
        export(spec, "held")
    for tokenizer in (Subwords("characters", XVal()), Subwords("characters", vocabulary="occurring")):
        with pytest.raises(UserError, match=r"Subwords of Arithmetic cannot be written.*tokenizer=false"):
            to_fast_tokenizer(tokenizer, Arithmetic(), tokenizer.build_vocabulary(Arithmetic()))
    with pytest.raises(UserError, match="no checkpoint of step 500"):
        export(run, "step", checkpoint_name="500")
    assert main(["export", str(run.path)]) == 2
    with pytest.raises(UserError, match="`numerate import exported` imports it"):
        numerate.load("exported")
    assert sorted(Path().iterdir()) == before


def test_an_export_that_fails_midway_leaves_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    from numerate.integrations.hf_decoder import NumerateForCausalLM

    run = run_of(recipe_of())

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(NumerateForCausalLM, "save_pretrained", full)
    with pytest.raises(Exception, match="disk is full"):
        export(run, "exported")
    assert [path.name for path in Path().iterdir()] == ["runs"]


def test_what_is_no_folder_of_ours_is_not_imported() -> None:
    export(run_of(recipe_of()), "exported")
    with pytest.raises(UserError, match=r"no config\.json"):
        import_folder("nowhere")
    Path("adapter").mkdir()
    Path("adapter/adapter_config.json").write_text("{}")
    with pytest.raises(UserError, match="merge_and_unload"):
        import_folder("adapter")
    _changed(lambda config: config["recipe"]["model"].update(hidden_size=32))
    with pytest.raises(UserError, match=r"embedding\.weight has the shape"):
        import_folder("exported")
    _changed(lambda config: config["recipe"]["model"].update(hidden_size=16))
    _changed(lambda config: config["recipe"]["tokenizer"].update(vocabulary="index"))
    with pytest.raises(
        UserError, match="was exported with a vocabulary different from the one its Arithmetic has here"
    ):
        import_folder("exported")
    _changed(lambda config: config.pop("step"))
    with pytest.raises(UserError, match=r"config\.json: has no step beside the recipe"):
        import_folder("exported")
    _changed(lambda config: (config.pop("recipe"), config.update(model_type="llama")))
    with pytest.raises(UserError, match="'llama'"):
        import_folder("exported")
    assert len(list(Path("runs/small").iterdir())) == 1


def test_weights_of_the_published_code_become_a_run_of_a_recipe_with_their_architecture() -> None:
    spec = published(hidden_size=16, num_layers=2, num_self_heads=2, num_relational_heads=2, context_length=32)
    recipe = recipe_of(spec, title="theirs")
    run = run_of(recipe)
    torch.save({"model": to_published(run.load_model().state_dict(), spec), "iter_num": 5}, "ckpt.pt")
    found = import_published("ckpt.pt", recipe, name="published")
    for name, weight in found.load_model().state_dict().items():
        assert torch.equal(weight, run.load_model().state_dict()[name]), name
    assert numerate.load("published").path == found.path
    with pytest.raises(UserError, match=r"ckpt\.pt: has no blocks\.2\.norm1\.weight"):
        import_published(
            "ckpt.pt", recipe_of(published(hidden_size=16, num_layers=3, num_self_heads=2, num_relational_heads=2))
        )
    Path("torn.pt").write_bytes(Path("ckpt.pt").read_bytes()[:500])
    with pytest.raises(UserError, match=r"torn\.pt: cannot be read as weights"):
        import_published("torn.pt", recipe)
    Path("readme.pt").write_text("numbers")
    with pytest.raises(UserError, match=r"not written by torch\.save") as error:
        import_published("readme.pt", recipe)
    assert "weights_only" not in str(error.value)  # no word on how to run what a pickle holds


def test_what_a_model_cannot_take_is_refused_and_not_ignored() -> None:
    run = run_of(recipe_of())
    model = opened(export(run, "exported"))
    ids = torch.tensor([[5, 6, 7]])
    for given, message in (
        ({"position_ids": torch.arange(3)[None]}, "position_ids"),
        ({"output_attentions": True}, "output_attentions"),
        ({"attention_mask": torch.zeros(1, 3)}, "every row must have at least one token"),
        ({"attention_mask": torch.ones(1, 2)}, r"\(1, 3\)"),
        ({"past_key_values": transformers.DynamicCache()}, "DynamicCache"),
    ):
        with pytest.raises(UserError, match=message):
            model(ids, **given)
    with pytest.raises(UserError, match="resize_token_embeddings"):
        model.resize_token_embeddings(500)
    assert model(ids, return_dict=False)[0].shape == (1, 3, run.evaluation_data.vocabulary.size)
    assert model(ids, output_attentions=False).past_key_values is None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_the_page_runs_as_it_stands() -> None:
    pytest.importorskip("accelerate", reason="the extra finetune: Hugging Face's Trainer needs it")
    run_of(recipe_of())
    assert main(["export", "latest", "out=exported"]) == 0
    names: dict[str, Any] = {}
    for code in examples_of("hugging-face.md"):
        exec(compile(code, "docs/hugging-face.md", "exec"), names)
    assert len(names["outputs"]) == 2
    assert main(["import", "finetuned", "name=finetuned"]) == 0
    assert main(["ask", "finetuned", "1+2="]) == 0
