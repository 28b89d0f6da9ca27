# Every verb installs what it needs first; `make` alone lists them.
.DEFAULT_GOAL := help
.PHONY: help install serve test test-pythons docs test-mcp test-packages test-languages test-egress test-runtimes test-web test-vscode test-vm web vsix lint bench bench-programs bench-docker bench-gvisor bench-languages load sandboxes soak attack neighbour clean

PYTEST_ARGS ?= -n auto --dist worksteal
SERVE_ARGS ?=
BENCH_ARGS ?=
SOAK_ARGS ?=
ATTACK_ARGS ?=
NEIGHBOUR_ARGS ?=
VM_ARGS ?=

# What of the suites `make test` runs in containers too; all of it does `make test-runtimes`.
PART_ON_DOCKER = tests/escape/test_init.py tests/escape/test_privilege.py tests/escape/test_artifacts.py \
	tests/api/fathom/test_languages.py tests/api/dataplane/test_exec.py

# The same on gVisor, where its runsc can boot a sandbox; its own tests are among all.
PART_ON_GVISOR = tests/escape/test_init.py tests/escape/test_privilege.py tests/api/dataplane/test_exec.py

help: ## list the verbs
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 18

install: ## make .venv from the lock file
	@scripts/bootstrap

serve: install ## install what is missing and serve (SERVE_ARGS="--port 9000")
	@exec .venv/bin/tidebox serve $(SERVE_ARGS)

test: ## install what is missing, system packages included, and run every test
	@scripts/bootstrap --test
	@scripts/runsc
# Hundreds of servers and commands are started: each would compile the whole of Tidebox where nothing may be kept.
	env -u PYTHONDONTWRITEBYTECODE scripts/pytest $(PYTEST_ARGS)
	env -u PYTHONDONTWRITEBYTECODE TIDEBOX_TEST_RUNTIME=docker scripts/pytest $(PYTEST_ARGS) $(PART_ON_DOCKER)
	env -u PYTHONDONTWRITEBYTECODE TIDEBOX_TEST_RUNTIME=gvisor scripts/pytest -r s $(PYTEST_ARGS) $(PART_ON_GVISOR)

test-pythons: ## the fast tests on every Python of 3.11 to 3.13 that is found, and how much of the package they reach
	@scripts/bootstrap
	env -u PYTHONDONTWRITEBYTECODE scripts/test-pythons

test-mcp: ## the scenarios of the MCP conformance package, from npm, that apply
	@scripts/bootstrap --test
	@command -v npm >/dev/null || { echo 'tidebox: this needs npm: apt-get install npm' >&2; exit 1; }
	npm install --silent --no-audit --no-fund --prefix .conformance node@22 @modelcontextprotocol/conformance@0.2.0-alpha.12
	env -u PYTHONDONTWRITEBYTECODE .venv/bin/python -m pytest $(PYTEST_ARGS) tests/mcp/conformance.py

test-packages: ## 25 popular packages of the public index, each doing something real in a box
	@scripts/bootstrap --test
	env -u PYTHONDONTWRITEBYTECODE TIDEBOX_TEST_ALL_PACKAGES=1 .venv/bin/python -m pytest -n 1 tests/packages

test-languages: ## every language in the image that its recipe makes (they are kept in .languages)
	@scripts/bootstrap --test
	env -u PYTHONDONTWRITEBYTECODE TIDEBOX_TEST_ALL_LANGUAGES=$(CURDIR)/.languages .venv/bin/python -m pytest -n 1 tests/languages

# What a box must hold, whatever isolates it.
SUITES = tests/contract/test_runtime.py tests/escape tests/docker tests/api/fathom tests/api/dataplane tests/api/interpreter \
	tests/api/access
SUITES_ON_GVISOR = $(filter-out tests/docker,$(SUITES)) tests/gvisor

test-runtimes: ## every suite of boxes on every runtime: contract, hostile programs and every surface
	@scripts/bootstrap --test scripts/packages-runtimes
	@scripts/runsc
	env -u PYTHONDONTWRITEBYTECODE .venv/bin/python -m pytest $(PYTEST_ARGS) $(SUITES)
	env -u PYTHONDONTWRITEBYTECODE TIDEBOX_TEST_RUNTIME=docker .venv/bin/python -m pytest $(PYTEST_ARGS) $(SUITES)
	env -u PYTHONDONTWRITEBYTECODE TIDEBOX_TEST_RUNTIME=gvisor .venv/bin/python -m pytest -r s $(PYTEST_ARGS) $(SUITES_ON_GVISOR)

test-web: ## every test of the web UI in a real browser, also what takes long
	@scripts/bootstrap --test
	env -u PYTHONDONTWRITEBYTECODE TIDEBOX_TEST_ALL_WEB=1 .venv/bin/python -m pytest -n 2 tests/webui

web: ## build the web UI into the package (needs node and npm; what it builds is committed)
	@command -v npm >/dev/null || { echo 'tidebox: this needs npm: apt-get install npm' >&2; exit 1; }
	cd web && npm ci --no-audit --no-fund --silent && npm run --silent build

vsix: ## build the extension for VS Code: editors/vscode/tidebox-VERSION.vsix (needs node and npm)
	@command -v npm >/dev/null || { echo 'tidebox: this needs npm: apt-get install npm' >&2; exit 1; }
	rm -f editors/vscode/*.vsix
	cd editors/vscode && npm ci --no-audit --no-fund --silent && npm run --silent check && npm run --silent build && npm run --silent package

test-vscode: ## the extension in a real VS Code, npm's code-server, in Chromium (installs it first, which takes minutes), and Emacs
	@scripts/bootstrap --test scripts/packages-vscode
	@scripts/code-server
	@$(MAKE) --no-print-directory vsix
	cd editors/vscode && npm test --silent
	env -u PYTHONDONTWRITEBYTECODE .venv/bin/python -m pytest -p no:xdist tests/vscode/workbench.py tests/lsp/test_emacs.py

test-egress: ## the same rules for programs that take longer to start, and clients that never finish
	@scripts/bootstrap --test scripts/packages-egress
	env -u PYTHONDONTWRITEBYTECODE TIDEBOX_TEST_EGRESS=1 .venv/bin/python -m pytest $(PYTEST_ARGS) tests/egress

test-vm: ## the native runtime on cgroup v2, in a virtual machine (VM_ARGS=trixie for a newer kernel)
	@scripts/vm-test $(VM_ARGS)

lint: install ## style, format and types
	.venv/bin/ruff check .
	.venv/bin/ruff format --check --quiet .
	.venv/bin/mypy

docs: install ## the pages of docs/ as a site in build/site; a link that leads nowhere is an error
	.venv/bin/mkdocs build --quiet --strict

bench: install ## measure against the bare interpreter
	.venv/bin/tidebox bench $(BENCH_ARGS)

bench-programs: ## programs that import, against the same interpreter bare (PROGRAMS_ARGS="--only pandas")
	@scripts/bootstrap --test
	.venv/bin/python -m benchmarks.real_programs $(PROGRAMS_ARGS)

bench-docker: ## containers against the Engine API by itself and the bare interpreter (DOCKER_ARGS="--samples 40")
	@scripts/bootstrap --test
	.venv/bin/python -m benchmarks.docker $(DOCKER_ARGS)

bench-gvisor: ## sandboxes of gVisor against runsc by itself and the bare interpreter (GVISOR_ARGS="--samples 40")
	@scripts/bootstrap --test
	@scripts/runsc
	.venv/bin/python -m benchmarks.gvisor $(GVISOR_ARGS)

bench-languages: ## compiled languages in boxes against the bare tools (LANGUAGES_ARGS="--only go")
	@scripts/bootstrap --test
	.venv/bin/python -m benchmarks.languages $(LANGUAGES_ARGS)

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
	rm -rf .venv .bootstrap .pythons .interop-06 .interop-07 .conformance .languages .code-server build dist web/node_modules editors/vscode/node_modules editors/vscode/out editors/vscode/LICENSE editors/vscode/*.vsix .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests scripts benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
