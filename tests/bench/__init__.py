"""Benchmarks beside llama.cpp (package xllamacpp), in one run and with the same number of threads: `make bench`."""
