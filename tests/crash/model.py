"""What may be there after a power cut: a model of one tree, as strict as docs/contract.md.

Metadata operations are numbered. Each leaves a snapshot of the namespace, and after a cut the tree must equal one of the
snapshots from the last one a sync covered to the last one begun (C1, C2). A file's content must be made of versions from
the last synced one on, page by page; a rename over an existing name sets a floor of its own in every snapshot behind it (C3).

Within one tree all operations come from one thread; several trees on one volume share its journal, so a sync in one covers the
operations of all that had returned before it began.
"""

import os
import stat
import threading

PAGE = 4096


class Node:
    """One inode."""

    def __init__(self, kind, mode, target=None):
        self.kind, self.mode, self.target = kind, mode, target
        self.xattrs = {}
        self.entries = {} if kind == "dir" else None
        # Of files: contents, oldest that may be seen first; and (operation, version) pairs of C3.
        self.versions = [b""]
        self.base = 0
        self.floors = []

    def content(self):
        return self.versions[-1]

    def append_version(self, data):
        self.versions.append(data)


class Tree:
    """The model of one directory under the mount's top."""

    def __init__(self):
        self.root = Node("dir", 0o755)
        # Operations begun so far; snapshots by operation number from `covered` on.
        self.begun = 0
        self.returned = 0
        self.covered = 0
        # Guards `covered` and `snapshots`: other workers' syncs cover this tree too.
        self.lock = threading.Lock()
        self.snapshots = {0: self.snapshot()}

    def snapshot(self):
        """Path to (node, kind, mode, target, attributes); nodes are shared, so that links are the same object."""
        found = {}
        stack = [("", self.root)]
        while stack:
            path, node = stack.pop()
            found[path] = (node, node.kind, node.mode, node.target, tuple(sorted(node.xattrs.items())))
            for name, child in (node.entries or {}).items():
                stack.append((f"{path}/{name}".lstrip("/"), child))
        return found

    def lookup(self, path):
        node = self.root
        for part in path.split("/") if path else []:
            node = node.entries[part]
        return node

    def parent(self, path):
        head, _, name = path.rpartition("/")
        return self.lookup(head), name

    def paths(self, kind):
        return sorted(p for p, entry in self.snapshot().items() if entry[1] == kind and p)

    def begin(self):
        """Called with the operation applied to the model, before the real one is done."""
        with self.lock:
            self.begun += 1
            self.snapshots[self.begun] = self.snapshot()

    def returned_now(self):
        self.returned = self.begun

    def undo(self):
        """The operation begun last was refused: nothing of it happened."""
        with self.lock:
            del self.snapshots[self.begun]
            self.begun -= 1
            before = self.snapshots[self.begun]
        for node, _, mode, _, xattrs in before.values():
            node.mode, node.xattrs = mode, dict(xattrs)
            node.entries = None if node.entries is None else {}
            node.floors = [floor for floor in node.floors if floor[0] <= self.begun]
        for path, entry in before.items():
            if path:
                head, _, name = path.rpartition("/")
                before[head][0].entries[name] = entry[0]

    def cover(self, upto):
        """A sync that began after operation `upto` had returned has succeeded."""
        with self.lock:
            if upto > self.covered:
                self.covered = upto
                self.snapshots = {n: s for n, s in self.snapshots.items() if n >= upto}

    @staticmethod
    def synced(node, version):
        """All of the node's data up to this version is durable."""
        node.base = max(node.base, version)

    # After the cut.

    def verify(self, top):
        """Compares the directory with every snapshot allowed; returns the number of the one it equals."""
        there = read_tree(top)
        problems = []
        for number in sorted(self.snapshots, reverse=True):
            problem = self.differs(self.snapshots[number], there, number)
            if problem is None:
                self.adopt(there, number)
                return number
            problems.append((number, problem))
        allowed = f"operations {self.covered} to {self.begun}"
        # Names right and content wrong is the more telling problem.
        number, problem = max(problems, key=lambda p: ("content" in p[1], p[0]))
        raise AssertionError(f"no prefix fits ({allowed}); nearest is {number}: {problem}")

    @staticmethod
    def differs(snapshot, there, number):
        if snapshot.keys() != there.keys():
            missing, extra = sorted(snapshot.keys() - there.keys()), sorted(there.keys() - snapshot.keys())
            return f"names: missing {missing[:4]}, extra {extra[:4]}"
        inodes = {}
        for path, (node, kind, mode, target, xattrs) in snapshot.items():
            real = there[path]
            if (kind, mode, target, xattrs) != (real.kind, real.mode, real.target, real.xattrs):
                want = (kind, oct(mode), target, xattrs)
                return f"attributes of {path!r}: want {want}, got {(real.kind, oct(real.mode), real.target, real.xattrs)}"
            if inodes.setdefault(id(node), real.inode) != real.inode:
                return f"links: {path!r} is another inode"
            if kind == "file":
                floors = [version for operation, version in node.floors if operation <= number]
                problem = content_differs(node.versions[max([node.base, *floors]) :], real.content)
                if problem:
                    return f"content of {path!r}: {problem}"
        if len(set(inodes.values())) != len(inodes):
            return "links: two files share one inode"
        return None

    def adopt(self, there, number):
        """What was found is durable, and where the next round starts."""
        nodes = {}
        snapshot = self.snapshots[number]
        for path in sorted(snapshot, key=lambda p: p.count("/") + bool(p)):
            node, kind, mode, target, xattrs = snapshot[path]
            if id(node) not in nodes:
                fresh = Node(kind, mode, target)
                fresh.xattrs = dict(xattrs)
                fresh.versions = [there[path].content]
                nodes[id(node)] = fresh
            fresh = nodes[id(node)]
            if path:
                head, _, name = path.rpartition("/")
                nodes[id(snapshot[head][0])].entries[name] = fresh
            else:
                self.root = fresh
        self.begun = self.returned = self.covered = 0
        self.snapshots = {0: self.snapshot()}


class Real:
    """What the mount shows at one path."""

    def __init__(self, path):
        info = os.lstat(path)
        self.inode = info.st_ino
        self.mode = stat.S_IMODE(info.st_mode)
        self.target = None
        self.content = b""
        self.xattrs = ()
        if stat.S_ISDIR(info.st_mode):
            self.kind = "dir"
        elif stat.S_ISLNK(info.st_mode):
            self.kind, self.target, self.mode = "link", os.readlink(path), 0o777
        elif stat.S_ISREG(info.st_mode):
            self.kind = "file"
            with open(path, "rb") as file:
                self.content = file.read()
            if len(self.content) != info.st_size:
                raise AssertionError(f"{path}: {len(self.content)} bytes read, size is {info.st_size}")
        else:
            self.kind = "other"
        if self.kind in ("dir", "file"):
            names = sorted(n for n in os.listxattr(path) if n.startswith("user."))
            self.xattrs = tuple((n, os.getxattr(path, n)) for n in names)


def read_tree(top):
    there = {"": Real(top)}
    for directory, directories, files in os.walk(top):
        for name in directories + files:
            path = os.path.join(directory, name)
            there[os.path.relpath(path, top)] = Real(path)
    return there


def content_differs(versions, got):
    """Whether each page of `got` is that of some version, and its size within theirs. Names the first bad page."""
    sizes = [len(v) for v in versions]
    if not min(sizes) <= len(got) <= max(sizes):
        return f"{len(got)} bytes, not {min(sizes)} to {max(sizes)} ({len(versions)} versions)"
    for at in range(0, len(got), PAGE):
        page = got[at : at + PAGE]
        if any(padded(v, at, len(page)) == page for v in versions):
            continue
        # A size between two versions' cuts a page of either short; a page may mix old and new within one version's
        # write.
        for index, byte in enumerate(page):
            if not any(byte == (v[at + index] if at + index < len(v) else 0) for v in versions):
                return f"byte {at + index} is {byte:#x}, in none of {len(versions)} versions"
    return None


def padded(version, at, length):
    return version[at : at + length].ljust(length, b"\0")

