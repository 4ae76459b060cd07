"""Runs one command, bounded: own process group, closed standard input, a deadline, capped output, C locale.

Neither ``subprocess`` nor ``signal`` is imported: together they cost more than everything else the probe does.
A child that outlives the deadline is killed with its group and not waited for (it may hang in the kernel).
"""

from __future__ import annotations

import os
import select
import time

OUTPUT_LIMIT = 1 << 20  # bytes kept of each stream
SIGKILL, SIGPIPE = 9, 13
GRACE_SECONDS = 0.3  # for the exit status after the pipes closed, and for pipes that a grandchild holds open


class Unanswered(Exception):
    """The command gave no usable answer; ``str()`` is the reason."""


class Running:
    """A started command; :meth:`answer` waits for it. Starting early lets a slow one overlap with other work."""

    __slots__ = ("err", "out", "pid")

    def __init__(self, pid: int, out: int, err: int) -> None:
        self.pid = pid
        self.out = out
        self.err = err

    def answer(self, seconds: float) -> tuple[int, str, str]:
        """(exit code, out, err), once. Raises :class:`Unanswered` after ``seconds`` from now."""
        try:
            return _collect(self.pid, self.out, self.err, time.monotonic() + seconds, seconds)
        finally:
            os.close(self.out)
            os.close(self.err)

    def stop(self) -> None:
        """End a command whose answer nobody wants any more."""
        os.close(self.out)
        os.close(self.err)
        if _exited(self.pid) is None:
            _kill_group(self.pid)
            _wait(self.pid, time.monotonic() + GRACE_SECONDS)


def start(path: str, argv: list[str], stdin: bytes = b"") -> Running:
    """Start ``path`` with ``argv``. Raises :class:`OSError` if it cannot be started."""
    env = dict(os.environ, LC_ALL="C", LANG="C", LANGUAGE="C")
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    in_read, in_write = os.pipe()
    try:
        os.write(in_write, stdin)  # a few words: always fits the pipe
        os.close(in_write)
        actions = [
            (os.POSIX_SPAWN_DUP2, in_read, 0),
            (os.POSIX_SPAWN_DUP2, out_write, 1),
            (os.POSIX_SPAWN_DUP2, err_write, 2),
        ]
        pid = os.posix_spawn(path, argv, env, file_actions=actions, setpgroup=0, setsigdef=[SIGPIPE])
    except OSError:
        os.close(out_read)
        os.close(err_read)
        raise
    finally:
        for end in (in_read, out_write, err_write):
            os.close(end)
    return Running(pid, out_read, err_read)


def run(path: str, argv: list[str], stdin: bytes, seconds: float) -> tuple[int, str, str]:
    """Run ``path`` with ``argv`` and return (exit code, out, err). Raises :class:`Unanswered` or :class:`OSError`."""
    return start(path, argv, stdin).answer(seconds)


def _collect(pid: int, out_fd: int, err_fd: int, deadline: float, seconds: float) -> tuple[int, str, str]:
    streams = {out_fd: bytearray(), err_fd: bytearray()}
    poll = select.poll()
    for fd in streams:
        poll.register(fd, select.POLLIN | select.POLLHUP)
    status: int | None = None
    waiting = set(streams)
    while waiting and time.monotonic() < deadline:
        for fd, _ in poll.poll(50 if status is None else 10):
            chunk = os.read(fd, 65536)
            if not chunk:
                poll.unregister(fd)
                waiting.discard(fd)
            elif len(streams[fd]) < OUTPUT_LIMIT:
                streams[fd] += chunk
        if status is None and waiting:
            status = _exited(pid)
            if status is not None:  # the child is gone; only a grandchild can hold the pipes
                deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
    if status is None:
        status = _wait(pid, deadline)
    if waiting:
        _kill_group(pid)
    if status is None:
        _kill_group(pid)
        _wait(pid, time.monotonic() + GRACE_SECONDS)
        raise Unanswered("no answer in %g s" % seconds)
    out, err = (bytes(streams[fd][:OUTPUT_LIMIT]).decode("utf-8", "replace") for fd in (out_fd, err_fd))
    return _exit_code(status), out, err


def _exited(pid: int) -> int | None:
    try:
        gone, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:  # somebody else reaped it (a host program that ignores SIGCHLD)
        return 0
    return status if gone else None


def _wait(pid: int, deadline: float) -> int | None:
    pause = 0.0005
    while True:
        status = _exited(pid)
        if status is not None or time.monotonic() >= deadline:
            return status
        time.sleep(pause)
        pause = min(pause * 2, 0.02)


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, SIGKILL)
    except OSError:
        return  # already gone, or not ours


def _exit_code(status: int) -> int:
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
