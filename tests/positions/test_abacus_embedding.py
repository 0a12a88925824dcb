"""Promises of the stand-alone Abacus embedding, held against the published code and against our own numbering."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import numerate
from cases import published_case
from numerate import AbacusEmbedding
from numerate.batch import StepContext, Tokens
from numerate.positions import abacus_embedding
from numerate.positions.position_ids import DigitIndex
from numerate.vocabulary import Vocabulary

ROW = [7, 6, 5, 14, 10, 9, 8, 17, 13, 11, 9, 3]  # 321+654=975 and its end
PAGE = Path(__file__).parents[2] / "docs" / "abacus-embedding.md"


def abacus(**settings: Any) -> AbacusEmbedding:
    return AbacusEmbedding(range(4, 14), **({"embedding_dim": 8, "max_offset": 100, "max_digits": 50} | settings))


def by_the_house(ids: torch.Tensor, draw: StepContext, max_offset: int = 0, per: Any = "row") -> torch.Tensor:
    vocabulary = Vocabulary.with_digits(["+", "-", "x", "=", " "])
    kinds = torch.from_numpy(vocabulary.token_kinds).long()[ids]
    lengths = torch.full((ids.shape[0],), ids.shape[1])
    tokens = Tokens(ids, lengths, torch.arange(ids.shape[0]))
    return DigitIndex(max_offset, per).assign(tokens, kinds, draw)


@pytest.mark.parametrize("name", ["abacus_ids_eval", "abacus_standalone_eval"])
def test_it_counts_as_the_published_code_does(name: str, shared: Path) -> None:
    case = published_case(shared, "abacus.json", name)
    ids = torch.tensor(case["input"])
    assert abacus().eval().position_ids(ids).tolist() == case["expected"]
    assert by_the_house(ids, StepContext.for_evaluation()).tolist() == case["expected"]


def test_each_digit_behind_a_hint_is_a_run_of_its_own(shared: Path) -> None:
    case = published_case(shared, "abacus.json", "abacus_ids_index_hints")
    ids = torch.tensor([[4 + int(c) if c.isdigit() else {"+": 14, "=": 17}.get(c, 1) for c in case["input"]]])
    assert abacus().eval().position_ids(ids)[0].tolist() == case["expected"]
    assert by_the_house(ids, StepContext.for_evaluation())[0].tolist() == case["expected"]


def test_an_offset_raises_digits_alone_as_published(shared: Path) -> None:
    case = published_case(shared, "abacus.json", "abacus_train_offset")
    ids = torch.tensor([case["input"]["row"]])
    for k, expected in zip(case["input"]["k_sequence"], case["expected"], strict=True):
        assert abacus().train().position_ids(ids, offset=k)[0].tolist() == expected


@pytest.mark.parametrize("max_offset", [0, 1, 6])
def test_training_draws_every_offset_from_0_to_the_largest(max_offset: int) -> None:
    part = abacus(max_offset=max_offset).train()
    ids = torch.tensor([ROW] * 400)
    places = part.position_ids(ids, generator=torch.Generator().manual_seed(0))
    assert set((places[:, 0] - 1).tolist()) == set(range(max_offset + 1))
    house = by_the_house(ids, StepContext(seed=0, step=0), max_offset)
    assert set((house[:, 0] - 1).tolist()) == set(range(max_offset + 1))


def test_whatever_is_drawn_is_one_of_the_published_rows() -> None:
    ids = torch.tensor([ROW] * 8)
    part = abacus().train()
    for _ in range(5):
        places = part.position_ids(ids)
        for row in range(8):
            k = int(places[row, 0]) - 1
            assert torch.equal(places[row : row + 1], part.position_ids(ids[:1], offset=k))
    house = by_the_house(ids, StepContext(seed=1, step=2), 100)
    assert torch.equal(house, part.position_ids(ids, offset=house[:, 0] - 1))


def test_a_batch_may_share_one_offset() -> None:
    ids = torch.tensor([ROW] * 50)
    assert len(abacus(offset_per="batch").train().position_ids(ids)[:, 0].unique()) == 1
    assert len(abacus(offset_per="row").train().position_ids(ids)[:, 0].unique()) > 10


def test_evaluation_draws_nothing() -> None:
    part = abacus().eval()
    before = torch.random.get_rng_state()
    places = part.position_ids(torch.tensor([ROW]))
    assert places[0].tolist() == [1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0]
    assert torch.equal(torch.random.get_rng_state(), before)


def test_random_rows_agree_with_the_numbering_of_the_house() -> None:
    ids = torch.randint(0, 19, (200, 40), generator=torch.Generator().manual_seed(0))
    assert torch.equal(abacus().eval().position_ids(ids), by_the_house(ids, StepContext.for_evaluation()))


def test_padding_on_the_left_and_packing_change_nothing() -> None:
    part = abacus().eval()
    alone = part(torch.tensor([ROW]))[0]
    left = part(torch.tensor([[0] * 5 + ROW]))[0]
    packed = part(torch.tensor([ROW + ROW + [0]]))[0]
    assert torch.equal(left[5:], alone)
    assert torch.equal(packed[:12], alone)
    assert torch.equal(packed[12:24], alone)
    assert torch.equal(left[:5], part.embedding.weight[:1].expand(5, -1))


def test_vectors_are_rows_of_the_table_and_train() -> None:
    part = abacus(embedding_dim=4).eval()
    out = part(torch.tensor([ROW]))
    assert out.shape == (1, 12, 4)
    assert torch.equal(out[0, 4], part.embedding.weight[1])
    out.sum().backward()
    assert part.embedding.weight.grad is not None
    assert part.embedding.weight.grad[1:4].eq(3).all()
    assert part.embedding.weight.grad[4:].eq(0).all()
    assert part.embedding.num_embeddings == 100 + 50 + 1


def test_a_number_that_is_too_long_is_refused_with_what_would_be_right() -> None:
    part = abacus(max_offset=3, max_digits=5).eval()
    assert part(torch.tensor([[4] * 8])).shape == (1, 8, 8), "the last place of the table"
    with pytest.raises(ValueError, match=r"position id 9, and the table ends at 8 .*larger max_digits="):
        part(torch.tensor([[4] * 9]))
    with pytest.raises(ValueError, match="position id 11"):
        part(torch.tensor([[4]]), offset=10)
    for offset in (-1, torch.tensor([-1])):  # which would give the first digits the vector of other tokens
        with pytest.raises(ValueError, match="offset: must be 0 or more, not -1"):
            part(torch.tensor([[4]]), offset=offset)


@pytest.mark.parametrize(("settings", "message"), [({"max_offset": -1}, "0 or more"), ({"max_digits": 0}, "1 or more")])
def test_settings_without_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        abacus(**settings)
    with pytest.raises(ValueError, match="digit_ids"):
        AbacusEmbedding([], 8)


def test_its_forward_is_one_graph_for_the_compiler() -> None:
    part = abacus().train()
    seen = []

    def backend(graph: Any, _: Any) -> Any:
        seen.append(graph)
        return graph.forward

    compiled = torch.compile(part, backend=backend, fullgraph=True)
    assert compiled(torch.tensor([ROW])).shape == (1, 12, 8)
    part.eval()
    assert torch.equal(compiled(torch.tensor([ROW])), part(torch.tensor([ROW])))
    assert len(seen) == 2
    torch.compiler.reset()


def test_its_file_needs_torch_alone() -> None:
    tree = ast.parse(Path(abacus_embedding.__file__).read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} == {"torch", "typing", "collections"}


def test_importing_the_package_does_not_import_it() -> None:
    code = "import sys, numerate; assert 'AbacusEmbedding' in dir(numerate); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
def test_the_example_with_hugging_face_runs(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    environment = {**os.environ, "PYTHONPATH": str(Path(numerate.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, env=environment, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    found = re.fullmatch(r"loss (\S+) -> (\S+); \[(.*)\]", done.stdout.strip())
    assert found is not None, done.stdout
    assert float(found[2]) < 0.9 * float(found[1]), "it learns"
    assert [int(i) for i in found[3].split(",")][:5] == [6, 5, 14, 13, 15], done.stdout
