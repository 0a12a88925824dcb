"""Fixed number embeddings and scales: pure numpy functions, for tokens and models alike.

- The Regression Transformer's fixed embedding: Born and Manica (2023), https://arxiv.org/abs/2202.01338; its variants
  in the number token loss, linear and logarithmic: Zausinger et al. (2025), https://arxiv.org/abs/2411.02083.
- The scales that xVal multiplies an embedding with: Golkar et al. (2023), https://arxiv.org/abs/2310.02989.
"""

import re
from typing import Literal

import numpy as np
from numpy.typing import NDArray

LARGEST = 3e9
"""The value that regression-transformer vectors and xVal scales map to 10."""

ORDERS = range(-12, 20)
"""The powers of ten that regression-transformer tokens stand for: 0.000000000001 to 9e19."""

_DIGIT_AND_ORDER = re.compile(r"_([0-9])_(-?[0-9]+)_")


def digit_and_order(symbol: str) -> tuple[int, int] | None:
    """The digit and the power of ten of a regression-transformer token, None for any other text.

    >>> digit_and_order("_5_-2_"), digit_and_order("5")
    ((5, -2), None)
    """
    found = _DIGIT_AND_ORDER.fullmatch(symbol)
    return None if found is None else (int(found[1]), int(found[2]))


def regression_transformer_vectors(
    digits: NDArray[np.integer],
    orders: NDArray[np.integer],
    width: int,
    *,
    form: Literal["float", "integer"] = "float",
    scale: Literal["linear", "log"] = "linear",
    largest: float = LARGEST,
) -> NDArray[np.float64]:
    """The fixed vector of each token, `[tokens, width]`; v is its digit x 10^order.

    `form="float"`: e[2k] = v / (2k + 1) and e[2k + 1] = -v / (2k + 1), then x 10 / `largest` on the linear scale, or
    sign(e) log10(|e| + 1) x 10 / log10(`largest`) on the logarithmic one. A digit 0 is the zero vector at every order.
    `form="integer"`: sine and cosine of v / 10000^(2i / width) for even i, whatever the scale.

    >>> regression_transformer_vectors(np.array([9]), np.array([9]), 2).round(4).tolist()
    [[30.0, -30.0]]
    >>> regression_transformer_vectors(np.array([9]), np.array([9]), 2, scale="log").round(4).tolist()
    [[10.5034, -10.5034]]
    """
    values = digits.astype(np.float64) * 10.0 ** orders.astype(np.float64)
    even = np.arange(0, width, 2)
    found = np.zeros((len(values), 2 * len(even)))
    if form == "integer":
        angles = values[:, None] / 10000.0 ** (2 * even / width)
        found[:, 0::2], found[:, 1::2] = np.sin(angles), np.cos(angles)
        return found[:, :width]
    shares = values[:, None] / (even + 1)
    found[:, 0::2], found[:, 1::2] = shares, -shares
    found = found[:, :width]
    return found * 10 / largest if scale == "linear" else log_scaled(found, largest)


def log_scaled(values: NDArray[np.floating], largest: float = LARGEST) -> NDArray[np.float64]:
    """sign(x) log10(|x| + 1) x 10 / log10(`largest`), exact for small x too: `largest` itself is 10.

    >>> float(log_scaled(np.array([54.0]))[0].round(5))
    1.83638
    """
    x = np.asarray(values, dtype=np.float64)
    return np.asarray(np.sign(x) * np.log1p(np.abs(x)) * (10 / np.log(largest)), dtype=np.float64)
