"""Facts of a host, one module per subject, read through a ``HostView`` and never judged here."""
