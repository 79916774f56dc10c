"""A mounted volume whose power can be cut.

With Syncline the volume lies in an image file and is mounted with option `volatile`: what no flush has covered is in the
daemon's memory only, so that killing the daemon is a power cut. The other backends (ext4, xfs) serve to try the scripts
themselves; there a cut is the FS_IOC_SHUTDOWN that does not flush the log.

$TRANSPORT (auto, dev or uring) says how requests reach the daemon. For uring the kernel's parameter is set while a volume is
being mounted, and put back.
"""

import ctypes
import fcntl
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

MNT_DETACH = 2
SHUTDOWN = 0x8004587D  # _IOR('X', 125, __u32)
SHUTDOWN_NO_LOG_FLUSH = 2
MOUNT_SECONDS_MAX = 30
BIG_JOURNAL = "4M"
TRANSPORT = os.environ.get("TRANSPORT", "auto")

libc = ctypes.CDLL(None, use_errno=True)


class SetUpError(Exception):
    """The machine or the command cannot do what the tests need."""


def clean_up_on_signals():
    """SIGTERM ends the script like any error does, so that mounts are removed."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def find_syncline():
    """The command under test: $SYNCLINE, else the newest build of syncline-lab in this workspace."""
    if command := os.environ.get("SYNCLINE"):
        return command
    top = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(top, "target"))
    built = [p for kind in ("release", "debug") if os.access(p := f"{target}/{kind}/syncline-lab", os.X_OK)]
    return max(built, key=os.path.getmtime, default=shutil.which("syncline"))


def run(*command, codes=(0,)):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    if done.returncode not in codes:
        raise AssertionError(f"{' '.join(command)}: exit {done.returncode}: {done.stdout.strip()}")
    return done.stdout


class TransportAllowed:
    """Lets the kernel have io_uring while something is being mounted, if $TRANSPORT says so."""

    PARAMETER = "/sys/module/fuse/parameters/enable_uring"

    def __enter__(self):
        self.lock = None
        if TRANSPORT != "uring":
            return
        self.lock = open(self.PARAMETER, "r")
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        self.before = self.lock.read()
        self._set("Y")

    def __exit__(self, *_):
        if self.lock:
            self._set(self.before.strip())
            self.lock.close()

    def _set(self, value):
        with open(self.PARAMETER, "w") as parameter:
            parameter.write(value)


class Volume:
    """One volume, its mount, and the files open on it."""

    def __init__(self, backend="syncline", scratch="/var/tmp", journal=BIG_JOURNAL, mebibytes=64, version=None):
        self.syncline = find_syncline()
        if backend == "syncline" and not self.syncline:
            raise SetUpError("no syncline command; run make build")
        if backend == "syncline" and not os.path.exists("/dev/fuse"):
            raise SetUpError("there is no /dev/fuse")
        if backend == "syncline" and TRANSPORT == "uring" and not os.path.exists(TransportAllowed.PARAMETER):
            raise SetUpError("this kernel has no FUSE over io_uring")
        self.backend = backend
        self.journal = journal
        # Of the format; `None` is what mkfs makes.
        self.version = version
        self.mebibytes = mebibytes if backend == "syncline" else max(mebibytes, 320 if backend == "xfs" else 64)
        self.work = tempfile.mkdtemp(prefix="syncline-crash.", dir=scratch)
        self.image = f"{self.work}/image"
        self.top = f"{self.work}/mnt"
        self.log = f"{self.work}/daemon.log"
        self.device = None
        self.daemon = None
        self.mounted = False
        self.handles = set()
        os.mkdir(self.top)

    # Life of the volume.

    def format(self):
        if self.device:
            run("losetup", "--detach", self.device)
            self.device = None
        if os.path.exists(self.image):
            os.unlink(self.image)
        if self.backend == "syncline":
            size = f"{self.mebibytes}M"
            version = ("--format", str(self.version)) if self.version else ()
            run(self.syncline, "mkfs", "--quiet", "--size", size, "--journal-size", self.journal, *version, self.image)
            return
        with open(self.image, "wb") as file:
            file.truncate(self.mebibytes << 20)
        self.device = run("losetup", "--find", "--show", self.image).strip()
        how = ("-f",) if self.backend == "xfs" else ("-F", "-b", "4096")
        run(f"mkfs.{self.backend}", "-q", *how, self.device)

    def mount(self, options="commit=3600"):
        assert not self.mounted
        if self.backend == "syncline":
            with TransportAllowed():
                self._spawn_daemon(options)
                self._wait_until_live()
        else:
            run("mount", self.device, self.top)
        self.mounted = True

    def mount_interrupted(self, options, seconds):
        """Starts mounting and cuts the power after this time, wherever recovery is then."""
        with TransportAllowed():
            self._spawn_daemon(options)
            time.sleep(seconds)
        self.abandon()

    def _spawn_daemon(self, options):
        command = [self.syncline, "mount", "--foreground", "-o", f"volatile,transport={TRANSPORT},{options}", self.image, self.top]
        with open(self.log, "ab") as log:
            self.daemon = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _wait_until_live(self):
        outside = os.stat(self.work).st_dev
        deadline = time.monotonic() + MOUNT_SECONDS_MAX
        while True:
            if self.daemon.poll() is not None:
                raise AssertionError(f"mount failed with exit {self.daemon.returncode}: {self.last_log()}")
            try:
                if os.stat(self.top).st_dev != outside:
                    return
            except OSError:
                # Attached, but the handshake is not over, or the daemon has just died.
                pass
            if time.monotonic() > deadline:
                raise AssertionError(f"no mount within {MOUNT_SECONDS_MAX} s: {self.last_log()}")
            time.sleep(0.003)

    def last_log(self):
        with open(self.log, "rb") as file:
            return file.read()[-2000:].decode(errors="replace").strip()

    def cut(self, kill=True):
        """The power cut. With `kill` false the daemon is dead already."""
        if self.backend == "syncline":
            if kill:
                self.daemon.send_signal(signal.SIGKILL)
            self.daemon.wait()
            self.daemon = None
        else:
            top = os.open(self.top, os.O_RDONLY)
            fcntl.ioctl(top, SHUTDOWN, struct.pack("I", SHUTDOWN_NO_LOG_FLUSH))
            os.close(top)
        self.close_handles()
        self._detach()

    def _detach(self):
        lazily = MNT_DETACH if self.backend == "syncline" else 0
        if libc.umount2(os.fsencode(self.top), lazily) != 0:
            raise AssertionError(f"umount: {os.strerror(ctypes.get_errno())}")
        self.mounted = False

    def abandon(self):
        """After a failure: whatever is mounted goes away, in whatever state it is."""
        if self.daemon:
            self.daemon.kill()
            self.daemon.wait()
            self.daemon = None
        self.close_handles()
        while libc.umount2(os.fsencode(self.top), MNT_DETACH) == 0:
            pass
        self.mounted = False

    def unmount(self):
        self.close_handles()
        if self.backend == "syncline":
            run(self.syncline, "umount", self.top)
            code = self.daemon.wait(timeout=MOUNT_SECONDS_MAX)
            self.daemon = None
            assert code == 0, f"the daemon ended with exit {code}: {self.last_log()}"
        else:
            run("umount", self.top)
        self.mounted = False

    def check(self):
        """The unmounted volume must be clean."""
        if self.backend == "syncline":
            run(self.syncline, "check", self.image)
        elif self.backend == "ext4":
            run("e2fsck", "-fn", self.device)
        else:
            run("xfs_repair", "-n", self.device)

    def sync_all(self):
        if self.backend == "syncline":
            self.fsync(".")
        else:
            os.sync()

    def destroy(self):
        self.abandon()
        if self.device:
            subprocess.run(["losetup", "--detach", self.device], check=False)
        shutil.rmtree(self.work, ignore_errors=True)

    # Operations by name under the mount.

    def path(self, name):
        return os.path.join(self.top, name)

    def open(self, name, flags=os.O_RDWR, mode=0o644):
        """A descriptor that is closed at the cut at the latest."""
        handle = os.open(self.path(name), flags, mode)
        self.handles.add(handle)
        return handle

    def close(self, handle):
        self.handles.discard(handle)
        os.close(handle)

    def close_handles(self):
        for handle in self.handles:
            try:
                os.close(handle)
            except OSError:
                # The daemon is gone.
                pass
        self.handles.clear()

    def fsync(self, name, data_only=False):
        flags = os.O_RDONLY | os.O_NONBLOCK
        handle = os.open(self.path(name), flags)
        try:
            (os.fdatasync if data_only else os.fsync)(handle)
        finally:
            os.close(handle)

    def write(self, name, data, at=None, sync=False):
        """Without `at` the file is created or replaced; with it, data goes there."""
        flags = os.O_CREAT | os.O_WRONLY | (os.O_TRUNC if at is None else 0)
        handle = os.open(self.path(name), flags, 0o644)
        try:
            view, at = memoryview(data), at or 0
            while view:
                done = os.pwrite(handle, view, at)
                view, at = view[done:], at + done
            if sync:
                os.fsync(handle)
        finally:
            os.close(handle)

    def read(self, name):
        with open(self.path(name), "rb") as file:
            return file.read()

    def exists(self, name):
        return os.path.lexists(self.path(name))

    def list(self, name="."):
        return sorted(n for n in os.listdir(self.path(name)) if n != "lost+found")

    def stat(self, name):
        return os.lstat(self.path(name))
