# Two commands do everything: `make demo` and `make test`.
# .venv is made once; the stamp is renewed only when pyproject.toml changes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# apart, because torchmetrics imports transformers wherever it is installed, for seconds per process
EXAMPLES := $(VENV)/examples
# apart, because it is nothing that mtlkit needs, and asks for versions of its own
LIBMTL := $(VENV)/libmtl
# apart, because accelerate and transformers import it wherever it is installed
DEEPSPEED := $(VENV)/deepspeed
# the part of plotly.js that our charts need, from npm: 0.7 MB per report where all of plotly.js takes 2.0 MB
PLOTLY := mtlkit/report/static/plotly-cartesian.min.js

.PHONY: help install demo test test-slow test-oldest lint types spelling docs links wheel wheel-test results speed clean

help:  ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 14

install: $(STAMP)  ## Make .venv and install mtlkit with all extras

$(STAMP): pyproject.toml mtlkit/_version.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| (echo "mtlkit needs Python 3.11 or newer; set PYTHON=..." >&2; exit 1)
	@echo "installing mtlkit, PyTorch and all extras into $(VENV): some minutes, once"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $(STAMP)

$(PLOTLY): $(STAMP)
	@rm -rf build/plotly && mkdir -p build/plotly $(@D) && cd build/plotly \
		&& npm pack --silent plotly.js-cartesian-dist-min@$$($(CURDIR)/$(BIN)/python -c \
			'from plotly.offline import get_plotlyjs_version as version; print(version())') > /dev/null \
		&& tar xzf *.tgz && cp package/LICENSE $(CURDIR)/$(@D)/plotly-LICENSE \
		&& cp package/plotly-cartesian.min.js $(CURDIR)/$@ \
		|| echo "no part of plotly.js from npm: reports embed all of it, 2.0 MB instead of 0.7 MB"

demo: $(STAMP) $(PLOTLY)  ## Compare methods on embedded real data and write a report (about two minutes)
	$(BIN)/mtlkit compare --demo --output runs/demo

$(EXAMPLES)/.installed: $(STAMP)
	$(BIN)/python -m pip freeze --exclude-editable > $(EXAMPLES).txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade --target $(EXAMPLES) \
		-c $(EXAMPLES).txt 'transformers>=5'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade --target $(EXAMPLES) \
		--no-deps 'peft>=0.17'
	touch $@

$(LIBMTL)/.installed: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade --target $(LIBMTL) \
		--no-deps LibMTL==1.1.5
	touch $@

$(DEEPSPEED)/.installed: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check setuptools wheel
	DS_BUILD_OPS=0 DS_ACCELERATOR=cpu $(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade \
		--target $(DEEPSPEED) --no-deps --no-build-isolation 'deepspeed>=0.19' \
		hjson ninja msgpack py-cpuinfo psutil einops nvidia-ml-py
	touch $@

test: $(STAMP) $(PLOTLY) $(EXAMPLES)/.installed $(LIBMTL)/.installed  ## Run all tests but the slow ones, on two cores
	MTLKIT_LIBMTL=$(abspath $(LIBMTL)) $(BIN)/python -m pytest -n 2 --dist loadfile $(PYTEST)
	PYTHONPATH=$(EXAMPLES) $(BIN)/python -m pytest -n 2 tests/integrations/huggingface/test_huggingface.py \
		tests/docs/test_code_blocks.py tests/docs/test_examples.py -k 'huggingface or lora or public'

test-slow: $(STAMP) $(DEEPSPEED)/.installed  ## Run the slow tests
	MTLKIT_DEEPSPEED=$(abspath $(DEEPSPEED)) $(BIN)/python -m pytest -n 2 --dist loadfile -m slow --timeout 3600

lint: $(STAMP)  ## Check style, format, links and what a release is made from
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python docs/check_files.py
	@! grep -rnE --include='*.py' --include='*.md' --include='*.toml' --include='Makefile' '^(<{7}|>{7}) ' \
		mtlkit benchmarks tests docs *.md pyproject.toml Makefile || { echo "a merge left its marks"; exit 1; }

types: $(STAMP)  ## Check types
	$(BIN)/mypy

spelling: $(STAMP)  ## Check the spelling of code and docs
	$(BIN)/codespell mtlkit benchmarks docs .github packaging *.md *.cff

links: $(STAMP) $(EXAMPLES)/.installed  ## Check the links of the site that lead elsewhere; needs the internet
	$(BIN)/python -m sphinx -j auto -q -b linkcheck docs docs/_build/links

docs: $(STAMP) $(PLOTLY) $(EXAMPLES)/.installed  ## Build the documentation site into docs/_build/html
	$(BIN)/python -m sphinx -j auto -W --keep-going -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

wheel: $(STAMP) $(PLOTLY)  ## Build sdist and wheel into dist/ and check them
	rm -rf dist
	$(BIN)/python -m build --quiet
	$(BIN)/twine check --strict dist/*

wheel-test: wheel  ## Install the wheel into an empty environment; run the README's code, then the doctor
	rm -rf build/empty && $(PYTHON) -m venv build/empty
	build/empty/bin/python -m pip install --quiet --disable-pip-version-check dist/*.whl
	cd build/empty && bin/python $(CURDIR)/tests/docs/run_blocks.py $(CURDIR)/README.md
	cd build/empty && ! bin/mtlkit doctor  # names the extra, and ends with code 1
	build/empty/bin/python -m pip install --quiet --disable-pip-version-check "$$(echo dist/*.whl)[train]"
	cd build/empty && bin/mtlkit doctor && bin/mtlkit methods

test-oldest: wheel  ## Check all methods and a comparison with the oldest versions that pyproject.toml allows
	rm -rf build/oldest && $(PYTHON) -m venv build/oldest
	$(BIN)/python packaging/oldest.py > build/oldest.txt
	build/oldest/bin/python -m pip install --quiet --disable-pip-version-check \
		-c build/oldest.txt "$$(echo dist/*.whl)[train,table,vision]"
	cd build/oldest && bin/python -c "import mtlkit; from mtlkit.testing import check_method as check; \
		[check(name) for name in mtlkit.list_methods()]; [check(n, laws=['compiled']) for n in ('uw', 'rotograd')]"
	cd build/oldest && bin/mtlkit compare --demo --methods sum,rotograd --seeds 1 --output runs

results: $(STAMP)  ## Redraw tables and figures of benchmarks/results from the stored runs
	$(BIN)/python -m benchmarks.draw_results

speed: $(STAMP) $(LIBMTL)/.installed  ## Measure steps and merges against the peers, interleaved
	MTLKIT_LIBMTL=$(abspath $(LIBMTL)) $(BIN)/python -m benchmarks.speed $(TABLES)

clean:  ## Remove what make created
	rm -rf $(VENV) $(dir $(PLOTLY)) docs/_build build dist .pytest_cache .mypy_cache .ruff_cache
