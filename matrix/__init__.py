"""The hardware-support matrix: TOML entries, their schema and rules, and what is rendered from them.

Reading the compiled ``index.json`` (:mod:`deepinfer.matrix.index`) needs the standard library alone; the tools (load,
rules, render) may use ``packaging`` and, before Python 3.11, ``tomli``. Nothing here imports a layer above.
"""
