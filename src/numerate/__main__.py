"""`python -m numerate`, the same as `numerate`: what `torchrun -m numerate` starts."""

from numerate.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
