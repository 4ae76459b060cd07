"""``python -m build_support.native_tests [--sanitize]``: the C++ tests, with the compiler that the gate chooses.

``--sanitize`` builds them with the address and undefined-behavior sanitizers in a folder of their own.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys

from build_support.compile import BUILD_FOLDER
from build_support.gate import before_build
from build_support.metadata import ROOT

SANITIZERS = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"


def main() -> int:
    """Configure, build and run; the exit code of the first step that fails."""
    parser = argparse.ArgumentParser(prog="python -m build_support.native_tests", description=__doc__)
    parser.add_argument("--sanitize", action="store_true", help="with ASan and UBSan")
    sanitize: bool = parser.parse_args().sanitize
    target = before_build({"deepinfer.target": "host-cpu"})
    words = target.toolchain.compiler.words
    folder = os.path.join(BUILD_FOLDER, "tests-sanitized" if sanitize else "tests")
    flags = " ".join([*words[1:], SANITIZERS if sanitize else ""]).strip()
    settings = {
        "CMAKE_BUILD_TYPE": "RelWithDebInfo" if sanitize else "Release",
        "CMAKE_CXX_COMPILER": shutil.which(words[0]) or words[0],
        "CMAKE_CXX_FLAGS": flags,
        "DEEPINFER_ENTRY": "host-cpu",
        "DEEPINFER_KIND": "cpu",
        "DEEPINFER_RECORD": "unused",
        "DEEPINFER_BUILD_MODULE": "OFF",
        "DEEPINFER_BUILD_TESTS": "ON",
    }
    defines = ["-D%s=%s" % pair for pair in settings.items()]
    tools = os.path.dirname(sys.executable)
    env = dict(os.environ, PATH=tools + os.pathsep + os.environ.get("PATH", ""))
    for step in (
        ["cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", *defines],
        ["cmake", "--build", folder],
        ["ctest", "--test-dir", folder, "--output-on-failure", "--no-tests=error"],
    ):
        code = subprocess.run(step, env=env, check=False).returncode
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
