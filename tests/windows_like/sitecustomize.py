"""Makes a Python process as poor as it is on Windows; every process finds this that has the folder in PYTHONPATH.

Gone are the functions, constants and modules that Windows lacks. Refused is what it refuses: to open a folder, to sync
a file that was not opened to be written, to replace or remove one that is open or mapped, to rename onto another. A
file opened without an encoding is an error where bansong does it, since Windows would take CP949 for it. What the
standard library, polars and others need to go on working on this system is imported before.
"""

from __future__ import annotations

import asyncio.base_subprocess
import asyncio.unix_events
import errno
import io
import logging.handlers
import multiprocessing.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio._backends._asyncio
import filelock
import platformdirs

UNIX_LOCKS = sys.modules[filelock.UnixFileLock.__module__]  # one place in filelock 3, another in 4
KEPT = (asyncio, anyio, filelock, logging, multiprocessing, platformdirs, socket, tempfile)

MODULES = ("fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty")
OF_OS = (
    *("chown", "fchmod", "fchown", "fork", "forkpty", "getegid", "geteuid", "getgid", "getgroups", "getloadavg"),
    *("getpgid", "getpgrp", "getpriority", "getsid", "getuid", "killpg", "lchown", "mkfifo", "mknod", "nice"),
    *("pathconf", "pread", "pwrite", "sched_yield", "sendfile", "setpgid", "setsid", "setuid"),
    *("statvfs", "sync", "sysconf", "fdatasync", "get_blocking", "set_blocking", "posix_fadvise"),
    *("posix_fallocate", "ttyname", "openpty", "wait", "O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW"),
    *("O_DSYNC", "O_SYNC", "O_NOCTTY", "fchdir", "chroot"),
)
OF_SIGNAL = (
    *("SIGALRM", "SIGCHLD", "SIGCONT", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGSTOP", "SIGTSTP", "SIGURG"),
    *("SIGUSR1", "SIGUSR2", "SIGWINCH", "alarm", "pause", "pthread_kill", "pthread_sigmask", "setitimer", "sigpending"),
    *("sigtimedwait", "sigwait", "siginterrupt"),
)


def refuse_folders(open_: Callable[..., int]) -> Callable[..., int]:
    def call(path: Any, *arguments: Any, **options: Any) -> int:
        if os.path.isdir(path):  # noqa: PTH112
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return open_(path, *arguments, **options)

    return call


def refuse_read_only(fsync: Callable[[int], None]) -> Callable[[int], None]:
    def call(descriptor: int) -> None:
        about = dict(line.split(":\t") for line in text_of(f"/proc/self/fdinfo/{descriptor}").splitlines() if line)
        if int(about["flags"], 8) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "Bad file descriptor")
        fsync(descriptor)

    return call


def refuse_open(call_: Callable[..., None], *, onto_others: bool = True) -> Callable[..., None]:
    def call(*paths: Any, **options: Any) -> None:
        names = (paths[0], None, *paths[1:])  # as Windows names both of a rename, whichever is the one
        if any(map(is_open, paths)):
            raise PermissionError(errno.EACCES, "The process cannot access the file: it is being used", *names)
        if not onto_others and os.path.lexists(paths[1]):
            raise FileExistsError(errno.EEXIST, "File exists", *names)
        call_(*paths, **options)

    return call


def is_open(path: Any) -> bool:
    """Whether this process has a file open or mapped, under any of its names."""
    try:
        wanted = STAT(path)
    except OSError:
        return False
    for descriptor in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            found = STAT(f"/proc/self/fd/{descriptor}")
        except OSError:
            continue
        if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
            return True
    device = f"{os.major(wanted.st_dev):02x}:{os.minor(wanted.st_dev):02x}"
    mapped = (line.split(maxsplit=5) for line in text_of("/proc/self/maps").splitlines())
    return any(len(line) > 5 and line[3] == device and line[4] == str(wanted.st_ino) for line in mapped)


def text_of(path: str) -> str:
    with OPEN(path, encoding="utf-8") as file:
        return str(file.read())


def without_proc(open_: Callable[..., Any]) -> Callable[..., Any]:
    def call(path: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(path, str | Path) and str(path).startswith("/proc/"):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
        return open_(path, *arguments, **options)

    return call


def no_descriptor(chmod: Callable[..., None]) -> Callable[..., None]:
    def call(path: Any, mode: int, **options: Any) -> None:
        if isinstance(path, int):
            raise TypeError("chmod: path should be string, bytes or os.PathLike, not int")
        chmod(path, mode, **options)

    return call


KILL = signal.SIGKILL
STAT, OPEN = os.stat, io.open
subprocess.Popen.kill = lambda self: self.send_signal(KILL)  # type: ignore[method-assign]
shutil._use_fd_functions = False  # type: ignore[attr-defined]
for theirs in (UNIX_LOCKS, asyncio.unix_events):  # which are not what Windows uses
    theirs.os = SimpleNamespace(**vars(os))  # type: ignore[attr-defined]
tempfile._os = SimpleNamespace(**vars(os))  # type: ignore[attr-defined]
asyncio.base_subprocess.signal = SimpleNamespace(**vars(signal))  # type: ignore[attr-defined]
for name in MODULES:
    sys.modules[name] = None  # type: ignore[assignment]
for module, names in ((os, OF_OS), (signal, OF_SIGNAL)):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
os.supports_fd = os.supports_fd - {os.chmod}
os.open = refuse_folders(os.open)
os.fsync = refuse_read_only(os.fsync)
os.replace = refuse_open(os.replace)
os.rename = refuse_open(os.rename, onto_others=False)
os.unlink = os.remove = refuse_open(os.unlink)
os.chmod = no_descriptor(os.chmod)
io.open, os.stat = without_proc(io.open), without_proc(os.stat)
warnings.filterwarnings("error", category=EncodingWarning, module=r"bansong(\.|$)")
