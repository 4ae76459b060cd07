"""Ops: each has one contract, one readable torch reference and native versions per target.

The conformance suite is the list of ops: whatever is registered is tested, on any target that has a version of it.
"""
