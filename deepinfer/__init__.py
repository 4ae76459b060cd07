"""DeepInfer: offline inference of DeepSeek-V4.1-Flash on the few accelerators that can carry it.

Importing this package never looks at the host and never fails; it reads nothing but this file.
"""

__version__ = "0.1.0"
