"""Published weights of RWKV-7 say in our decoder what rwkv.cpp says they say.

The files are test data of https://github.com/RWKV/rwkv.cpp: a tiny model over bytes, and its logits behind the three
bytes `"in`.
"""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from numerate.architectures.channel_mix import ChannelMix
from numerate.architectures.rwkv7 import RWKV7
from numerate.batch import Model, Tokens
from numerate.mixers.alternating import Alternating
from numerate.models.backbone import Stack
from numerate.models.decoder import Decoder
from numerate.vocabulary import TEXT, Vocabulary

PROMPT = torch.tensor([list(b'"in')])
BYTES = Vocabulary(
    tuple(f"<{byte}>" for byte in range(256)),
    np.full(256, TEXT, dtype=np.int8),
    np.full(256, np.nan),
    np.full(256, -1000, dtype=np.int64),
)


def read(path: Path) -> dict[str, Tensor]:
    """The weights in rwkv.cpp's format: a header of six numbers, then per tensor how many dimensions, the length of its
    name and the kind of its numbers (0: fp32), then the dimensions from the innermost, the name, and the numbers."""
    content, found, place = path.read_bytes(), {}, 24
    assert struct.unpack_from("<I", content)[0] == 0x67676D66
    while place < len(content):
        dimensions, length, kind = struct.unpack_from("<3I", content, place)
        assert kind == 0
        shape = struct.unpack_from(f"<{dimensions}I", content, place + 12)[::-1]
        place += 12 + 4 * dimensions
        name, place = content[place : place + length].decode(), place + length
        count = int(np.prod(shape))
        numbers = np.frombuffer(content, "<f4", count, place)
        found[name], place = torch.from_numpy(numbers.copy()).view(shape), place + 4 * count
    return found


def filled(weights: dict[str, Tensor], width: int, layers: int, time_mix: Any, channel_mix: Any) -> Model:
    mixer = Alternating((time_mix, channel_mix))
    trunk = Stack(num_layers=2 * layers)
    spec = Decoder(hidden_size=width, backbone=trunk, mixer=mixer, feed_forward=None, embedding_norm=True)
    model: Any = spec.build(BYTES, seed=0)
    blocks = model.backbone.blocks
    with torch.no_grad():
        copied(model.embedding, weights, "emb")
        copied(model.embedding_norm, weights, "blocks.0.ln0")
        copied(model.final_norm, weights, "ln_out")
        copied(model.head, weights, "head")
        for layer in range(layers):
            name, (time, channel) = f"blocks.{layer}", blocks[2 * layer : 2 * layer + 2]
            copied(time.mixer_norm, weights, f"{name}.ln1")
            copied(channel.mixer_norm, weights, f"{name}.ln2")
            for kind in ("receptance", "key", "value", "output"):
                copied(getattr(time.mixer, kind), weights, f"{name}.att.{kind}")
            copied(channel.mixer.key, weights, f"{name}.ffn.key")
            copied(channel.mixer.value, weights, f"{name}.ffn.value")
            fill(time.mixer, channel.mixer, weights, name)
    assert not weights, f"not read: {sorted(weights)}"
    return model.eval()


def copied(module: nn.Module, weights: dict[str, Tensor], name: str) -> None:
    for own, parameter in module.named_parameters():
        parameter.copy_(weights.pop(f"{name}.{own}"))


def fill(time: Any, channel: Any, weights: dict[str, Tensor], name: str) -> None:
    """There a map of low rank is stored out x in."""
    time.shift_weights.copy_(weights.pop(f"{name}.att.x_rwkvag").flatten())
    for letter, low in (("w", time.w_lora), ("a", time.a_lora), ("v", time.v_lora), ("g", time.g_lora)):
        if low is not None:
            low.down.copy_(weights.pop(f"{name}.att.{letter}1").T)
            low.up.copy_(weights.pop(f"{name}.att.{letter}2").T)
            if low.bias is not None:
                low.bias.copy_(weights.pop(f"{name}.att.{letter}0").flatten())
    for kind in ("k_k", "k_a", "r_k"):
        getattr(time, kind).copy_(weights.pop(f"{name}.att.{kind}").flatten())
    copied(time.ln_x, weights, f"{name}.att.ln_x")
    channel.shift_weights.copy_(weights.pop(f"{name}.ffn.x_k").flatten())


@torch.no_grad()
def test_published_weights_say_what_they_say_elsewhere(shared: Path) -> None:
    folder = shared / "data" / "weights" / "rwkv.cpp"
    weights = read(folder / "tiny-rwkv-7v0-834K-FP32.bin")
    model = filled(weights, 64, 12, RWKV7(), ChannelMix(7))
    expected = torch.from_numpy(np.fromfile(folder / "expected-logits-7v0-834K.bin", "<f4"))
    tokens = Tokens(PROMPT, torch.tensor([3]), torch.tensor([0]))
    torch.testing.assert_close(model(tokens).logits[0, -1], expected, atol=1e-5, rtol=1e-5)
    started = model.prefill(Tokens(PROMPT[:, :1], torch.tensor([1]), torch.tensor([0])), capacity=3)
    for place in (1, 2):
        started = model.step(PROMPT[:, place], None, started.state)
    torch.testing.assert_close(started.output.logits[0, -1], expected, atol=1e-5, rtol=1e-5)
