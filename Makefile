# Every verb installs what it needs first; `make` alone lists them.
.DEFAULT_GOAL := help
.PHONY: help install serve test test-vm lint bench load sandboxes soak attack neighbour clean

PYTEST_ARGS ?= -n auto
SERVE_ARGS ?=
BENCH_ARGS ?=
SOAK_ARGS ?=
ATTACK_ARGS ?=
NEIGHBOUR_ARGS ?=
VM_ARGS ?=

help: ## list the verbs
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 18

install: ## make .venv from the lock file
	@scripts/bootstrap

serve: install ## install what is missing and serve (SERVE_ARGS="--port 9000")
	@exec .venv/bin/tidebox serve $(SERVE_ARGS)

test: ## install what is missing, system packages included, and run every test
	@scripts/bootstrap --test
# Hundreds of servers and commands are started: each would compile the whole of Tidebox where nothing may be kept.
	env -u PYTHONDONTWRITEBYTECODE .venv/bin/python -m pytest $(PYTEST_ARGS)

test-vm: ## the native runtime on cgroup v2, in a virtual machine (VM_ARGS=trixie for a newer kernel)
	@scripts/vm-test $(VM_ARGS)

lint: install ## style and types
	.venv/bin/ruff check .
	.venv/bin/mypy

bench: install ## measure against the bare interpreter
	.venv/bin/tidebox bench $(BENCH_ARGS)

load: ## many clients at once on a server, and a search for what they leave behind
	@scripts/bootstrap
	.venv/bin/python -m benchmarks.load $(LOAD_ARGS)

sandboxes: ## 500 live sandboxes at once: how much memory each takes, and a search for what they leave behind
	@scripts/bootstrap
	.venv/bin/python -m benchmarks.sandboxes $(SANDBOXES_ARGS)

soak: ## run boxes for a long time and look for anything left behind
	@scripts/bootstrap --test
	.venv/bin/python -m benchmarks.soak $(SOAK_ARGS)

attack: ## attack a server of one's own for ten minutes, and look for what grows or stalls (ATTACK_ARGS="--seed 1")
	@scripts/bootstrap
	.venv/bin/python -m tests.attack $(ATTACK_ARGS)

neighbour: ## how long a neighbour waits beside each attack on resources, as a table
	@scripts/bootstrap
	.venv/bin/python -m benchmarks.neighbour $(NEIGHBOUR_ARGS)

clean: ## remove everything these verbs made
	rm -rf .venv .bootstrap .interop-06 .interop-07 build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests scripts benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
