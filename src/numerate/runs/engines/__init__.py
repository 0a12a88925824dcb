"""Engines: do many items of work in parallel, on this machine, a Ray cluster or Slurm."""

from numerate.catalogue import lazy_getattr

CATALOGUE = {"Engine": {"InProcess": "in_process", "Local": "local", "Ray": "ray", "Slurm": "slurm"}}
__getattr__ = lazy_getattr("runs.engines", CATALOGUE)
