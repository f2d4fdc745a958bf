# The project's commands. Each does all the set-up it needs; on a fresh Debian machine only a Rust toolchain is assumed.
SEGUE := target/release/segue

.PHONY: help demo test check bench setup build clean

help:
	@echo "make demo    put PostgreSQL on a volume, break it, compare three ways of failing over (5 minutes)"
	@echo "make test    every test"
	@echo "make check   format, lints, crate edges, sizes"
	@echo "make bench   measurements against limits and peers; JSON in target/bench/"

setup:
	@scripts/setup

build: setup
	cargo build --release --package segue-cli

demo: build
	$(SEGUE) demo

test: setup
	cargo xtask ci

check:
	cargo xtask check

bench: build
	scripts/bench $(SEGUE)

clean:
	cargo clean
