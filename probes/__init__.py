"""The probe: reads a host, judges it against the support matrix and says what is missing and how to mend it.

``HostView`` (live or recorded) -> ``facts`` -> ``judge`` -> ``report``. Standard library only, no torch, no vendor
package; it runs on Python 3.8 although the engine needs 3.12. Imports ``deepinfer.matrix`` and nothing above itself.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from deepinfer.probes.verdict import Verdict


def judge_host(record: str | None = None, *, aspect: str = "both") -> Verdict:
    """Judge this host, or the recorded one in the file ``record``.

    ``aspect`` is ``build``, ``run`` or ``both``. Raises :class:`deepinfer.errors.DeepInferError` for a file that is no
    record and for a support matrix that cannot be read; a host that cannot be read is a verdict, not an exception.
    """
    from deepinfer.matrix.index import load_index
    from deepinfer.probes.judge import judge
    from deepinfer.probes.view import HostView
    from deepinfer.probes.wish import Wish

    view: HostView
    if record is None:
        from deepinfer.probes.live import LiveView

        view = LiveView()
    else:
        from deepinfer.probes.recorded import load_record

        view = load_record(record)
    return judge(view, load_index(), Wish(), aspect=aspect)
