# Everything a contributor needs. Each target sets up what it needs itself (scripts/setup.sh installs missing Debian or
# Ubuntu packages by name where it may, after asking), so a fresh machine with a Rust toolchain is enough. Where nobody can be
# asked, SETUP=yes is the answer; CI=true is one too.

CARGO ?= cargo
PREFIX ?= /usr/local
SBINDIR ?= /sbin
DESTDIR ?=
LDCONFIG ?= ldconfig

BIN = $(or $(CARGO_TARGET_DIR),target)/release/syncline
SQLITE = $(or $(CARGO_TARGET_DIR),target)/release/libsyncline_sqlite.so
NAMES = mkfs.syncline fsck.syncline mount.syncline mount.fuse.syncline mount.fuseblk.syncline

# Of make crash and, the minutes, of make fuzz.
SEED ?= 1
MINUTES ?= 20

# Of make cuts and make mount-cuts.
CUTS ?= 500
TRANSPORT ?= auto

# Of make threads: schedules of each scenario and scheduler.
SCHEDULES ?= 20000

.PHONY: help build test test-full crash cuts mount-cuts faults model threads fuzz golden workloads bench bench-full check fmt lint tidy demo man install uninstall clean

help:
	@echo "make build      the syncline command and the SQLite extension, optimised"
	@echo "make demo       a power cut under SQLite and 2,000 small files, and what is left after it"
	@echo "make test       all tests that run in minutes (what CI runs)"
	@echo "make test-full  the long rest as well: random power cuts, other programs' workloads (as root; hours)"
	@echo "make workloads  other programs' workloads on a mount, in minutes (as root)"
	@echo "make bench      what a sync costs here, beside ext4, xfs and btrfs, in ten minutes (as root)"
	@echo "make bench-full the same and more in 45 minutes, into docs/measurements/full-run.md (as root; nothing else may run)"
	@echo "make crash      the crash laboratory (SEED=1, MINUTES=20; docs/testing.md)"
	@echo "make cuts       random operations on a mount that is killed at random moments, and random programs of processes (CUTS=500, SEED=1; docs/testing.md)"
	@echo "make mount-cuts the laboratory's exhaustive workloads on a mount that is killed (CUTS=500, SEED=1, TRANSPORT=auto)"
	@echo "make model      the design's model: every rule on, and off alone (minutes; docs/testing.md)"
	@echo "make threads    the store's threads in many orders (SEED=1, SCHEDULES=20000; docs/testing.md)"
	@echo "make fuzz       the fuzzers of the format and of whole images (MINUTES=20; docs/testing.md)"
	@echo "make golden     writes the golden images that are missing (docs/testing.md)"
	@echo "make faults     mistakes planted into a copy of the engine, which the laboratory has to find (part of make crash)"
	@echo "make check      format, lints, tidy and tests: run it before you send a change"
	@echo "make man        manual pages and shell completions in dist/"
	@echo "make install    what make build man has made: the command, its mkfs/fsck/mount names, the SQLite extension, the C header, manual pages (PREFIX, SBINDIR, DESTDIR)"
	@echo "make uninstall  takes away what make install has put there"

build:
	@scripts/setup.sh build
	$(CARGO) build --release --locked -p syncline-cli -p syncline-sqlite

test:
	@scripts/setup.sh test
	@scripts/test.sh

test-full: build
	@scripts/setup.sh test-full
	@SYNCLINE_TEST_FULL=1 scripts/test.sh --release
	@SYNCLINE=$(BIN) tests/crash/random_cuts.py --cuts 200
	@SYNCLINE=$(BIN) tests/crash/random_cuts.py --cuts 100 --seed 2 --size 8
	@SYNCLINE=$(BIN) tests/run-workloads --full

workloads: build
	@scripts/setup.sh test-full
	@SYNCLINE=$(BIN) tests/run-workloads --quick

bench: build
	@scripts/setup.sh bench
	$(BIN) bench --short

bench-full: build
	@scripts/setup.sh bench
	scripts/bench-full.sh $(BIN) $(dir $(BIN))bench-results.json

faults:
	@scripts/setup.sh build
	$(CARGO) run --release --locked -p syncline-sim -- faults --seed $(SEED)

cuts: build
	@scripts/setup.sh test-full
	@SYNCLINE=$(BIN) tests/crash/random_cuts.py --cuts $(CUTS) --seed $(SEED)
	@SYNCLINE=$(BIN) tests/crash/processes.py --rounds $(CUTS) --seed $(SEED)

mount-cuts: build
	@scripts/setup.sh test-full
	$(CARGO) run --release --locked -p syncline-sim -- mount --command $(BIN) --transport $(TRANSPORT) --cuts $(CUTS) --seed $(SEED)

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
	@if command -v cargo-deny >/dev/null 2>&1; then $(CARGO) deny check; \
	else echo "cargo-deny is not installed: licences and advisories are not checked"; fi

tidy:
	$(CARGO) run --quiet --locked -p xtask -- tidy

demo: build
	@scripts/setup.sh demo
	@$(BIN) demo

man:
	$(CARGO) run --quiet --release --locked -p xtask -- man dist/man
	$(CARGO) run --quiet --release --locked -p xtask -- completions dist/completions

# Root, for whom this is mostly called, builds nothing: no build script of a dependency runs as root, and no file of root's is left in
# the target directory. What `make build man` has made before is installed as it is.
install:
	@if [ "$$(id -u)" != 0 ]; then $(MAKE) --no-print-directory build man; \
	elif ! [ -x $(BIN) ] || ! [ -f $(SQLITE) ] || ! [ -d dist/man ] || ! [ -d dist/completions ]; then \
	echo "install: nothing is built here, and nothing is built as root; run \"make build man\" as a user first" >&2; exit 1; \
	elif [ -n "$$(find Cargo.lock crates xtask include -newer $(BIN) -type f \( -name '*.rs' -o -name '*.h' -o -name 'Cargo.*' \) 2>/dev/null | head -n 1)" ]; then \
	echo "install: the sources are newer than what is built and now installed; \"make build man\" as a user brings it up to date" >&2; fi
	install -D -m 0755 $(BIN) $(DESTDIR)$(PREFIX)/bin/syncline
	install -D -m 0755 $(SQLITE) $(DESTDIR)$(PREFIX)/lib/libsyncline_sqlite.so
	@# SQLite's .load looks up libraries as programs do, by the table that ldconfig makes. A package does that for itself.
	if [ -z "$(DESTDIR)" ] && [ "$$(id -u)" = 0 ] && command -v $(LDCONFIG) >/dev/null; then $(LDCONFIG); fi
	install -D -m 0644 include/syncline.h $(DESTDIR)$(PREFIX)/include/syncline.h
	install -d $(DESTDIR)$(SBINDIR) $(DESTDIR)$(PREFIX)/share/man/man8
	for name in $(NAMES); do ln -sf $(PREFIX)/bin/syncline $(DESTDIR)$(SBINDIR)/$$name; done
	install -m 0644 dist/man/*.8 $(DESTDIR)$(PREFIX)/share/man/man8/
	install -D -m 0644 dist/completions/syncline.bash $(DESTDIR)$(PREFIX)/share/bash-completion/completions/syncline
	install -D -m 0644 dist/completions/_syncline $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_syncline
	install -D -m 0644 dist/completions/syncline.fish $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/syncline.fish

uninstall:
	rm -f $(DESTDIR)$(PREFIX)/bin/syncline $(DESTDIR)$(PREFIX)/lib/libsyncline_sqlite.so $(DESTDIR)$(PREFIX)/include/syncline.h
	for name in $(NAMES); do rm -f $(DESTDIR)$(SBINDIR)/$$name $(DESTDIR)$(PREFIX)/share/man/man8/$$name.8; done
	rm -f $(DESTDIR)$(PREFIX)/share/man/man8/syncline.8 $(DESTDIR)$(PREFIX)/share/man/man8/syncline-*.8
	rm -f $(DESTDIR)$(PREFIX)/share/bash-completion/completions/syncline
	rm -f $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_syncline
	rm -f $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/syncline.fish

clean:
	$(CARGO) clean
	rm -rf dist
