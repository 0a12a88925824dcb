"""Fixed number embeddings and scales: pure numpy functions, for tokenizers and models.

- The Regression Transformer's fixed embedding: Born and Manica (2023), https://arxiv.org/abs/2202.01338; its variants
  in the number token loss, linear and logarithmic: Zausinger et al. (2025), https://arxiv.org/abs/2411.02083.
- The scales by which xVal multiplies an embedding: Golkar et al. (2023), https://arxiv.org/abs/2310.02989.
"""

import re
from typing import Literal

import numpy as np
from numpy.typing import NDArray

MAX_VALUE = 3e9
"""The value that regression-transformer vectors and xVal scales map to 10."""

EXPONENTS = range(-12, 20)
"""The powers of ten of regression-transformer tokens: 0.000000000001 to 9e19."""

_DIGIT_AND_EXPONENT = re.compile(r"_([0-9])_(-?[0-9]+)_")


def digit_and_exponent(token: str) -> tuple[int, int] | None:
    """The digit and the power of ten of a regression-transformer token; None for any other text.

    >>> digit_and_exponent("_5_-2_"), digit_and_exponent("5")
    ((5, -2), None)
    """
    match = _DIGIT_AND_EXPONENT.fullmatch(token)
    return None if match is None else (int(match[1]), int(match[2]))


def regression_transformer_vectors(
    digits: NDArray[np.integer],
    exponents: NDArray[np.integer],
    embedding_dim: int,
    *,
    form: Literal["float", "integer"] = "float",
    scale: Literal["linear", "log"] = "linear",
    max_value: float = MAX_VALUE,
) -> NDArray[np.float64]:
    """The fixed vector of each token, `[tokens, embedding_dim]`; v is its digit x 10^order.

    `form="float"`: e[2k] = v / (2k + 1) and e[2k + 1] = -v / (2k + 1), then x 10 / `max_value` on the linear scale, or
    sign(e) log10(|e| + 1) x 10 / log10(`max_value`) on the logarithmic one. A digit 0 is the zero vector at every
    order. `form="integer"`: sine and cosine of v / 10000^(2i / width) for even i, whatever the scale.

    >>> regression_transformer_vectors(np.array([9]), np.array([9]), 2).round(4).tolist()
    [[30.0, -30.0]]
    >>> regression_transformer_vectors(np.array([9]), np.array([9]), 2, scale="log").round(4).tolist()
    [[10.5034, -10.5034]]
    """
    values = digits.astype(np.float64) * 10.0 ** exponents.astype(np.float64)
    even_indices = np.arange(0, embedding_dim, 2)
    vectors = np.zeros((len(values), 2 * len(even_indices)))
    if form == "integer":
        angles = values[:, None] / 10000.0 ** (2 * even_indices / embedding_dim)
        vectors[:, 0::2], vectors[:, 1::2] = np.sin(angles), np.cos(angles)
        return vectors[:, :embedding_dim]
    components = values[:, None] / (even_indices + 1)
    vectors[:, 0::2], vectors[:, 1::2] = components, -components
    vectors = vectors[:, :embedding_dim]
    return vectors * 10 / max_value if scale == "linear" else log_scale(vectors, max_value)


def log_scale(values: NDArray[np.floating], max_value: float = MAX_VALUE) -> NDArray[np.float64]:
    """sign(x) log10(|x| + 1) x 10 / log10(`max_value`), exact for small x too: `max_value` itself is 10.

    >>> float(log_scale(np.array([54.0]))[0].round(5))
    1.83638
    """
    x = np.asarray(values, dtype=np.float64)
    return np.asarray(np.sign(x) * np.log1p(np.abs(x)) * (10 / np.log(max_value)), dtype=np.float64)
