"""The built artifact as a fact: its record, the device code in it, and whether it fits this host.

Standard library only. ``build_support`` writes what is read here, and the engine asks here before it loads anything.
"""
