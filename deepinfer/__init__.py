"""DeepInfer: offline inference of DeepSeek-V4.1-Flash on the few accelerators that can carry it.

Importing this package never looks at the host and never fails; it reads nothing but this file. ``LLM`` and
``SamplingParams`` are loaded when they are first asked for.
"""

__version__ = "0.1.0"
_LAZY = ("LLM", "SamplingParams")


def __getattr__(name):  # type: ignore[no-untyped-def]  # no annotations: old interpreters read this file too
    if name in _LAZY:
        from deepinfer.engine import llm, sampling

        return getattr(llm if name == "LLM" else sampling, name)
    raise AttributeError("module 'deepinfer' has no attribute %r" % name)
