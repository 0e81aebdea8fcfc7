# Each target makes .venv from the lock file by itself when needed.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin

.PHONY: demo test pictures check bench faults lock clean

demo: .venv/.ready
	$(BIN)/mammofed demo

test: .venv/.ready
	@$(BIN)/python -m tests.dashboard.browser
	$(BIN)/python -m pytest -n 2 --dist loadgroup

check: .venv/.ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

faults: .venv/.ready
	$(BIN)/python -m tests.faults.coordinator --kills 100
	$(BIN)/python -m benchmarks.faults

bench: .venv/.ready
	$(BIN)/python -m benchmarks

.venv/.ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "installing into .venv (some minutes the first time)"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

# Train a small federation and take a picture of each page of the dashboard.
pictures: .venv/.ready
	$(BIN)/python -m tests.dashboard.pictures --out docs/pictures

# Resolve pyproject.toml anew and pin every version; torch without its local build tag.
lock:
	rm -rf .venv-lock && $(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --quiet -U pip
	.venv-lock/bin/python -m pip install --quiet '.[dev]'
	.venv-lock/bin/python -m pip freeze --all --exclude mammofed --exclude pip | sed 's/+cpu$$//' > requirements.lock
	rm -rf .venv-lock build mammofed.egg-info

clean:
	rm -rf .venv .venv-lock build *.egg-info
