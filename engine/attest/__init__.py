"""Attestation: runs a gate on the machine that is here and writes down what came of it, good or bad."""
