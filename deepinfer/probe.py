"""``python3 -m deepinfer.probe``: can this machine run DeepInfer? (Parsed by any Python 3, to say so itself.)"""

import sys

if sys.version_info < (3, 8):  # noqa: UP036
    sys.stderr.write(
        "DI004: the probe needs Python 3.8 or newer; this is %d.%d\n  fix: run it with a newer python3\n"
        % sys.version_info[:2]
    )
    sys.exit(2)

from deepinfer.probes.cli import main

if __name__ == "__main__":
    sys.exit(main())
