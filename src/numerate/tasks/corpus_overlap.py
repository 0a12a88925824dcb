"""Whether held-out text is also in the training text."""

import numpy as np

from numerate.tasks.corpus_files import Corpus

NUM_PASSAGES, PASSAGE_LENGTH = 16, 64
"""Number of completions of held-out text, and tokens of each, that are searched for in the training text."""

MAX_SEARCHED_TOKENS, SEARCH_CHUNK_TOKENS = 1 << 23, 1 << 20
"""Number of training tokens that are searched, in total and at once."""


def overlap_warnings(train: Corpus, held_out: Corpus) -> list[str]:
    """Warns if at least half of the sampled passages of held-out text are also in the training text. At most 8 million
    training tokens are searched, so overlaps in larger corpora may be missed."""
    passages = [
        shard.ids[start : start + PASSAGE_LENGTH]
        for shard in held_out.shards
        if len(shard) >= PASSAGE_LENGTH
        for start in np.linspace(0, len(shard) - PASSAGE_LENGTH, -(-NUM_PASSAGES // len(held_out.shards)))
        .astype(int)
        .tolist()
    ][:NUM_PASSAGES]
    tokens_left, is_found = MAX_SEARCHED_TOKENS, [False] * len(passages)
    for shard in train.shards:
        for begin in range(0, min(len(shard), tokens_left), SEARCH_CHUNK_TOKENS):
            ids = shard.ids[begin : begin + SEARCH_CHUNK_TOKENS + PASSAGE_LENGTH]
            text = ids.tobytes()
            for number, passage in enumerate(passages):
                is_found[number] = is_found[number] or passage.astype(ids.dtype).tobytes() in text
        tokens_left -= len(shard)
        shard.release_memory()
    if not passages or 2 * sum(is_found) < len(is_found):
        return []
    return [
        f"task.validation: {sum(is_found)} of {len(is_found)} passages of {PASSAGE_LENGTH} tokens are also in the "
        "training text, so that the loss says little about new text; `numerate data prepare` holds out other text"
    ]
