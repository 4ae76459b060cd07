"""One accelerator, whichever vendor made it."""

from __future__ import annotations


class Device:
    """What is known of one device. Empty strings and None mean "not known", except where stated.

    ``index``: number that the vendor's runtime would give it; ``arch``: compute capability (``10.0``) or SoC name
    (``Ascend950PR_9579``); ``identity_source``: who said so; ``memory_bytes``: of the device, or of the partition that
    is visible; ``exposed``: does this container or host hand it to us; ``visible``: not hidden by a variable;
    ``partitions``: labels of MIG slices, None if the mode is not known.
    """

    __slots__ = (
        "arch",
        "dies",
        "exposed",
        "fabric",
        "identity_source",
        "index",
        "memory_bytes",
        "name",
        "partitioned",
        "partitions",
        "pci",
        "pci_driver",
        "pci_id",
        "uuid",
        "vendor",
        "visible",
    )

    def __init__(self, vendor: str, index: int) -> None:
        self.vendor = vendor
        self.index = index
        self.name = ""
        self.arch = ""
        self.identity_source = ""
        self.pci = ""
        self.pci_id = ""
        self.pci_driver = ""
        self.memory_bytes: int | None = None
        self.uuid = ""
        self.exposed: bool | None = None
        self.visible = True
        self.partitioned: bool | None = None
        self.partitions: list[tuple[str, str, int | None]] = []  # (label, uuid, bytes)
        self.fabric: tuple[str, str] | None = None  # (state, status) in the words of nvidia-smi
        self.dies = 0
