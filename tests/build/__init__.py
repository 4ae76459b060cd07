"""Tests of build_support."""
