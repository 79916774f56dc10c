# Everything a contributor needs. Each target sets up what it needs itself (scripts/setup.sh installs missing Debian or
# Ubuntu packages by name where it may, after asking), so a fresh machine with a Rust toolchain is enough. Where nobody
# can be asked, SETUP=yes is the answer; CI=true is one too.

CARGO ?= cargo
PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
SBINDIR ?= /sbin
UDEVDIR ?= $(PREFIX)/lib/udev/rules.d
EXAMPLESDIR ?= $(PREFIX)/share/doc/syncline/examples
DEBUGDIR ?= /usr/lib/debug
DESTDIR ?=
LDCONFIG ?= ldconfig

# What cargo has built, with line tables. LAB is the command under which a kill is a power cut, for tests; nothing ships
# it.
RELEASE = $(or $(CARGO_TARGET_DIR),target)/release
BIN = $(RELEASE)/syncline
LAB = $(RELEASE)/syncline-lab
# What is installed: stripped; the line tables are files of their own in dist/debug.
STRIPPED = dist/bin
SHIPPED = $(STRIPPED)/syncline
SQLITE = $(STRIPPED)/libsyncline_sqlite.so
LIBRARY = $(STRIPPED)/libsyncline.so.1
STATIC = dist/lib/libsyncline.a
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
TOOLS = syncline-bench syncline-demo
NAMES = mkfs.syncline fsck.syncline mount.syncline mount.fuse.syncline mount.fuseblk.syncline \
	umount.syncline umount.fuse.syncline umount.fuseblk.syncline

# Of make crash and, the minutes, of make fuzz.
SEED ?= 1
MINUTES ?= 20

# Of make cuts and make mount-cuts.
CUTS ?= 500
TRANSPORT ?= auto

# Of make threads: schedules of each scenario and scheduler.
SCHEDULES ?= 20000

.PHONY: help build tools lab wheel wheel-arm64 book sbom test test-python test-documents bench-python test-full crash cuts mount-cuts faults model threads fuzz golden workloads bench bench-aims bench-snapshots bench-replica bench-full check fmt lint tidy demo man install install-tools install-debug uninstall deb test-deb rpm dist publish-check clean

help:
	@echo "make build      the syncline command, the SQLite extension and the C library, optimised, and in dist/ without line tables"
	@echo "make tools      syncline-bench and syncline-demo, which \"syncline bench\" and \"syncline demo\" start"
	@echo "make lab        syncline-lab: the command as tests of power cuts need it"
	@echo "make wheel      the Python package, dist/syncline-*.whl (docs/python.md)"
	@echo "make wheel-arm64 the same for arm64, dist/arm64/syncline-*.whl, and its test"
	@echo "make book       the documentation as a book, dist/book"
	@echo "make demo       power cuts under SQLite and many small files, and what is left after them"
	@echo "make test       all tests that run in minutes (what CI runs)"
	@echo "make test-full  the long rest as well: random power cuts, other programs' workloads (as root; hours)"
	@echo "make test-python the Python package's tests, from its wheel, in an environment of their own"
	@echo "make test-documents what README, docs/c.md and the book tell their readers to type, run from their text"
	@echo "make bench-python Python beside Rust, and fsspec beside the host's files (DIRECTORY=where)"
	@echo "make workloads  other programs' workloads on a mount, in minutes (as root)"
	@echo "make bench      what a sync costs here, beside ext4, xfs and btrfs, in ten minutes (as root)"
	@echo "make bench-snapshots what snapshots cost, beside xfs and btrfs, in 15 minutes (as root; nothing else may run)"
	@echo "make bench-replica what replicas, NBD and Ceph cost, beside Litestream, in 25 minutes (as root; nothing else may run)"
	@echo "make bench-aims bulk work and busy machines against ext4, over each transport, judged, in twelve minutes (as root)"
	@echo "make bench-full the same and more in 45 minutes, into docs/measurements/full-run.md (as root; nothing else may run)"
	@echo "make crash      the crash laboratory (SEED=1, MINUTES=20; docs/testing.md)"
	@echo "make cuts       random operations on a mount that is killed at random moments, deletions of snapshots too, and random programs of processes (CUTS=500, SEED=1; docs/testing.md)"
	@echo "make mount-cuts the laboratory's exhaustive workloads on a mount that is killed (CUTS=500, SEED=1, TRANSPORT=auto)"
	@echo "make model      the design's model: every rule on, and off alone (minutes; docs/testing.md)"
	@echo "make threads    the store's threads in many orders (SEED=1, SCHEDULES=20000; docs/testing.md)"
	@echo "make fuzz       the fuzzers of the format and of whole images (MINUTES=20; docs/testing.md)"
	@echo "make golden     writes the golden images that are missing (docs/testing.md)"
	@echo "make faults     mistakes planted into a copy of the engine, which the laboratory has to find (part of make crash)"
	@echo "make check      format, lints, tidy and tests: run it before you send a change"
	@echo "make man        manual pages and shell completions in dist/"
	@echo "make install    what make build man has made: the command, its mkfs/fsck/mount names, the SQLite extension, the C library with its headers, manual pages (PREFIX, LIBDIR, SBINDIR, DESTDIR)"
	@echo "make install-tools what make tools man has made"
	@echo "make install-debug the line tables of both, where debuggers look for them (DEBUGDIR)"
	@echo "make deb        Debian packages in dist/deb (docs/packaging.md)"
	@echo "make rpm        RPM packages in dist/rpm"
	@echo "make dist       the sources of the last commit, dist/syncline-VERSION.tar.gz, the same bytes each time"
	@echo "make sbom       the bill of materials of what ships, dist/syncline-VERSION.spdx.json (SPDX 2.3)"
	@echo "make publish-check the crates as crates.io would take them; sends nothing (VERIFY=yes builds each from its package)"
	@echo "make test-deb   installs, uses, upgrades and purges them in a fresh root, boots one, and builds the container (as root; some minutes)"
	@echo "make uninstall  takes away what make install, install-tools and install-debug have put there"

build:
	@scripts/setup.sh build
	$(CARGO) build --release --locked -p syncline-cli -p syncline-extension -p syncline-capi --features syncline-cli/s3
	@scripts/libsyncline.sh $(RELEASE)/libsyncline_capi.a $(RELEASE)/libsyncline
	@scripts/ship.sh dist $(BIN) $(RELEASE)/libsyncline_sqlite.so $(RELEASE)/libsyncline/libsyncline.so.1
	@install -D -m 0644 $(RELEASE)/libsyncline/libsyncline.a $(STATIC)

# A call of its own: cargo gives each crate every feature that another one of the same call asks for.
tools:
	@scripts/setup.sh build
	$(CARGO) build --release --locked -p syncline-bench -p syncline-demo
	@scripts/ship.sh dist $(addprefix $(RELEASE)/,$(TOOLS))

lab:
	@scripts/setup.sh build
	$(CARGO) build --release --locked -p syncline-lab --features syncline-cli/s3

test:
	@scripts/setup.sh test
	@scripts/test.sh

wheel:
	@scripts/setup.sh test-python
	@scripts/python.sh wheel

wheel-arm64:
	@scripts/setup.sh wheel-arm64
	@scripts/python.sh wheel-arm64
	@tests/packages/wheel-arm64

book:
	@scripts/setup.sh build
	@scripts/book.sh

sbom:
	@mkdir -p dist
	$(CARGO) run --quiet --locked -p xtask --no-default-features -- sbom dist/syncline-$(VERSION).spdx.json

test-documents:
	@scripts/setup.sh test
	@scripts/python.sh environment
	@tests/documents

test-python:
	@scripts/setup.sh test-python
	@scripts/python.sh test

bench-python:
	@scripts/setup.sh test-python
	@scripts/python.sh bench $(if $(DIRECTORY),--directory $(DIRECTORY))

test-full: build lab
	@scripts/setup.sh test-full
	@SYNCLINE_TEST_FULL=1 scripts/test.sh --release
	@SYNCLINE=$(LAB) tests/crash/random_cuts.py --cuts 200
	@SYNCLINE=$(LAB) tests/crash/random_cuts.py --cuts 100 --seed 2 --size 8
	@SYNCLINE=$(LAB) tests/crash/deletions.py --cuts 200
	@SYNCLINE=$(LAB) tests/run-workloads --full
	@SYNCLINE=$(LAB) CLAIMS=200 RESTORES=50 tests/replica/servers.sh moto versitygw radosgw

workloads: lab
	@scripts/setup.sh test-full
	@SYNCLINE=$(LAB) tests/run-workloads --quick

bench: build tools
	@scripts/setup.sh bench
	$(BIN) bench --short

bench-snapshots: build tools
	@scripts/setup.sh bench
	scripts/bench-snapshots.sh $(BIN) $(dir $(BIN))bench-snapshots.json

bench-replica: build
	@scripts/setup.sh bench-replica
	SYNCLINE=$(BIN) tests/replica/figures.py --json $(dir $(BIN))bench-replica.json

bench-aims: build tools
	@scripts/setup.sh bench
	$(BIN) bench --aims --json $(dir $(BIN))bench-aims.json

bench-full: build tools
	@scripts/setup.sh bench
	scripts/bench-full.sh $(BIN) $(dir $(BIN))bench-results.json

faults:
	@scripts/setup.sh build
	$(CARGO) run --release --locked -p syncline-sim -- faults --seed $(SEED)

cuts: build lab
	@scripts/setup.sh test-full
	@SYNCLINE=$(LAB) tests/crash/random_cuts.py --cuts $(CUTS) --seed $(SEED)
	@SYNCLINE=$(LAB) tests/crash/deletions.py --cuts $(CUTS) --seed $(SEED)
	@SYNCLINE=$(LAB) tests/crash/processes.py --rounds $(CUTS) --seed $(SEED)

mount-cuts: lab
	@scripts/setup.sh test-full
	$(CARGO) run --release --locked -p syncline-sim -- mount --command $(LAB) --transport $(TRANSPORT) --cuts $(CUTS) --seed $(SEED)

crash:
	@scripts/setup.sh build
	$(CARGO) run --release --locked -p syncline-sim -- all --seed $(SEED) --minutes $(MINUTES)

model:
	@scripts/setup.sh build
	$(CARGO) run --release --locked -p syncline-model -- large

threads:
	@scripts/setup.sh build
	SEED=$(SEED) SCHEDULES=$(SCHEDULES) $(CARGO) test --release --locked -p syncline-threads -p syncline-threads-loom -- --nocapture

fuzz:
	@scripts/setup.sh fuzz
	@scripts/fuzz.sh $(MINUTES)

golden:
	@scripts/setup.sh build
	$(CARGO) run --quiet --release --locked -p syncline-images

check: fmt lint tidy test

fmt:
	$(CARGO) fmt --all --check

lint:
	@scripts/setup.sh build
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	@# As it is shipped: the workspace together has the features of tests and benchmarks switched on.
	$(CARGO) clippy -p syncline-cli -p syncline-extension -p syncline-capi --locked -- -D warnings
	@if command -v cargo-deny >/dev/null 2>&1; then $(CARGO) deny check; \
	else echo "cargo-deny is not installed: licences and advisories are not checked"; fi

tidy:
	$(CARGO) run --quiet --locked -p xtask --no-default-features -- tidy

demo: build tools
	@scripts/setup.sh demo
	@$(BIN) demo

man:
	$(CARGO) run --quiet --release --locked -p xtask -- man dist/man
	$(CARGO) run --quiet --release --locked -p xtask -- completions dist/completions

# Root, for whom this is mostly called, builds nothing: no build script of a dependency runs as root, and no file of
# root's is left in the target directory. What `make build man` has made before is installed as it is.
install:
	@if [ "$$(id -u)" != 0 ]; then $(MAKE) --no-print-directory build man; \
	elif ! [ -x $(SHIPPED) ] || ! [ -f $(SQLITE) ] || ! [ -f $(LIBRARY) ] || ! [ -f $(STATIC) ] || ! [ -d dist/man ] || ! [ -d dist/completions ]; then \
	echo "install: nothing is built here, and nothing is built as root; run \"make build man\" as a user first" >&2; exit 1; \
	elif [ -n "$$(find Cargo.lock crates xtask include -newer $(SHIPPED) -type f \( -name '*.rs' -o -name '*.h' -o -name '*.map' -o -name 'Cargo.*' \) 2>/dev/null | head -n 1)" ]; then \
	echo "install: the sources are newer than what is built and now installed; \"make build man\" as a user brings it up to date" >&2; fi
	install -D -m 0755 $(SHIPPED) $(DESTDIR)$(PREFIX)/bin/syncline
	install -D -m 0755 $(SQLITE) $(DESTDIR)$(LIBDIR)/libsyncline_sqlite.so
	install -D -m 0755 $(LIBRARY) $(DESTDIR)$(LIBDIR)/libsyncline.so.1
	ln -sf libsyncline.so.1 $(DESTDIR)$(LIBDIR)/libsyncline.so
	install -D -m 0644 $(STATIC) $(DESTDIR)$(LIBDIR)/libsyncline.a
	install -d $(DESTDIR)$(LIBDIR)/pkgconfig
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(patsubst $(PREFIX)/%,$${prefix}/%,$(LIBDIR))|' -e 's|@VERSION@|$(VERSION)|' crates/capi/syncline.pc.in >$(DESTDIR)$(LIBDIR)/pkgconfig/syncline.pc
	chmod 0644 $(DESTDIR)$(LIBDIR)/pkgconfig/syncline.pc
	@# Programs find libsyncline.so.1, and SQLite's .load its extension, by the table that ldconfig makes. A package does that for itself.
	if [ -z "$(DESTDIR)" ] && [ "$$(id -u)" = 0 ] && command -v $(LDCONFIG) >/dev/null; then $(LDCONFIG); fi
	install -d $(DESTDIR)$(PREFIX)/include/syncline
	install -m 0644 include/syncline/syncline.h include/syncline/ioctl.h $(DESTDIR)$(PREFIX)/include/syncline/
	install -m 0644 include/syncline.h $(DESTDIR)$(PREFIX)/include/syncline.h
	install -d $(DESTDIR)$(SBINDIR) $(DESTDIR)$(PREFIX)/share/man/man8
	for name in $(NAMES); do ln -sf $(PREFIX)/bin/syncline $(DESTDIR)$(SBINDIR)/$$name; done
	install -d $(DESTDIR)$(UDEVDIR) $(DESTDIR)$(EXAMPLESDIR)
	sed -e 's|@PREFIX@|$(PREFIX)|' packaging/udev/61-syncline.rules >$(DESTDIR)$(UDEVDIR)/61-syncline.rules
	chmod 0644 $(DESTDIR)$(UDEVDIR)/61-syncline.rules
	install -m 0644 packaging/examples/* $(DESTDIR)$(EXAMPLESDIR)/
	install -m 0644 dist/man/*.8 $(DESTDIR)$(PREFIX)/share/man/man8/
	install -D -m 0644 dist/completions/syncline.bash $(DESTDIR)$(PREFIX)/share/bash-completion/completions/syncline
	install -D -m 0644 dist/completions/_syncline $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_syncline
	install -D -m 0644 dist/completions/syncline.fish $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/syncline.fish

# As root it builds nothing either.
install-tools:
	@if [ "$$(id -u)" != 0 ]; then $(MAKE) --no-print-directory tools man; \
	elif ! [ -x $(STRIPPED)/syncline-bench ] || ! [ -x $(STRIPPED)/syncline-demo ] || ! [ -d dist/completions ]; then \
	echo "install-tools: nothing is built here, and nothing is built as root; run \"make tools man\" as a user first" >&2; exit 1; fi
	for name in $(TOOLS); do \
	install -D -m 0755 $(STRIPPED)/$$name $(DESTDIR)$(PREFIX)/bin/$$name; \
	install -D -m 0644 dist/man/$$name.8 $(DESTDIR)$(PREFIX)/share/man/man8/$$name.8; \
	install -D -m 0644 dist/completions/$$name.bash $(DESTDIR)$(PREFIX)/share/bash-completion/completions/$$name; \
	install -D -m 0644 dist/completions/_$$name $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_$$name; \
	install -D -m 0644 dist/completions/$$name.fish $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/$$name.fish; done

# By the path of the program, as gdb and the runtime's own backtraces look them up.
install-debug:
	@[ -d dist/debug ] || { echo "install-debug: nothing is built here; run \"make build\" first" >&2; exit 1; }
	for name in libsyncline_sqlite.so libsyncline.so.1; do \
	install -D -m 0644 dist/debug/$$name.debug $(DESTDIR)$(DEBUGDIR)$(LIBDIR)/$$name.debug; done
	for name in syncline $(TOOLS); do if [ -f dist/debug/$$name.debug ]; then \
	install -D -m 0644 dist/debug/$$name.debug $(DESTDIR)$(DEBUGDIR)$(PREFIX)/bin/$$name.debug; fi; done

uninstall:
	for name in syncline $(TOOLS); do rm -f $(DESTDIR)$(PREFIX)/bin/$$name $(DESTDIR)$(DEBUGDIR)$(PREFIX)/bin/$$name.debug; \
	rm -f $(DESTDIR)$(PREFIX)/share/bash-completion/completions/$$name $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_$$name; \
	rm -f $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/$$name.fish; done
	for name in libsyncline_sqlite.so libsyncline.so.1; do \
	rm -f $(DESTDIR)$(LIBDIR)/$$name $(DESTDIR)$(DEBUGDIR)$(LIBDIR)/$$name.debug; done
	rm -f $(DESTDIR)$(LIBDIR)/libsyncline.so $(DESTDIR)$(LIBDIR)/libsyncline.a $(DESTDIR)$(LIBDIR)/pkgconfig/syncline.pc
	rm -f $(DESTDIR)$(PREFIX)/include/syncline.h $(DESTDIR)$(PREFIX)/include/syncline/syncline.h $(DESTDIR)$(PREFIX)/include/syncline/ioctl.h
	if [ -d $(DESTDIR)$(PREFIX)/include/syncline ]; then rmdir --ignore-fail-on-non-empty $(DESTDIR)$(PREFIX)/include/syncline; fi
	for name in $(NAMES); do rm -f $(DESTDIR)$(SBINDIR)/$$name $(DESTDIR)$(PREFIX)/share/man/man8/$$name.8; done
	rm -f $(DESTDIR)$(UDEVDIR)/61-syncline.rules
	for file in packaging/examples/*; do rm -f $(DESTDIR)$(EXAMPLESDIR)/$${file##*/}; done
	for directory in examples .; do directory=$(DESTDIR)$(EXAMPLESDIR)/../$$directory; \
	if [ -d $$directory ]; then rmdir --ignore-fail-on-non-empty $$directory; fi; done
	rm -f $(DESTDIR)$(PREFIX)/share/man/man8/syncline.8 $(DESTDIR)$(PREFIX)/share/man/man8/syncline-*.8

# Nothing of this needs root. The packages have what is built here, as make install would install it.
deb: build tools man
	@scripts/setup.sh deb
	@scripts/deb.sh $(RELEASE)

rpm: build tools man
	@scripts/setup.sh rpm
	@scripts/rpm.sh $(RELEASE)/../rpm

# Of the last commit.
dist:
	@scripts/dist.sh

publish-check:
	@scripts/publish.sh $(if $(VERIFY),--verify)

test-deb: deb
	@scripts/setup.sh test-deb
	@tests/packages/install
	@tests/packages/run
	@tests/packages/boot
	@tests/packages/container

clean:
	$(CARGO) clean
	rm -rf dist
