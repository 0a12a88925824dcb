"""The published models of dual attention: their numbers of parameters, their cases, and their weights here and back."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from layers import published_tensor
from numerate.batch import Model, StepContext, Tokens
from numerate.config import override
from numerate.errors import UserError
from numerate.mixers.mixer import Context
from numerate.models.block import FeedForward
from numerate.models.decoder import Decoder
from numerate.models.initialization import Normal, TorchDefault
from numerate.positions.rotary import Rotary
from numerate.published.dual_attention_models import corrected, current, published
from numerate.published.dual_attention_weights import from_published, to_published
from numerate.published.tiny_names import RUNS, presets
from numerate.training.optimizer import AdamW
from numerate.training.recipe import Recipe
from numerate.vocabulary import Vocabulary

SMALL: dict[str, Any] = {
    "hidden_size": 16,
    "num_layers": 2,
    "num_self_heads": 2,
    "num_relational_heads": 2,
    "context_length": 8,
}
PLAIN = SMALL | {"num_self_heads": 4, "num_relational_heads": 0}
MODELS: dict[str, Decoder] = {
    "lm_transformer_rope": current(**PLAIN),
    "lm_transformer_pos_emb": current(**PLAIN, positions="learned"),
    "lm_dat_symbolic": current(**SMALL),
    "legacy_lm_transformer": published(**PLAIN),
    "legacy_lm_dat_symbolic": published(**SMALL),
}
"""The cases of whole models, with what each is here."""


def cases(shared: Path) -> dict[str, Any]:
    published, of_2024 = (
        json.loads((shared / "cases" / name).read_text())
        for name in ("dual_attention.json", "dual_attention_2024.json")
    )
    return {case["name"]: case for case in published["cases"] + of_2024["cases"]} | {"runs": published["reported_runs"]}


def vocabulary_of(size: int) -> Vocabulary:
    return Vocabulary.with_digits([f"piece {number}" for number in range(size - 14)])


LARGE = vocabulary_of(32_000)


def count(spec: Decoder) -> int:
    """Parameters with 32,000 tokens, a frozen library among them, as the published code counts."""
    model = spec.build_on_meta(LARGE, 0)
    frozen = {id(part): part for name, part in model.named_buffers() if name.endswith("symbols.symbol_library")}
    return sum(part.numel() for part in (*model.parameters(), *frozen.values()))


def loaded(case: Any, spec: Decoder) -> tuple[Model, dict[str, Tensor]]:
    """The model with the weights of a case, without dropout, and those weights."""
    weights = {name: published_tensor(**how) for name, how in case["weights"].items()}
    model = spec.build(vocabulary_of(case["config"]["vocab_size"]), 0).double().eval()
    model.load_state_dict(from_published(weights, spec))
    return model, weights


def loss_of(model: Model, case: Any) -> tuple[Tensor, Tensor]:
    ids, targets = (torch.tensor(case["inputs"][name]) for name in ("idx", "targets"))
    tokens = Tokens(ids, torch.full((len(ids),), ids.shape[1]), torch.arange(len(ids)))
    logits = model(tokens).logits
    return logits, nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)


# Cases ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_a_model_says_what_the_published_one_says(shared: Path, name: str) -> None:
    case = cases(shared)[name]
    model, _ = loaded(case, MODELS[name])
    logits, loss = loss_of(model, case)
    expected = case["expected"]
    assert sum(part.numel() for part in model.parameters()) == expected["n_params"]
    torch.testing.assert_close(logits, torch.tensor(expected["logits"], dtype=torch.float64), atol=5e-6, rtol=0)
    assert loss.item() == pytest.approx(expected["loss"], abs=5e-6)
    if "perplexity" in expected:
        assert loss.exp().item() == pytest.approx(expected["perplexity"], abs=5e-4)


LEARNING = [name for name in MODELS if name.startswith("lm_")]


@pytest.mark.parametrize("name", LEARNING)
def test_a_model_learns_as_the_published_one_learns(shared: Path, name: str) -> None:
    case, spec = cases(shared)[name], MODELS[name]
    expected = case["expected"]
    model, weights = loaded(case, spec)
    loss_of(model, case)[1].backward()
    # A head that is the embedding's has the gradient of both.
    gradients = {own: part.grad for own, part in model.named_parameters(remove_duplicate=False)}
    theirs = to_published(gradients, spec)  # type: ignore[arg-type]
    for own, norm in expected["grad_norms"].items():
        assert theirs[own].norm().item() == pytest.approx(norm, abs=5e-6), own
    settings = model.optimizer_options_by_parameter()
    decay = {part: published_tensor([1], 0, 0.0, float(settings[part][1])) for part in settings}
    decaying = [own for own in weights if weights[own].dim() >= 2]
    spread = to_published(
        {own: decay[_first(model, own)].expand(tensor.shape) for own, tensor in model.state_dict().items()}, spec
    )
    assert [own for own in weights if bool(spread[own].all())] == decaying
    assert len(decaying) == expected["decay_tensors"]
    assert len(weights) - len(decaying) == expected["nodecay_tensors"]
    total = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    assert total.item() == pytest.approx(expected["total_grad_norm"], abs=5e-6)
    AdamW(learning_rate=1e-2, betas=(0.9, 0.95), weight_decay=0.1).build(model, settings).step()
    assert loss_of(model, case)[1].item() == pytest.approx(expected["loss_after_one_adamw_step"], abs=5e-6)


def _first(model: Model, name: str) -> str:
    """The name under which `named_parameters` has a parameter that layers, or head and embedding, share."""
    first = {id(part): own for own, part in model.named_parameters()}
    return first[id(dict(model.named_parameters(remove_duplicate=False))[name])]


@pytest.mark.parametrize("name", LEARNING)
def test_a_model_goes_on_as_the_published_one_goes_on(shared: Path, name: str) -> None:
    case = cases(shared)[name]
    model, _ = loaded(case, MODELS[name])
    expected = list(case["expected"]["greedy_from_1_5"])
    held, lengths = torch.tensor([expected[:2]]), torch.tensor([2])
    started = model.prefill(Tokens(held, lengths, torch.arange(1)), capacity=len(expected))
    found = expected[:2]
    with torch.no_grad():
        while len(found) < len(expected):
            found.append(int(started.output.logits[0, -1].argmax()))
            started = model.step(torch.tensor(found[-1:]), None, started.state)
    assert found == expected


def test_today_s_code_begins_with_the_published_spreads(shared: Path) -> None:
    expected = cases(shared)["init_std_current_code"]["expected"]
    spec = current(hidden_size=128, num_layers=6)
    begun = to_published(spec.build(vocabulary_of(200), 0).state_dict(), spec)
    for name, spread in expected.items():
        room = 0.3 if name.endswith("wr") else 0.06
        assert begun[f"layers.{name}"].std().item() == pytest.approx(spread, rel=room, abs=5e-4), name


def test_layers_that_share_the_library_say_what_the_published_ones_say() -> None:
    """Expected: the package dual-attention 0.0.7 with `weight_tie_symbol_library`, weights by the cases' formula."""
    spec = current(**SMALL, symbol_sharing="library")
    model = spec.build(vocabulary_of(23), 0).double().eval()
    shapes = {name: tensor.shape for name, tensor in to_published(model.state_dict(), spec).items()}
    names = sorted(shapes.keys() - {"layers.final_out.weight", "layers.symbol_retrievers.1.symbol_library"})
    weights = {
        name: published_tensor(
            list(shapes[name]), salt, *((0.1, 1.0) if "norm" in name and name.endswith("weight") else (0.2, 0.0))
        )
        for salt, name in enumerate(names)
    }
    model.load_state_dict(from_published(weights, spec))
    ids = torch.tensor([[1, 5, 9, 2, 22, 7], [3, 3, 0, 14, 8, 11]])
    logits = model(Tokens(ids, torch.tensor([6, 6]), torch.arange(2))).logits[:, -1, :6]
    expected = [
        [-0.35072442, -0.55341375, -0.49582395, -0.20504040, 0.18217686, 0.48371349],
        [-1.16427726, -0.82933138, -0.10433799, 0.66972718, 1.12880920, 1.05699461],
    ]
    torch.testing.assert_close(logits, torch.tensor(expected, dtype=torch.float64), atol=5e-6, rtol=0)


# Numbers of parameters -----------------------------------------------------------------------------------------------


def test_the_three_models_have_their_numbers_of_parameters() -> None:
    assert [count(made()) for made in (published, current, corrected)] == [4_488_256, 2_325_264, 2_323_648]
    eight = {"num_self_heads": 8, "num_relational_heads": 0}
    assert [count(made(**eight)) for made in (published, current, corrected)] == [4_391_168, 2_245_248, 2_245_248]


def test_every_published_run_has_its_number_of_parameters(shared: Path) -> None:
    """But one of the first days: the Transformer 512 wide has 32,768 more, as many as its table of rotary angles."""
    runs = cases(shared)["runs"]
    assert len(runs) == 57 == sum(run.num_runs for run in RUNS)
    counts = {run.name: count(published(**run.model_arguments())) for run in RUNS}
    kinds = {"standard": "rca", "disentangled_v1": "disrca"}
    symbols = {"sym_attn": "symbolic", "pos_relative": "position_relative"}
    found = set()
    for reported in runs:
        suffix = [symbols[reported["symbols"]]] if reported["ra"] else []
        suffix += [kinds[reported["kind"]]] if reported["kind"] in kinds else []
        suffix += (
            ["symmetric"]
            if reported["ra"] and reported["symmetric"] == "True" and reported["kind"] != "standard"
            else []
        )
        suffix += ["frozen"] if reported["trainable"] == "False" else []
        # Runs that do not say have the default, which is the cosine.
        suffix += ["cosine"] if reported["lr"] == 5e-4 and reported["cosine"] in ("", "1") else []
        name = "_".join([f"d{reported['d_model']}_l{reported['n_layers']}_{reported['sa']}+{reported['ra']}", *suffix])
        more = 32_768 if name == "d512_l8_8+0_cosine" else 0
        assert counts[name] + more == reported["n_params"], name
        ends = 32_000 * (2 * reported["d_model"] + 1)
        assert counts[name] + more - ends == reported["n_params_wo_embedding_and_head"], name
        run = next(run for run in RUNS if run.name == name)
        assert (run.micro_batch_size, run.gradient_accumulation_steps, run.learning_rate) == (
            reported["batch"],
            reported["accum"],
            reported["lr"],
        )
        found.add(name)
    assert found == set(counts)


# Weights here and back -----------------------------------------------------------------------------------------------

SPECS = {
    "learned positions and symbols": published(**SMALL, symbols="positional", positions="learned"),
    "distances, symmetric": published(**SMALL, symbols="position_relative", symmetric=True),
    "own symbols, grouped": current(**SMALL, symbol_sharing="own", num_key_value_heads=1, num_relations=4),
    "shared library, queries": current(**SMALL, symbol_sharing="library", shared_queries=True, activation="gelu"),
    "rca": corrected(**SMALL, variant="rca", norm="rms", trainable_symbols=False),
    "disrca": corrected(**SMALL, variant="disrca", norm_first=False),
    "grouped transformer": current(**(PLAIN | {"num_key_value_heads": 2})),
}


@pytest.mark.parametrize("name", SPECS)
def test_weights_go_there_and_back(name: str) -> None:
    spec = SPECS[name]
    before = spec.build(vocabulary_of(23), 3).state_dict()
    there = to_published(before, spec)
    for prefix in ("module._orig_mod.", "_orig_mod.module.", ""):
        back = from_published({prefix + name: tensor for name, tensor in there.items()}, spec)
        assert set(back) == set(before)
        assert all(torch.equal(back[own], tensor) for own, tensor in before.items())


def test_weights_that_do_not_fit_are_refused(shared: Path) -> None:
    case, spec = cases(shared)["lm_dat_symbolic"], MODELS["lm_dat_symbolic"]
    weights = {name: published_tensor(**how) for name, how in case["weights"].items()}
    without = {name: tensor for name, tensor in weights.items() if not name.endswith("0.norm1.bias")}
    with pytest.raises(UserError, match=r"has no blocks\.0\.norm1\.bias, which backbone\.blocks\.0\.mixer_norm"):
        from_published(without, spec)
    for more in ("more.weight", "freqs_cos"):
        with pytest.raises(UserError, match=rf"the model does not have {more}"):
            from_published(weights | {f"layers.{more}": torch.zeros(1)}, spec)
    with pytest.raises(UserError, match="has 42 rows, the model 64"):
        from_published(weights, override(Recipe(model=spec), ["model.feed_forward.intermediate_size=64"]).model)  # type: ignore[arg-type]
    for positions in ((), (Rotary(base=500.0),), (Rotary(partial_rotary_factor=0.5),)):
        with pytest.raises(UserError, match=r"positions: one, Rotary\(base=10000\) of whole heads or Learned"):
            from_published(weights, replace(spec, positions=positions))
    name = "layers.blocks.0.dual_attn.self_attention.wq.weight"
    with pytest.raises(UserError, match=r"self_attention\.wq\.weight and \S+wq_attn\.weight have rows of different"):
        from_published(weights | {name: weights[name][:, :8]}, spec)
    with pytest.raises(UserError, match=r"self_attention\.wq\.weight is a single number"):
        from_published(weights | {name: torch.tensor(1.0)}, spec)
    held = from_published(weights | {"layers.final_out.weight": weights["layers.token_embedder.weight"]}, spec)
    assert torch.equal(held["head.weight"], held["embedding.weight"])


# What is only true of these settings ---------------------------------------------------------------------------------


def test_presets_are_settings_that_can_be_changed_and_crossed() -> None:
    assert len(presets()) == 3 * 48
    made: Any = override(
        Recipe(), ["model=tiny-published-d64-l4-4+4-symbolic(tie_word_embeddings=true)", "model.final_norm=true"]
    )
    assert (made.model.tie_word_embeddings, made.model.final_norm, made.model.mixer.relation_dim) == (True, True, 16)
    with pytest.raises(UserError, match=r"^arguments of published models: must be one of .*, not "):
        published(heads_self=3)
    with pytest.raises(UserError, match=r"num_relations: must divide hidden_size \(64\), not 3"):
        published(num_relations=3)


def test_gelu_has_its_approximation_by_a_hyperbolic_tangent() -> None:
    part = FeedForward("gelu", intermediate_size=8, gelu_approximate="tanh").build(8)
    x = torch.linspace(-3, 3, 8)[None, None]
    expected = part.out_proj(nn.functional.gelu(part.in_proj(x), approximate="tanh"))
    assert torch.equal(part(x), expected)


def test_torch_s_own_initialisation_draws_biases_too(vocabulary: Vocabulary) -> None:
    spec = Decoder(hidden_size=64, head_bias=True, initialization=TorchDefault(), mixer=published().mixer)
    model: Any = spec.build(vocabulary, 0)
    fed, mixer = model.backbone.blocks[0].feed_forward, model.backbone.blocks[0].mixer
    for bias, reads in ((fed.in_proj.bias, 64), (fed.out_proj.bias, 256), (mixer.q_proj.weight, 64)):
        assert bias.abs().max() <= reads**-0.5
        assert bias.std().item() == pytest.approx((3 * reads) ** -0.5, rel=0.15)
    assert mixer.relation_proj.weight.abs().max() <= (8 * 4) ** -0.5
    assert model.embedding.weight.std().item() == pytest.approx(1.0, rel=0.1)


def test_the_corrected_model_begins_with_symbols_that_differ_from_token_to_token() -> None:
    """Today's code begins with one symbol for all tokens; the published numbers' with 0.03 between them."""
    spread = {}
    for name, made in (("published", published), ("current", current), ("corrected", corrected)):
        model: Any = made(num_layers=1, dropout=0.0).build(vocabulary_of(500), 0)
        x, block = model.embedding(torch.arange(400)[None]), model.backbone.blocks[0]
        context = Context(torch.tensor([400]), (torch.arange(400)[None],), residual=x)
        spread[name] = block.mixer.symbols(block.mixer_norm(x), context)[0].std(0).mean().item()
    assert spread["current"] < 0.001
    assert min(spread["published"], spread["corrected"]) > 0.02


def test_the_corrected_model_s_output_maps_begin_small_and_its_gates_do_not() -> None:
    for made, small in ((current, "gated"), (corrected, "out")):
        fed = made(hidden_size=128, num_layers=6).build(vocabulary_of(50), 0).backbone.blocks[0].feed_forward  # type: ignore[operator]
        gate, gated = fed.in_proj.weight.chunk(2)
        spreads = {"gate": gate.std(), "gated": gated.std(), "out": fed.out_proj.weight.std()}
        for name, spread in spreads.items():
            assert spread.item() == pytest.approx(0.02 * 12**-0.5 if name == small else 0.02, rel=0.05)
    assert Normal() == Normal(residual_count="maps", scaled_projection="out")


@pytest.mark.parametrize(("made", "dropped"), [(current, 0.75), (corrected, 0.5)])
def test_attention_s_output_is_dropped_of_twice_as_published_and_once_as_mended(
    made: Callable[..., Decoder], dropped: float
) -> None:
    model: Any = made(hidden_size=64, num_layers=1, dropout=0.5, num_self_heads=8, num_relational_heads=0).build(
        vocabulary_of(50), 0
    )
    torch.manual_seed(0)
    block, zeros = model.backbone.blocks[0].train(), torch.zeros(40, 50, 64)
    changed = block._add_mixer_output(zeros, torch.ones(40, 50, 64), block.mixer_norm)
    assert (changed == 0).float().mean().item() == pytest.approx(dropped, abs=0.01)


def test_dropout_of_the_stream_is_behind_the_first_post_norm_alone(vocabulary: Vocabulary) -> None:
    model: Any = published(norm_first=False, hidden_size=16, num_layers=1, dropout=0.5).build(vocabulary, 0).train()
    block = model.backbone.blocks[0]
    assert block.dropout_on == "residual_stream"
    x = torch.randn(4, 5, 16)
    after = block._add_mixer_output(x, torch.zeros_like(x), block.mixer_norm)
    assert (after == 0).float().mean().item() == pytest.approx(0.5, abs=0.15)
    assert torch.equal(block._apply_feed_forward(x), block.feed_forward_norm(x + block.feed_forward(x)))
    embedded = corrected(hidden_size=16, num_layers=1, dropout=0.5).build(vocabulary, 0).train()
    tokens = Tokens(torch.arange(4, 12)[None], torch.tensor([8]), torch.arange(1))
    placed = embedded.assign_positions(tokens, StepContext.for_evaluation())  # type: ignore[operator]
    assert (embedded._embed(placed)[0] == 0).any()  # type: ignore[operator]
