"""Peak FLOP/s of a GPU, for the model FLOPs utilization (MFU) of a run.

The specified values for dense matrix products, without sparsity, at boost clock: NVIDIA's data sheets of each
(https://www.nvidia.com/en-us/data-center/, and the architecture papers of Ampere, Ada, Hopper and Blackwell). GeForce
and RTX values are those with float32 accumulation.
"""

TERAFLOPS: dict[str, tuple[float, float, float]] = {
    "B200": (2250, 1125, 75),
    "H200 NVL": (835, 418, 60),
    "H200": (989, 494, 67),
    "H100 PCIe": (756, 378, 51),
    "H100 NVL": (835, 418, 60),
    "H100": (989, 494, 67),
    "A100": (312, 156, 19.5),
    "A40": (149.7, 74.8, 37.4),
    "A10": (125, 62.5, 31.2),
    "L40S": (362, 183, 91.6),
    "L4": (121, 60, 30.3),
    "RTX A6000": (154.8, 77.4, 38.7),
    "RTX 4090": (165.2, 82.6, 82.6),
    "RTX 3090": (71, 35.6, 35.6),
}
"""GPUs by part of the name that the driver gives them, the first match counts: teraflop/s with half precision (bf16 and
fp16), TF32 and float32 products. Of others no share is recorded."""


def peak_flops(device_name: str, matmul_precision: str) -> float | None:
    """The specified floating-point operations per second of a GPU by name, such as 312e12 of an A100 with bf16; None if
    unknown."""
    column = {"tf32": 1, "fp32": 2}.get(matmul_precision, 0)
    return next((1e12 * values[column] for name, values in TERAFLOPS.items() if name in device_name), None)
