# proxyd: build, install, prove. `make help` lists the targets.

PREFIX      ?= /usr
DESTDIR     ?=
CARGO       ?= cargo
LAB         := tests/lab/lab
export PATH := $(HOME)/.cargo/bin:$(PATH)

bindir      = $(PREFIX)/bin
datadir     = $(PREFIX)/share
unitdir     = $(PREFIX)/lib/systemd/system
sysusersdir = $(PREFIX)/lib/sysusers.d
catalogdir  = $(PREFIX)/lib/systemd/catalog
mandir      = $(datadir)/man

.PHONY: help deps build install install-data quick disks nix test soak bench lint demo demo-down clean

help:
	@sed -n 's/^## //p' $(MAKEFILE_LIST)

## make demo       the main job for real: a lab host, an image, a Proxy that answers
## make demo-down  stop what the demo left running
## make test       every test, those in the lab included
## make quick      unit and private-bus tests, under two minutes
## make soak       the random tests at length, 200 deaths of the daemon among them
## make bench      the image cache against curl and sha256sum, uploads against virsh,
##                 and 1,000 Proxies
## make nix        the NixOS module, with Debian's Nix and no network
## make lint       formatting, clippy and dead code, warnings denied
## make build      the optimised daemon, in target/release
## make install    into $(DESTDIR)$(PREFIX)
## make deps       the Debian packages that building needs

deps:
	@tests/lab/build-deps

build: deps
	$(CARGO) build --release --locked

# Only copies: what must be told about the new files is in activate.
install:
	@test -x target/release/proxyd || { echo "make build comes first" >&2; exit 1; }
	install -Dm0755 -t $(DESTDIR)$(bindir) target/release/proxyd target/release/proxyctl
	$(MAKE) --no-print-directory install-data

# All but the programs, which are there already: Cargo may have put them elsewhere.
install-data:
	install -d $(DESTDIR)$(unitdir)
	sed 's|@bindir@|$(bindir)|' systemd/proxyd.service > $(DESTDIR)$(unitdir)/proxyd.service
	install -Dm0644 systemd/proxyd.sysusers $(DESTDIR)$(sysusersdir)/proxyd.conf
	install -Dm0644 systemd/proxyd.catalog $(DESTDIR)$(catalogdir)/proxyd.catalog
	install -Dm0644 dbus/org.proxyd1.conf $(DESTDIR)$(datadir)/dbus-1/system.d/org.proxyd1.conf
	install -Dm0644 dbus/org.proxyd1.policy \
	  $(DESTDIR)$(datadir)/polkit-1/actions/org.proxyd1.policy
	install -Dm0644 -t $(DESTDIR)$(datadir)/dbus-1/interfaces dbus/org.proxyd1.*.xml
	install -Dm0644 dbus/org.proxyd1.service \
	  $(DESTDIR)$(datadir)/dbus-1/system-services/org.proxyd1.service
	install -Dm0644 -t $(DESTDIR)$(mandir)/man1 docs/man/*.1
	install -Dm0644 -t $(DESTDIR)$(mandir)/man5 docs/man/*.5
	install -Dm0644 -t $(DESTDIR)$(mandir)/man8 docs/man/*.8
	install -d $(addprefix $(DESTDIR)$(datadir)/,bash-completion/completions \
	  zsh/site-functions fish/vendor_completions.d)
	$(DESTDIR)$(bindir)/proxyctl completions bash \
	  > $(DESTDIR)$(datadir)/bash-completion/completions/proxyctl
	$(DESTDIR)$(bindir)/proxyctl completions zsh \
	  > $(DESTDIR)$(datadir)/zsh/site-functions/_proxyctl
	$(DESTDIR)$(bindir)/proxyctl completions fish \
	  > $(DESTDIR)$(datadir)/fish/vendor_completions.d/proxyctl.fish
	install -Dm0755 systemd/activate $(DESTDIR)$(datadir)/proxyd/activate

quick: deps
	$(CARGO) test --locked

# File systems that are full or read-only, on loop devices: as root.
disks: deps
	$(CARGO) test --locked --lib image::tests::disk -- --ignored --test-threads=1

nix: build
	nix/tests/run

test: build quick disks nix
	tests/lab/run

soak: build
	PROXYD_SOAK_DEATHS=5000 PROXYD_SOAK_CASES=5000 $(CARGO) test --locked --lib -- \
	  image::tests::crash image::tests::interleave
	PROXYD_SOAK_KILLS=200 tests/lab/run lifecycle::random_deaths

bench: build
	$(CARGO) bench --locked --bench fetch
	$(CARGO) bench --locked --bench fleet
	tests/lab/run --nocapture bench_upload

lint: deps target/tools/bin/nixfmt target/tools/bin/deadnix
	$(CARGO) fmt --check
	$(CARGO) clippy --locked --all-targets -- --deny warnings
	nix/tests/run lint

target/tools/bin/nixfmt:
	$(CARGO) install --quiet --locked --debug --root target/tools nixfmt_rs

target/tools/bin/deadnix:
	$(CARGO) install --quiet --locked --debug --root target/tools deadnix

demo: build
	@tests/lab/demo

demo-down:
	@$(LAB) down demo

clean:
	$(CARGO) clean
