"""Promises of encoder-decoders other than T5: texts, losses and gradients of transformers, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from hugging_face import QUIET, byte_tokenizer, generate, transformers, until
from numerate.api import recipe
from numerate.batch import Batch, Tokens
from numerate.errors import UserError
from numerate.evaluation.evaluation_data import EvaluationData, extract_prompts
from numerate.evaluation.generate import greedy_decode
from numerate.evaluation.kinds.generated_answers import generate_texts
from numerate.integrations.hf_pretrained import write_pretrained_folder
from numerate.runs.pretrained_run import pretrained_run
from numerate.tasks.texts import Example
from numerate.text.models.pretrained_seq2seq import PretrainedSeq2Seq
from numerate.tokenizers.layout import Seq2Seq
from numerate.vocabulary import EOS, PAD, Vocabulary
from oracle import read_again

pytestmark = QUIET

PARTS = {
    f"{part}_{name}": size
    for part in ("encoder", "decoder")
    for name, size in (("layers", 2), ("attention_heads", 2), ("ffn_dim", 16))
}
BART = {"d_model": 16, "max_position_embeddings": 64, **PARTS}
SIDES = {f"max_{part}_position_embeddings": 64 for part in ("encoder", "decoder")}
LED = {"d_model": 16, "attention_window": 4, **SIDES, **PARTS}
MT5 = {"d_model": 16, "num_layers": 2, "num_heads": 2, "d_kv": 8, "d_ff": 16}
KINDS: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "bart": ({**BART, "decoder_start_token_id": 2}, "<s> $0 </s>", {"forced_bos_token_id": 1}),
    "led": ({**LED, "decoder_start_token_id": 2}, "<s> $0 </s>", {}),
    "mt5": ({**MT5, "decoder_start_token_id": 0}, "$0 </s>", {}),
    "umt5": ({**MT5, "decoder_start_token_id": 0, "tie_word_embeddings": True}, "$0 </s>", {}),
    "marian": ({**BART, "decoder_start_token_id": 0, "decoder_vocab_size": 260}, "$0 </s>", {"bad_words_ids": [[0]]}),
    "pegasus": ({**BART, "decoder_start_token_id": 0, "scale_embedding": True}, "$0 </s>", {}),
    "blenderbot": ({**BART, "decoder_start_token_id": 1}, "$0 </s>", {}),
}
"""Configurations, which tokens stand around a text, and what the generation configuration says."""

EXAMPLES = [Example("12+345=", "357"), Example("1+2=", "3"), Example("What is 40 less 8?", "It is 32.")]


def save(folder: Path, kind: str) -> Path:
    """A folder of a random model with its tokenizer. Weights are large, those of norms too, so that answers differ."""
    from tokenizers.processors import TemplateProcessing

    settings, around, generation = KINDS[kind]
    tokenizer = byte_tokenizer("<unk>")
    special_tokens = [("<s>", 1), ("</s>", 2)]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=around, special_tokens=special_tokens)
    config = transformers.AutoConfig.for_model(
        kind, vocab_size=260, pad_token_id=0, bos_token_id=1, eos_token_id=2, forced_eos_token_id=None, **settings
    )
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(3)
        model = transformers.AutoModelForSeq2SeqLM.from_config(config)
        for parameter in model.parameters():
            parameter.data.add_(0.5 * torch.randn_like(parameter))
        if kind == "marian":
            model.final_logits_bias.normal_()
    for name, value in generation.items():
        setattr(model.generation_config, name, value)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {kind: save(root / kind, kind) for kind in KINDS}


class Both:
    """A model of numerate and the same one of transformers, in double precision, with the same examples. An LED is in
    single precision: in double its gradients are NaN in transformers."""

    def __init__(self, folder: Path, *settings: str) -> None:
        self.recipe = recipe(f"hf:{folder}", "evaluation.generation.max_new_tokens=9", *settings)
        self.data = EvaluationData.from_recipe(self.recipe)
        self.dtype = torch.float32 if folder.name == "led" else torch.float64
        self.model: Any = self.recipe.model.build(self.data.vocabulary, 0).to(self.dtype).eval()
        rows = self.data.tokenizer.encode_examples(EXAMPLES, self.data.vocabulary)
        self.batch: Batch = self.data.layout.build_batch(rows, torch.arange(3).numpy())
        theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32)
        self.theirs = theirs.to(self.dtype).eval()
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.inputs = self.tokenizer([one.question for one in EXAMPLES], padding=True, return_tensors="pt")
        self.inputs = {name: self.inputs[name] for name in ("input_ids", "attention_mask")}
        answers = self.tokenizer(text_target=[one.answer for one in EXAMPLES], padding=True, return_tensors="pt")
        self.labels = answers["input_ids"].masked_fill(answers["attention_mask"] == 0, -100)
        self.ids = torch.from_numpy(self.data.vocabulary.pretrained_ids)
        """The row of each of our tokens in theirs."""

    def loss(self) -> torch.Tensor:
        logits = self.model(self.batch.tokens, self.batch.source, target_positions=self.batch.target_positions).logits
        return cross_entropy(logits.flatten(0, 1), self.batch.target_ids.flatten())


@pytest.fixture(params=KINDS)
def both(request: Any, folders: dict[str, Path]) -> Both:
    return Both(folders[request.param])


@torch.no_grad()
def test_greedy_texts_are_those_of_transformers_token_for_token(both: Both) -> None:
    expected, log_probabilities = generate(both.theirs, both.inputs, 9)
    prompts, _ = extract_prompts(both.batch)
    found = greedy_decode(both.model, prompts, 9, source=both.batch.source)
    assert [both.ids[until(row, EOS)].tolist() for row in found.ids.tolist()] == expected
    assert found.log_probability.tolist() == pytest.approx(log_probabilities, abs=1e-4)
    texts = both.tokenizer.batch_decode(expected, skip_special_tokens=True)
    answers = [line["prediction"] for line in generate_texts(both.model, both.data, both.batch)]
    assert [text.replace("[UNK]", "") for text in answers] == [text.strip() for text in texts]


@torch.no_grad()
def test_with_a_cache_it_decodes_as_without_where_nothing_is_forced(both: Both) -> None:
    spec = replace(both.model.spec, force_bos=False, suppress_pad=False)
    both.model.spec = spec
    prompts, _ = extract_prompts(both.batch)
    found = greedy_decode(both.model, prompts, 9, source=both.batch.source, end_id=-1)
    ids, log_probabilities, _ = read_again(both.model, prompts, 9, both.batch.source, end_id=-1)
    assert found.ids.tolist() == ids
    assert found.log_probability.tolist() == pytest.approx(log_probabilities, rel=1e-5)


@pytest.mark.parametrize("lora", [False, True], ids=["all weights", "lora"])
def test_loss_and_gradients_are_those_of_transformers_with_labels(both: Both, lora: bool) -> None:
    if lora:
        peft = pytest.importorskip("peft", reason="the extra finetune is not installed")
        both = Both(Path(both.recipe.model.weights), "lora=LoRA(r=2,alpha=4)")  # type: ignore[attr-defined]
        peft.inject_adapter_in_model(peft.LoraConfig(r=2, lora_alpha=4, target_modules="all-linear"), both.theirs)
        both.theirs.to(both.dtype)
        with torch.no_grad():
            for name, parameter in both.model.hf_model.named_parameters():
                if "lora_" in name:
                    parameter.normal_(0, 0.3, generator=torch.Generator().manual_seed(len(name)))
                    both.theirs.get_parameter(name).copy_(parameter)
    loss, expected = both.loss(), both.theirs(**both.inputs, labels=both.labels).loss
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    loss.backward()
    expected.backward()
    their_gradients = {name: parameter.grad for name, parameter in both.theirs.named_parameters()}
    compared = 0
    for name, parameter in both.model.hf_model.named_parameters():
        gradient = their_gradients[name]
        assert (parameter.grad is None) == (gradient is None), name
        if gradient is not None:
            known = both.ids >= 0
            is_table = len(parameter) == len(both.ids) and parameter.dim() == 2
            own = parameter.grad[known] if is_table else parameter.grad
            gradient = gradient[both.ids[known]] if is_table else gradient
            atol = 1e-9 if both.dtype == torch.float64 else 1e-4
            torch.testing.assert_close(own, gradient, rtol=1e-5, atol=atol)
            compared += 1
    assert compared > 20


def test_a_recipe_has_the_tokens_of_the_model(folders: dict[str, Path]) -> None:
    layouts = {kind: recipe(f"hf:{folder}").layout for kind, folder in folders.items()}
    with_bos = Seq2Seq(decoder_start_token="eos", answer_bos=True)
    assert layouts == {
        **dict.fromkeys(("mt5", "umt5", "marian", "pegasus"), Seq2Seq()),
        **dict.fromkeys(("bart", "led"), with_bos),
        "blenderbot": Seq2Seq(decoder_start_token="bos"),
    }
    models = {kind: recipe(f"hf:{folder}").model for kind, folder in folders.items()}
    assert [kind for kind, model in models.items() if model.force_bos] == ["bart"]  # type: ignore[attr-defined]
    assert [kind for kind, model in models.items() if model.suppress_pad] == ["marian"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("settings", "around", "generation"),
    [
        ({"decoder_start_token_id": 2}, "$0 </s>", {}),
        ({"decoder_start_token_id": 0}, "$0 </s>", {"forced_bos_token_id": 1}),
        ({"decoder_start_token_id": 0}, "$0", {}),
    ],
    ids=["begins with [EOS]", "forces [BOS]", "no [EOS] after a question"],
)
def test_a_t5_with_tokens_of_its_own_generates_what_it_does_in_transformers(
    settings: dict[str, int], around: str, generation: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(KINDS, "t5", ({**MT5, **settings}, around, generation))
    test_greedy_texts_are_those_of_transformers_token_for_token(Both(save(tmp_path / "t5", "t5")))


def test_few_shot_prompts_that_would_lose_their_question_are_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    rows = [{"question": f"What is {i} and {i}?", "answer": str(2 * i)} for i in range(20)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = f"task=QuestionFiles(train_file={tmp_path / 'rows.jsonl'})"
    both = recipe(f"hf:{folders['mt5']}", task, "tokenizer.max_length=60", "evaluation.generation.num_fewshot=4")
    with pytest.warns(UserWarning, match="lose their end"), pytest.raises(UserError, match="num_fewshot: must be less"):
        pretrained_run(both, runs_dir=tmp_path / "runs").evaluate()


def test_what_is_generated_first_may_stand_in_an_old_configuration(tmp_path: Path) -> None:
    folder = save(tmp_path / "bart", "bart")
    (folder / "generation_config.json").unlink()
    edit(folder / "config.json", forced_bos_token_id=1)
    assert recipe(f"hf:{folder}").model.force_bos  # type: ignore[attr-defined]


@torch.no_grad()
@pytest.mark.parametrize("kind", ["bart", "marian"])
def test_an_export_generates_what_the_original_does(kind: str, folders: dict[str, Path], tmp_path: Path) -> None:
    both = Both(folders[kind])
    write_pretrained_folder(tmp_path, both.model, both.data.vocabulary, None)
    exported = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path).to(both.dtype).eval()
    assert generate(exported, both.inputs, 9)[0] == generate(both.theirs, both.inputs, 9)[0]


def edit(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_models_that_cannot_be_decoded_are_refused(tmp_path: Path) -> None:
    folder = save(tmp_path / "bart", "bart")
    edit(folder / "generation_config.json", forced_bos_token_id=77)
    with pytest.raises(UserError, match=r"^hf:.*: its decoder generates first .*; only the tokens for beginning, end"):
        recipe(f"hf:{folder}")
    edit(folder / "generation_config.json", forced_bos_token_id=1, decoder_start_token_id=88)
    with pytest.raises(UserError, match=r"^hf:.*: its decoder begins an answer with "):
        recipe(f"hf:{folder}")
    other = save(tmp_path / "other", "bart")
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    tokenizer["post_processor"]["single"].append({"SpecialToken": {"id": "<s>", "type_id": 0}})
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(UserError, match=r"^hf:.*: its tokenizer makes '1' <s> 1 </s> <s>; around a text only "):
        recipe(f"hf:{other}")
    for kind, message in {
        "bert": "is a bert, an encoder that fills in masked tokens; only causal language models and encoder-decoders",
        "whisper": "is a whisper, which is neither a causal language model nor an encoder-decoder of text",
        "clip": "is a clip, which is neither",
        "llava": "is a llava, which is neither",
    }.items():
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
        with pytest.raises(UserError, match=f"^hf:.*: {message}"):
            recipe(f"hf:{tmp_path}")


def test_configurations_of_other_models_are_refused(vocabulary: Vocabulary) -> None:
    sizes = {f"num_{part}_{name}": 2 for part in ("encoder", "decoder") for name in ("layers", "attention_heads")}
    for kind, message in {
        "prophetnet": "the logits of a prophetnet are not a linear function",
        "llama": "is no configuration of an encoder-decoder",
    }.items():
        config = json.dumps({"model_type": kind, "hidden_size": 64, **sizes})
        with pytest.raises(UserError, match=rf"^model.*{message}"):
            PretrainedSeq2Seq(config=config).build(vocabulary, 0)


def test_an_encoder_and_a_decoder_with_vocabularies_of_their_own_are_refused(tmp_path: Path) -> None:
    settings = {**KINDS["marian"][0], "decoder_vocab_size": 300, "share_encoder_decoder_embeddings": False}
    folder = save(tmp_path / "marian", "marian")
    config = transformers.MarianConfig(vocab_size=260, pad_token_id=0, eos_token_id=2, **settings)
    transformers.MarianMTModel(config).save_pretrained(folder)
    found = recipe(f"hf:{folder}")
    with pytest.raises(UserError, match=r"^model\.weights: a marian whose embeddings and head have different numbers"):
        found.model.build(EvaluationData.from_recipe(found).vocabulary, 0)


def test_more_tokens_than_positions_are_refused(folders: dict[str, Path]) -> None:
    both = Both(folders["bart"])
    long = Tokens(torch.full((1, 65), 5), torch.tensor([65]), torch.arange(1))
    short = Tokens(torch.full((1, 1), PAD), torch.ones(1, dtype=torch.long), torch.arange(1))
    for part, refuse in {
        "encoder": lambda: both.model(short, long),
        "decoder": lambda: both.model.check_tokens(long),
    }.items():
        with pytest.raises(UserError, match=f"^model: 65 tokens are more than the 64 positions of the {part}"):
            refuse()
    assert both.model.max_length() == 64
    assert both.recipe.tokenizer.max_length == 62  # type: ignore[attr-defined]
