# Everything that needs Python runs in .venv, which the first target builds from nothing but python3 and pip.
PYTHON ?= python3
BIN := .venv/bin

# Torch comes first and pinned: a range with no torch installed makes pip fetch gigabytes of CUDA packages.
# On Linux, PyPI's builds need CUDA packages. For a CPU build: make run TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH := -c constraints.txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) torch

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet $(TORCH)
	$(BIN)/pip install --quiet -c constraints.txt --editable .
	@touch $@

.venv/installed-dev: .venv/installed
	$(BIN)/pip install --quiet -c constraints.txt --editable '.[dev]'
	@touch $@

.PHONY: install install-dev run check test test-long bench reproduce docs package clean
install: .venv/installed
install-dev: .venv/installed-dev

# The main job: full precision and compressed links on the shipped digits, 20 clients with unlike data.
run: .venv/installed
	$(BIN)/laconic compare fed_avg fed_ams fed_cams:compressor=sign fed_cams:compressor=top_k:1/64 \
	  fed_ef_ams:compressor=sign@layer,downlink=broadcast,server_lr=0.01 \
	  fed_bnlaca:uplink.compressor=top_k:1/8+qsgd:5,downlink.compressor=top_k:1/8+qsgd:5 fed_laconic \
	  --dataset digits --partition dirichlet:0.3 --clients 20 --participants 10 --rounds 50 --eval-every 2 --target 90

check: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/package_picture.py --check

test: check
	$(BIN)/pytest -n 2 --dist loadgroup

test-long: .venv/installed-dev
	$(BIN)/pytest -n 2 --dist loadgroup -m long

# Writes benchmarks/results/. `python benchmarks/compare.py BASE` compares the working tree with another commit.
bench: .venv/installed-dev
	$(BIN)/python benchmarks/suite.py

# The site, into site/: open site/index.html, or serve it where the search should work, too. Links that lead nowhere and pages that nothing leads to fail.
docs: .venv/installed-dev
	$(BIN)/python tools/algorithm_pages.py --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open site/index.html; with search: $(BIN)/python -m http.server -d site --bind 127.0.0.1 8000"

# Hours of training: docs/reproductions.md, from runs/reproduce, which continues where it was stopped.
reproduce: .venv/installed-dev
	$(BIN)/laconic reproduce all

# Wheel and sdist into dist/. The wheel is installed into an environment of its own, and trains there. The tools have
# another, because twine and Flower want different releases of one package.
package:
	rm -rf dist build
	$(PYTHON) -m venv build/tools
	build/tools/bin/pip install --quiet build twine
	build/tools/bin/python -m build --quiet
	build/tools/bin/twine check --strict dist/*
	$(PYTHON) -m venv build/venv
	build/venv/bin/pip install --quiet $(TORCH)
	build/venv/bin/pip install --quiet -c constraints.txt dist/*.whl
	cd build && venv/bin/laconic run --dataset digits --clients 10 --rounds 3 --out run

clean:
	rm -rf .venv build dist site *.egg-info
