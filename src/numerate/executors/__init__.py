"""Who does many things at once: items in; results, or errors, out as they are completed."""

from numerate.catalogue import lazily

CATALOGUE = {"Executor": {"Local": "local", "Ray": "ray", "Slurm": "slurm"}}
__getattr__ = lazily("executors", CATALOGUE)
