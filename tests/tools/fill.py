"""Fills a volume with files whose content follows from their name, and verifies all of them.

usage: fill.py DIRECTORY most|brim|verify|empty ROUNDS MODEL

MODEL keeps from run to run what must be there, one "name size version" a line.
"""

import errno
import hashlib
import os
import random
import sys
import time

SHARE_MOST = 0.95
SIZES = [100, 4096, 30_000, 200_000, 1_500_000]


def content(name, size, version):
    seed = hashlib.sha256(f"{name}/{version}".encode()).digest()
    return (seed * (size // 32 + 1))[:size]


class Filler:
    def __init__(self, directory, model):
        self.directory, self.model_path, self.files, self.next = directory, model, {}, 0
        self.random = random.Random(7)
        if os.path.exists(model):
            for line in open(model):
                name, size, version = line.split()
                self.files[name] = (int(size), int(version))
                self.next = max(self.next, int(name) + 1)

    def save(self):
        with open(self.model_path, "w") as file:
            for name, (size, version) in self.files.items():
                file.write(f"{name} {size} {version}\n")

    def path(self, name):
        return os.path.join(self.directory, name)

    def used_share(self):
        info = os.statvfs(self.directory)
        return 1 - info.f_bavail / info.f_blocks

    def put(self, name, size, version, sync):
        """Writes a file. ENOSPC is allowed from open and write only; then the file is removed."""
        data = content(name, size, version)
        try:
            file = os.open(self.path(name), os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
        except OSError as error:
            assert error.errno == errno.ENOSPC, error
            return False
        fits = True
        try:
            done = 0
            while done < size:
                done += os.write(file, data[done : done + (1 << 20)])
        except OSError as error:
            assert error.errno == errno.ENOSPC, error
            fits = False
        # What was accepted is kept: neither of these may complain about space.
        if sync:
            os.fsync(file)
        os.close(file)
        if not fits:
            os.unlink(self.path(name))
            self.files.pop(name, None)
            return False
        self.files[name] = (size, version)
        return True

    def fill_to(self, share):
        """Fills until this share is used, or until there is no space; tells whether it fitted."""
        while self.used_share() < share:
            size = self.random.choice(SIZES) + self.random.randrange(4096)
            name = f"{self.next:06}"
            self.next += 1
            if not self.put(name, size, 0, sync=self.random.random() < 0.2):
                return False
        return True

    def fill_brim(self):
        """Ever smaller files until not even one byte fits."""
        for size in (1_000_000, 100_000, 4096, 1):
            for _ in range(100_000):
                name = f"{self.next:06}"
                self.next += 1
                if not self.put(name, size, 0, sync=False):
                    break
            else:
                raise AssertionError("the volume never gets full")
        directory = os.open(self.directory, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)

    def delete_third(self):
        for name in sorted(self.files)[::3]:
            os.unlink(self.path(name))
            del self.files[name]

    def overwrite_some(self):
        """In place: a copy-on-write filesystem needs space for it, and must have it or say so in write."""
        refused = 0
        for name in sorted(self.files)[:: max(1, len(self.files) // 50)]:
            size, version = self.files[name]
            file = os.open(self.path(name), os.O_RDWR)
            data = content(name, size, version + 1)
            try:
                assert os.pwrite(file, data, 0) == size, "a short write without an error"
                self.files[name] = (size, version + 1)
            except OSError as error:
                assert error.errno == errno.ENOSPC, error
                # Part of it may be new: make it whole again by removing it.
                refused += 1
                os.close(file)
                os.unlink(self.path(name))
                del self.files[name]
                continue
            except AssertionError:
                # A short write is how a volume says that the rest has no room.
                refused += 1
                os.close(file)
                os.unlink(self.path(name))
                del self.files[name]
                continue
            os.fsync(file)
            os.close(file)
        return refused

    def verify(self):
        there = set(os.listdir(self.directory)) - {"lost+found"}
        assert there == set(self.files), f"names differ: {sorted(there ^ set(self.files))[:5]}"
        for name, (size, version) in self.files.items():
            with open(self.path(name), "rb") as file:
                assert file.read() == content(name, size, version), f"content of {name} differs"

    def empty(self):
        for name in self.files:
            os.unlink(self.path(name))
        self.files.clear()
        # Freed blocks may be handed out only after a checkpoint; it comes by itself.
        deadline = time.monotonic() + 20
        while (share := self.used_share()) > 0.08 and time.monotonic() < deadline:
            time.sleep(0.2)
        assert share <= 0.08, f"{share:.0%} used on an empty volume"
        print(f"{share:.1%} used when empty")
        assert self.fill_to(0.5), "the freed space cannot be used"
        self.verify()


def main():
    directory, action, rounds, model = sys.argv[1:]
    filler = Filler(directory, model)
    if action == "verify":
        filler.verify()
    elif action == "empty":
        filler.empty()
    else:
        refused = 0
        for _ in range(int(rounds)):
            if action == "most":
                assert filler.fill_to(SHARE_MOST), f"no space at {filler.used_share():.1%}"
            else:
                filler.fill_brim()
            filler.verify()
            refused += filler.overwrite_some()
            filler.delete_third()
            filler.verify()
        if action == "most":
            assert filler.fill_to(SHARE_MOST), f"no space at {filler.used_share():.1%}"
        else:
            filler.fill_brim()
        filler.verify()
        print(f"{len(filler.files)} files, {filler.used_share():.1%} used, {refused} overwrites refused")
    filler.save()


main()
