"""The released weights on disk: their configuration, names, formats, files, and what they need of a machine.

``config`` parses and judges ``config.json``; ``inventory`` derives every tensor from it; ``shards`` and ``coverage``
compare that with the files; ``weights`` loads and dequantizes; ``plan`` divides the bytes over devices.
"""
