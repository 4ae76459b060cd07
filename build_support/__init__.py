"""The build layer: the PEP 517 backend, the gate before it, and what a fresh checkout needs.

It imports ``deepinfer.probes`` and ``deepinfer.matrix`` from the tree that is being built, parses on every Python that
pip may run it with, and says itself which Python the engine needs.
"""
