# Each target first installs the packages that it needs (scripts/install-deps.sh).

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory
PREFIX ?= /usr/local
NAME ?= run
BENCH ?=
TORCH ?=
FUZZ_SECONDS ?= 600
SOAK_MINUTES ?= 30
# Builds use the committed Cargo.lock.
LOCKED := $(shell git ls-files --error-unmatch Cargo.lock >/dev/null 2>&1 && echo --locked)
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
TARGET_DIR := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)

.PHONY: help build run test lint python bench soak fuzz install
.DEFAULT_GOAL := help

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build the program, the libraries for --preload and --aggregate-only, and the C library: target/release/tameike, libtameike_{preload,redirect,capi}.so
	@scripts/install-deps.sh build
	cargo build --release $(LOCKED) --package tameike --package tameike-preload --package tameike-redirect --package tameike-capi

run: ## run the example job: a mosaic of 47 Tucanae on four nodes of this machine
	@scripts/install-deps.sh run
	cargo build --profile demo $(LOCKED) --package tameike
	PATH="$(TARGET_DIR)/demo:$$PATH" examples/workflow/run.sh

test: ## run formatting, clippy, house lints and all tests, as CI does
	@scripts/install-deps.sh test
	cargo run --quiet $(LOCKED) --package xtask -- ci $(LOCKED)

lint: ## run the house lints only
	cargo xtask lint

python: ## build and test the wheel of the Python package; with TORCH=1 also in PyTorch
	@scripts/install-deps.sh python
	TORCH="$(TORCH)" scripts/python.sh $(LOCKED)

bench: ## compare with plain disk, tmpfs, GlusterFS, MooseFS; NAME= names the report in bench/runs, BENCH= takes options
	@scripts/install-deps.sh bench
	cargo build --release $(LOCKED) --package tameike --package tameike-preload --package tameike-redirect --package tameike-bench
	PATH="$(TARGET_DIR)/release:$$PATH" tameike-bench run --name "$(NAME)" $(BENCH)

soak: ## run the long variants of all tests, then random tests until SOAK_MINUTES= (30) are over; print a summary
	@scripts/install-deps.sh test
	scripts/soak.sh $(SOAK_MINUTES)

fuzz: ## run every fuzz target under libFuzzer for FUZZ_SECONDS= (600) each; inputs that crash go to fuzz/artifacts
	@scripts/install-deps.sh fuzz
	scripts/fuzz.sh $(FUZZ_SECONDS)

install: build ## install the program, the launch agent for mpirun, libraries, headers, manual pages and completions under PREFIX= (/usr/local)
	@dest="$(DESTDIR)$(PREFIX)"; program="$(TARGET_DIR)/release/tameike"; share="$$dest/share"; \
	install -D --mode=755 "$$program" "$$dest/bin/tameike"; \
	install --mode=755 examples/mpi/on-node "$$dest/bin/tameike-on-node"; \
	for library in preload redirect; do \
	    install -D --mode=644 "$(TARGET_DIR)/release/libtameike_$$library.so" "$$dest/lib/tameike/libtameike_$$library.so"; \
	done; \
	install -D --mode=644 "$(TARGET_DIR)/release/libtameike_capi.so" "$$dest/lib/libtameike.so.0"; \
	ln --symbolic --force libtameike.so.0 "$$dest/lib/libtameike.so"; \
	install -D --mode=644 crates/capi/include/tameike.h "$$dest/include/tameike.h"; \
	install -D --mode=644 crates/capi/include/tameike_mpi.h "$$dest/include/tameike_mpi.h"; \
	for module in dsm win; do \
	    install -D --mode=644 "crates/capi/include/tameike_$$module.f90" "$$dest/include/tameike_$$module.f90"; \
	done; \
	install --directory "$$dest/lib/pkgconfig"; \
	sed 's,@PREFIX@,$(PREFIX),; s,@VERSION@,$(VERSION),' crates/capi/tameike.pc.in >"$$dest/lib/pkgconfig/tameike.pc"; \
	install --directory "$$share/man/man1" "$$share/bash-completion/completions" \
	    "$$share/zsh/site-functions" "$$share/fish/vendor_completions.d"; \
	"$$program" man "$$share/man/man1"; \
	"$$program" completions bash >"$$share/bash-completion/completions/tameike"; \
	"$$program" completions zsh >"$$share/zsh/site-functions/_tameike"; \
	"$$program" completions fish >"$$share/fish/vendor_completions.d/tameike.fish"; \
	echo "installed: $$dest/bin/tameike, $$dest/lib/tameike, manual pages and completions"
