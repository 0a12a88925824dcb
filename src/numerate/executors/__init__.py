"""Executors: work on many items in parallel, on this machine, a Ray cluster or Slurm."""

from numerate.catalogue import lazily

CATALOGUE = {"Executor": {"Local": "local", "Ray": "ray", "Slurm": "slurm"}}
__getattr__ = lazily("executors", CATALOGUE)
