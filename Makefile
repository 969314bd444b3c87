# SPDX-License-Identifier: Apache-2.0
# Everything a developer or CI runs. Each target sets up what it needs; nothing has to be installed before
# but Python 3.11 or later, a C compiler and make (as root on Debian those come by themselves too).

VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
CORE := engramdax/_core.abi3.so
CORE_SOURCES := $(wildcard c/*.c c/*.h c/core.cdef c/build.py udev/*)
SANITIZERS := address,undefined
# Two at a time, also of racks, whose hosts wait for each other most of the time.
TWO := -n 2 --dist loadfile --benchmark-disable
# In the order that tests/rack/conftest.py says.
RACK := tests/rack $(TWO) --no-loadscope-reorder

.PHONY: demo test lint sanitize tsan model fuzz rack bench wheel tools tools-for-tests clean

demo: $(VENV)/.demo
	$(BIN)/engramdax demo

# The tests that need minutes are part of it; `$(BIN)/pytest` alone leaves them out.
test: $(VENV)/.test lint wheel sanitize tsan
	tools/fuzz 5 || [ $$? = 77 ]
	ENGRAMDAX_KILLS=80 ENGRAMDAX_SCHEDULES=10000 $(BIN)/pytest -m "" $(TWO) --ignore=tests/rack
	$(BIN)/pytest -m "" $(RACK)

# All tests in virtual hosts, those that take too long for every run, too.
rack: $(VENV)/.test
	ENGRAMDAX_ALL=1 $(BIN)/pytest -m "" $(RACK)

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror c/*.c c/*.h udev/*.c udev/*.h tests/cuda/emulator/*.cpp tests/cuda/emulator/*.h

# The tests of everything that runs in C, under AddressSanitizer and UBSan.
sanitize: $(VENV)/.test
	PYTHON=$(BIN)/python tools/sanitize $(SANITIZERS)

# The team of workers under ThreadSanitizer; left out where there is no clang and we may not install it.
tsan:
	tools/tsan || [ $$? = 77 ]

# The protocol on the simulated rack, long: docs/protocol.md.
model: $(VENV)/.test
	ENGRAMDAX_ALL=1 ENGRAMDAX_SCHEDULES=100000 $(BIN)/pytest tests/model -m ""

# All that is read from elsewhere, tampered with: a million images of metadata, and as many again under the sanitizers,
# and shares of that of other inputs; ten minutes for each parser in C.
fuzz: $(VENV)/.test
	ENGRAMDAX_FUZZ=1000000 $(BIN)/pytest tests/fuzz
	ENGRAMDAX_FUZZ=1000000 PYTHON=$(BIN)/python tools/sanitize $(SANITIZERS) tests/fuzz
	tools/fuzz 600 || [ $$? = 77 ]

bench: $(VENV)/.test
	$(BIN)/pytest tests/bench --benchmark-only
	$(BIN)/python -m tools.bench.load

# One wheel for CPython 3.11 and later, with warnings as errors, and proof that it keeps to the stable ABI.
wheel: $(VENV)/.test
	rm -rf dist
	ENGRAMDAX_WERROR=1 $(BIN)/python -m build --wheel --outdir dist .
	$(BIN)/abi3audit --strict --report dist/*.whl

tools:
	tools/prepare

tools-for-tests:
	tools/prepare tests

$(BIN)/python: | tools
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip

$(VENV)/.demo: pyproject.toml $(CORE_SOURCES) | $(BIN)/python
	$(BIN)/pip install --quiet --editable '.[demo]'
	touch $@

$(VENV)/.test: pyproject.toml $(CORE_SOURCES) | $(BIN)/python tools-for-tests
	$(BIN)/pip install --quiet --editable '.[demo]' --group test --group lint
	touch $@

clean:
	rm -rf $(VENV) build dist $(CORE) engramdax/_udev
