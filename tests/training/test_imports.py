"""A recipe enters no code of what it does not use."""

import subprocess
import sys
from pathlib import Path


def test_training_sums_imports_nothing_of_texts_no_further_architecture_and_no_compiler(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "import numerate\n"
        "from numerate.recipes.preset import debug\n"
        "recipe = debug(numerate.recipe('addition_abacus', 'training.steps=2', 'evaluation.examples_per_cell=2'))\n"
        "numerate.train(recipe, runs_dir=sys.argv[1], quiet=True)\n"
        "shelf = ('numerate.text', 'numerate.architectures')\n"
        "slow = ('torch._dynamo', 'torch._inductor', 'sympy', 'scipy', 'pandas', 'matplotlib', 'transformers')\n"
        "print([name for name in sys.modules if name.startswith(shelf) or name in slow])\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
