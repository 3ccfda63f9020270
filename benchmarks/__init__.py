"""Benchmarks: `script/bench NAME`. Figures for people and build/bench/NAME.json; never part of the tests."""
