# SPDX-License-Identifier: MIT OR Apache-2.0
# Outrigger: the commands people need. Cargo does the building; testing/tools has the scripts.

PREFIX = /usr/local
# Where mount(8) looks for mount.outrigger.
SBINDIR = /sbin
DESTDIR =
# For each fuzz target.
SECONDS = 600
# Of each type that are damaged at random, and the first number that damage is made of.
IMAGES = 50
SEED = 1

target = $(or $(CARGO_TARGET_DIR),target)
program = $(target)/release/outrigger
# Serves disk images. make install leaves it out, and says so, where it has not been built.
kernel = $(target)/kernel/outrigger-kernel
libexec = $(DESTDIR)$(PREFIX)/libexec/outrigger
share = $(DESTDIR)$(PREFIX)/share

.PHONY: help demo test kernel kernel-stats bench matrix table4 table5 soak recovery frozen crash damaged fuzz crosscheck install uninstall release rust demo-deps deps bench-deps clean
.DEFAULT_GOAL := help

help:
	@echo 'make demo       install what is missing, build, and see what Outrigger does (about a minute after the build)'
	@echo 'make test       every check and test; as root it also mounts; the last line has the totals'
	@echo 'make kernel     outrigger-kernel, which serves disk images (minutes at the first time); kernel-stats: how much of it is ours'
	@echo 'make bench      the measurements of docs/PERFORMANCE.md, side by side with other programs'
	@echo 'make matrix     the conformance matrix of docs/MATRIX.md: as root with servers and mounts, ten minutes; a server that is not here is left out'
	@echo 'make table4     a death of the server at every point of every operation; table5: random deaths under loads'
	@echo 'make soak       thousands of deaths of one mount: nothing fails, nothing grows'
	@echo 'make recovery   how long such a death is felt; frozen: a server that stops answering, with and without us'
	@echo 'make crash      mounted disk images, killed at random moments: what was synced is there, and the image is clean'
	@echo 'make damaged    IMAGES=$(IMAGES) damaged disk images of each type, from SEED=$(SEED) on: only their kernel code may die'
	@echo 'make crosscheck  disk images beside the kernel of the host: 100,000 files in a directory, files of more than 4 GiB'
	@echo 'make fuzz       each fuzz target for SECONDS=$(SECONDS) (needs a nightly toolchain)'
	@echo 'make install    program, mount helper, man pages and completions, below DESTDIR= and PREFIX=$(PREFIX)'
	@echo 'make uninstall  takes these away again'
	@echo 'make deps       Debian packages the tests and the kernel need; make bench-deps: those of the benchmarks'
	@echo 'make clean      remove what was built'

demo: rust demo-deps
	@$(MAKE) kernel release
	@testing/tools/demo.sh

rust:
	@command -v cargo >/dev/null || { echo 'install Rust 1.95 or newer first: https://rustup.rs' >&2; exit 1; }

# Without the right to install packages the tests that need them are skipped, and said to be.
test:
	@testing/tools/deps.sh test || echo 'going on without; what needs them is skipped'
	@testing/tools/test.sh

bench: bench-deps release
	cargo build --release --quiet --package outrigger --example relay
	cargo run --release --quiet --package outrigger-bench

kernel: rust
	@kernel/build.sh

kernel-stats:
	@kernel/build.sh --stats

matrix:
	cargo build --release --package outrigger
	cargo run --release --quiet --package outrigger-conformance --example matrix

table4 table5 soak recovery frozen: deps release
	@testing/tools/test-programs.sh >/dev/null
	cargo run --release --quiet --package outrigger-kill -- $@

# Root.
crash: deps kernel release
	cargo run --release --quiet --package outrigger-kill -- crash

damaged: deps kernel release
	cargo run --release --quiet --package outrigger-damaged -- --images $(IMAGES) --seed $(SEED) --keep $(target)/damaged

# Root, 13 GB below TMPDIR; minutes.
crosscheck: deps kernel
	OUTRIGGER_CROSSCHECK=large cargo test --package outrigger --test crosscheck -- --test-threads=1 --nocapture

fuzz:
	@testing/tools/fuzz.sh $(SECONDS)

demo-deps:
	@testing/tools/deps.sh demo

deps:
	@testing/tools/deps.sh test

bench-deps:
	@testing/tools/deps.sh bench

release:
	cargo build --release --package outrigger

# No build as root: an existing program is installed as it is.
$(program):
	$(MAKE) release

install: $(program)
	rm -rf $(target)/generated
	$(program) generate man $(target)/generated/man
	$(program) generate completions $(target)/generated/completions
	install -D -m 755 $(program) $(DESTDIR)$(PREFIX)/bin/outrigger
	@if [ -e $(kernel) ]; then \
	    echo 'install -D -m 755 $(kernel) $(libexec)/outrigger-kernel'; \
	    install -D -m 755 $(kernel) $(libexec)/outrigger-kernel; \
	else \
	    echo 'outrigger-kernel is not built, so disk images cannot be opened: make deps kernel install' >&2; \
	fi
	install -d $(DESTDIR)$(SBINDIR)
	ln -sfn $(PREFIX)/bin/outrigger $(DESTDIR)$(SBINDIR)/mount.outrigger
	ln -sfn $(PREFIX)/bin/outrigger $(DESTDIR)$(SBINDIR)/umount.fuse.outrigger
	for page in $(target)/generated/man/*.[178]; do \
	    install -D -m 644 "$$page" "$(share)/man/man$${page##*.}/$${page##*/}" || exit 1; \
	done
	install -D -m 644 -t $(share)/doc/outrigger README.md ARCHITECTURE.md CHANGELOG.md LICENSE*
	install -D -m 644 -t $(share)/doc/outrigger/docs docs/*.md
	install -D -m 644 -t $(share)/doc/outrigger/docs/design docs/design/*.md
	install -D -m 644 -t $(share)/doc/outrigger/kernel kernel/README.md kernel/LICENSE-GPL-2.0
	install -D -m 644 -t $(share)/doc/outrigger/contrib/systemd contrib/systemd/*.service
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/lib/systemd/system contrib/systemd/*.service
	install -D -m 644 $(target)/generated/completions/outrigger.bash $(share)/bash-completion/completions/outrigger
	install -D -m 644 $(target)/generated/completions/_outrigger $(share)/zsh/site-functions/_outrigger
	install -D -m 644 $(target)/generated/completions/outrigger.fish $(share)/fish/vendor_completions.d/outrigger.fish

uninstall:
	rm -f $(DESTDIR)$(PREFIX)/bin/outrigger $(DESTDIR)$(SBINDIR)/mount.outrigger $(DESTDIR)$(SBINDIR)/umount.fuse.outrigger
	rm -f $(libexec)/outrigger-kernel
	-[ ! -d $(libexec) ] || rmdir --ignore-fail-on-non-empty $(libexec)
	rm -f $(DESTDIR)$(PREFIX)/lib/systemd/system/outrigger-mount@.service $(DESTDIR)$(PREFIX)/lib/systemd/system/outrigger-guard@.service
	rm -f $(DESTDIR)$(PREFIX)/lib/systemd/system/outrigger-serve-nfs@.service $(DESTDIR)$(PREFIX)/lib/systemd/system/outrigger-automount@.service
	rm -f $(share)/man/man1/outrigger.1 $(share)/man/man1/outrigger-*.1 $(share)/man/man8/mount.outrigger.8 $(share)/man/man7/outrigger-drivers.7
	rm -f $(share)/bash-completion/completions/outrigger $(share)/zsh/site-functions/_outrigger
	rm -f $(share)/fish/vendor_completions.d/outrigger.fish
	rm -rf $(share)/doc/outrigger

clean:
	cargo clean
