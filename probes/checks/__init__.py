"""The checks, one module per kind. Adding one: see CONTRIBUTING.md."""
