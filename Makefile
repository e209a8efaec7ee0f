# `make serve` and `make test` are all that a fresh machine needs besides Python >= 3.11 and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SERVE_ARGS ?=
SOAK_ARGS ?=
FUZZ_ARGS ?=
INSTALLING := Installing into $(VENV). The first time that takes minutes: torch is large.

.PHONY: serve install test lint types unit interpret cpu-tests clients deploy-test lock sbom soak fuzz format figures clean

serve: $(VENV)/.installed
	$(BIN)/headrace serve --enable-finetuning $(SERVE_ARGS)

# With the development tools, for the commands of docs/. What is imported is compiled then: that is two fifths of the
# modules, and to compile all of them is two fifths of the installation.
install: $(VENV)/.installed-dev

# The CPU's tests wait for other processes for a fifth of the time. What only computes has the cores then: types, and
# Triton's interpreter.
test: lint
	+$(MAKE) --jobs=3 BESIDE='nice -n 10' cpu-tests types interpret

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BESIDE) $(BIN)/mypy

unit: interpret cpu-tests

# With Python's bytecode: without it, every process compiles all that it imports.
serve unit interpret cpu-tests: export PYTHONDONTWRITEBYTECODE :=

# Two workers more than cores, since many tests wait for other processes. A test that hangs says where, and fails.
cpu-tests: $(VENV)/.installed-dev
	cores=$$(getconf _NPROCESSORS_ONLN); $(BIN)/pytest --forked-workers $$((cores < 4 ? cores + 2 : 4)) \
		-o faulthandler_timeout=300 -o faulthandler_exit_on_timeout=true

interpret: $(VENV)/.installed-dev
	TRITON_INTERPRET=1 $(BESIDE) $(BIN)/pytest -m 'interpret and not load' tests/kernels

# The papers' figures in their CPU forms, minutes; figures/index.html shows them. loadtest/figures_on_gpu.sh: full forms.
figures: $(VENV)/.installed-dev
	$(BIN)/python -m loadtest.scenarios --out figures

# Client libraries against the real service. They pin each other's versions, so they have an environment of their own.
# docs/clients.md has the result.
clients: .venv-clients/.installed
	.venv-clients/bin/pytest tests/clients -m '' -p no:unraisableexception -W ignore --junitxml .venv-clients/results.xml; \
	status=$$?; .venv-clients/bin/python -m tests.clients.table .venv-clients/results.xml docs/clients.md && exit $$status

.venv-clients/.installed: pyproject.toml tests/clients/constraints.txt
	$(PYTHON) -m venv .venv-clients
	.venv-clients/bin/python -m pip install --quiet --disable-pip-version-check -c tests/clients/constraints.txt -e '.[clients]'
	touch $@

# The deployment beside the real tools. What pip has is installed: vllm-router, Ray, Helm's library, schemas, an OpenTelemetry
# exporter. What Debian has is used if it is there: haproxy, prometheus with promtool, kubectl, systemd, bubblewrap, buildah. The
# last lines name what was left out, and why.
deploy-test: $(VENV)/.installed-deploy
	$(BIN)/pytest tests/deploy tests/api/test_request_spans.py -m 'not gpu' -rs

# The image's dependencies, exact and with hashes, of both targets: deploy/image. After a change of pyproject.toml; versions
# stay where they still fit, and LOCK_ARGS=--upgrade takes the newest.
LOCK_ARGS ?=
LOCKED := --python-version 3.11 --python-platform x86_64-manylinux_2_28 --generate-hashes --no-header --no-annotate --quiet
EXTRAS := --extra otel --extra kv-events
lock: .venv-tools/.installed
	$(PYTHON) -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['build-system']['requires'])" \
		| .venv-tools/bin/uv pip compile - $(LOCKED) $(LOCK_ARGS) -o deploy/image/build.txt
	.venv-tools/bin/uv pip compile pyproject.toml $(LOCKED) $(EXTRAS) $(LOCK_ARGS) -c deploy/image/measured.txt -o deploy/image/cuda.txt
	.venv-tools/bin/uv pip compile pyproject.toml $(LOCKED) $(EXTRAS) $(LOCK_ARGS) --override deploy/image/without-gpu.txt \
		--no-emit-package torch -o deploy/image/cpu.txt

# What is in the images, as CycloneDX: sbom-cpu.json, sbom-cuda.json. Of the base, its own publisher tells.
sbom: .venv-tools/.installed
	cat deploy/image/cpu-torch.txt deploy/image/cpu.txt | .venv-tools/bin/cyclonedx-py requirements - \
		--pyproject pyproject.toml --mc-type application --output-reproducible -o sbom-cpu.json
	.venv-tools/bin/cyclonedx-py requirements deploy/image/cuda.txt \
		--pyproject pyproject.toml --mc-type application --output-reproducible -o sbom-cuda.json

.venv-tools/.installed:
	$(PYTHON) -m venv .venv-tools
	.venv-tools/bin/python -m pip install --quiet --disable-pip-version-check 'uv>=0.9,<1' 'cyclonedx-bom>=7,<8'
	touch $@

# Hostile clients against the real server, five minutes of them; SOAK_ARGS="--hours 1" to see a slow leak, too.
soak: $(VENV)/.installed
	$(BIN)/python -m loadtest.soak $(SOAK_ARGS)

# 100,000 cases of broken and nearly broken HTTP; FUZZ_ARGS="--first 4711 --cases 1" for one of them.
fuzz: $(VENV)/.installed
	$(BIN)/python -m loadtest.fuzz $(FUZZ_ARGS)

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	@echo '$(INSTALLING)'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	touch $@

$(VENV)/.installed-dev: pyproject.toml | $(VENV)/bin/python
	@echo '$(INSTALLING)'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -e '.[dev]'
	touch $@ $(VENV)/.installed

$(VENV)/.installed-deploy: $(VENV)/.installed-dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,deploy-test]'
	touch $@

clean:
	rm -rf $(VENV) .venv-clients .venv-tools
