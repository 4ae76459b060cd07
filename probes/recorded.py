"""``RecordedView``: a host read back from a JSON record. The same record gives the same answers on any machine.

Form of a record (schema 1), all keys optional but ``machine``:
``machine``; ``system``; ``python`` (interpreter facts); ``env``; ``files`` (path -> text, ``-> target`` for a link,
``<exe>``, ``<lib>``, ``<file>``, ``<dir>`` for things whose content is not held); ``dev`` (device nodes); ``listed``
(folders held wholly, all below them included: what is not named there is absent); ``folders`` (folder -> the names in
it, nothing below); ``absent`` (single paths that were looked for in vain);
``unknown`` (path -> why it could not be read); ``cmds`` (command line -> ``rc``, ``out``, ``err``; ``rc`` null: no
answer, ``err`` says why); ``libs`` (vendor libraries: ``nvml`` -> the document of nvml_reader.py).
Whatever a record does not hold is unknown, never absent.
"""

from __future__ import annotations

from deepinfer.probes.fact import Fact, absent, present, unknown
from deepinfer.probes.record_form import RecordUnreadable, check_record
from deepinfer.probes.view import CHILD_SECONDS, HostView, Result

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NOT_RECORDED = "not recorded"
LINK = "-> "
OPAQUE = ("<exe>", "<lib>", "<file>", "<dir>", "<script>")
_HOPS = 40


def load_record(path: str) -> RecordedView:
    """Read and check the record in the file ``path``."""
    import json

    fix = "write one on the host with: python3 -m deepinfer.probe --record FILE"
    try:
        with open(path, encoding="utf-8") as file:
            record = json.load(file)
    except OSError as error:
        raise RecordUnreadable("%s: %s" % (path, error.strerror), fix=fix) from None
    except (ValueError, RecursionError) as error:
        raise RecordUnreadable("%s is no JSON: %s" % (path, error), fix=fix) from None
    return RecordedView(check_record(record, path))


class RecordedView(HostView):
    """Answers from a record."""

    def __init__(self, record: dict[str, Any]) -> None:
        self.record = record
        self.files: dict[str, str] = record.get("files", {})
        self.nodes = {node.rstrip("/") for node in record.get("dev", [])}
        self.listed = [folder.rstrip("/") for folder in record.get("listed", [])]
        self.missing = set(record.get("absent", []))
        self.unread: dict[str, str] = record.get("unknown", {})
        self.cmds: dict[str, dict[str, Any]] = record.get("cmds", {})
        self.names_in: dict[str, list[str]] = record.get("folders", {})
        self.folders: dict[str, set[str]] = {}
        for path in list(self.files) + sorted(self.nodes) + [words.split(" ")[0] for words in self.cmds]:
            self._add_parents(path)

    def _add_parents(self, path: str) -> None:
        while "/" in path[1:]:
            parent, _, name = path.rpartition("/")
            children = self.folders.setdefault(parent, set())
            if name in children:
                return
            children.add(name)
            path = parent

    # -- plain facts --------------------------------------------------------------------------------------------------

    def system(self) -> Fact:
        # Records older than the key were all made on Linux: nothing else has the files that they hold.
        return present(self.record.get("system", "Linux"), "record")

    def machine(self) -> Fact:
        return present(self.record["machine"], "record")

    def python(self) -> Fact:
        facts = self.record.get("python")
        return present(facts, "record") if facts else unknown(NOT_RECORDED, "python")

    def env(self, name: str) -> Fact:
        values = self.record.get("env", {})
        return present(values[name], "environment") if name in values else absent("environment")

    def env_names(self, prefix: str) -> list[str]:
        return sorted(name for name in self.record.get("env", {}) if name.startswith(prefix))

    def nvml(self) -> Fact:
        document = self.record.get("libs", {}).get("nvml")
        if document is None:
            return unknown(NOT_RECORDED, "nvml")
        if document.get("silent"):
            return unknown(str(document["silent"]), "nvml")
        return absent("nvml") if document.get("missing") else present(document, "nvml")

    # -- paths --------------------------------------------------------------------------------------------------------

    def _resolve(self, path: str) -> str:
        """``path`` with the recorded links followed; a loop ends where the hops run out."""
        done, todo = "", [part for part in path.split("/") if part]
        hops = 0
        while todo:
            part = todo.pop(0)
            if part == ".":
                continue
            if part == "..":
                done = done.rpartition("/")[0]
                continue
            step = self._merged(done + "/" + part)
            target = self.files.get(step, "")
            if target.startswith(LINK) and hops < _HOPS:
                hops += 1
                target = target[len(LINK) :].strip()
                todo = [word for word in target.split("/") if word] + todo
                done = "" if target.startswith("/") else done
            else:
                done = step
        return done or "/"

    def _merged(self, path: str) -> str:
        """Records name /usr/bin; on every system of today /bin and its like are links into /usr."""
        if path in ("/bin", "/sbin", "/lib", "/lib64") and path not in self.folders and path not in self.files:
            return "/usr" + path
        return path

    def _held(self, path: str) -> bool:
        return any(path == folder or path.startswith(folder + "/") for folder in self.listed)

    def _state(self, path: str) -> Fact:
        where = self._resolve(path)
        if where in self.unread:
            return unknown(self.unread[where], path)
        if where in self.files or where in self.nodes or where in self.folders or where in self.listed:
            return present(where, path)
        for words, answer in self.cmds.items():
            if words.split(" ")[0] == where and answer.get("rc") != 127:
                return present(where, path)
        parent, _, name = where.rpartition("/")
        if parent in self.names_in and name in self.names_in[parent]:
            return present(where, path)
        if where in self.missing or path in self.missing or parent in self.names_in or self._held(where):
            return absent(path)
        return unknown(NOT_RECORDED, path)

    def exists(self, path: str) -> Fact:
        return self._state(path)

    def real(self, path: str) -> Fact:
        return self._state(path)

    def read(self, path: str) -> Fact:
        state = self._state(path)
        if not state.is_present:
            return state
        text = self.files.get(state.value)
        if text is None or text in OPAQUE or text.startswith(LINK):
            return unknown("content not recorded", path)
        return present(text, path)

    def link(self, path: str) -> Fact:
        parent, _, name = path.rstrip("/").rpartition("/")
        where = (self._resolve(parent) if parent else "") + "/" + name
        text = self.files.get(where, "")
        if text.startswith(LINK):
            return present(text[len(LINK) :].strip(), path)
        state = self._state(path)
        return absent(path) if state.is_present else state

    def names(self, folder: str) -> Fact:
        where = self._resolve(folder)
        if where in self.unread:
            return unknown(self.unread[where], folder)
        if where in self.names_in:
            return present(sorted(self.names_in[where]), folder)
        if self._held(where) and where not in self.nodes:
            children = self.folders.get(where)
            if children is None and where not in self.listed:
                return absent(folder)
            return present(sorted(children or ()), folder)
        state = self._state(folder)
        return absent(folder) if state.is_absent else unknown(NOT_RECORDED, folder)

    # -- commands -----------------------------------------------------------------------------------------------------

    def which(self, name: str) -> Fact:
        found = super().which(name)
        if not found.is_present and "/" not in name:  # records name programs without their folder
            for words, answer in self.cmds.items():
                if words.split(" ")[0] == name:
                    return absent("PATH") if answer.get("rc") == 127 else present(name, "PATH")
        return found

    def run(self, argv: list[str], stdin: str = "", seconds: float = CHILD_SECONDS) -> Fact:
        answer = self._answer(argv)
        if answer is None:
            found = self.which(argv[0])
            return found if found.is_absent else unknown(NOT_RECORDED, " ".join(argv))
        if answer["rc"] is None:
            return unknown(answer.get("err") or "no answer", argv[0])
        if answer["rc"] == 127 and "not found" in answer.get("err", ""):
            return absent(argv[0])
        return present(Result(answer["rc"], answer.get("out", ""), answer.get("err", "")), " ".join(argv))

    def _answer(self, argv: list[str]) -> dict[str, Any] | None:
        exact = self.cmds.get(" ".join(argv))
        if exact is not None:
            return exact
        for words, answer in self.cmds.items():
            recorded = words.split(" ")
            if self._same_program(recorded[0], argv[0]) and _same_options(recorded[1:], argv[1:]):
                return answer
        return None

    def _same_program(self, recorded: str, asked: str) -> bool:
        if recorded == asked:
            return True
        if "/" in recorded and "/" in asked:
            return self._resolve(recorded) == self._resolve(asked)
        bare, path = (asked, recorded) if "/" in recorded else (recorded, asked)
        if path.rpartition("/")[2] != bare:
            return False
        found = HostView.which(self, bare)  # by PATH alone: our own which() knows bare commands
        return found.is_present and self._resolve(found.value) == self._resolve(path)


def _same_options(recorded: list[str], asked: list[str]) -> bool:
    """Equal, or the same CSV query with other columns: its header tells them apart."""
    query = "--query-gpu="
    if any(word.startswith(query) for word in recorded) and any(word.startswith(query) for word in asked):
        return True
    return recorded == asked
