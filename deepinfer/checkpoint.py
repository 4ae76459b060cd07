"""``python -m deepinfer.checkpoint``: inspect, verify, make-tiny, plan, download."""

import sys

from deepinfer.engine.checkpoint.cli import main

if __name__ == "__main__":
    sys.exit(main())
