"""Executors: process many items in parallel, on this machine, a Ray cluster or Slurm."""

from numerate.catalogue import lazy_getattr

CATALOGUE = {"Executor": {"InProcess": "in_process", "Local": "local", "Ray": "ray", "Slurm": "slurm"}}
__getattr__ = lazy_getattr("executors", CATALOGUE)
