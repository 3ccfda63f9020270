"""The page about settings is current, and the shipped profiles say what they do and why."""

from __future__ import annotations

import tomllib

import pytest
from script.generate.settings_page import document

from statehold.config import load
from statehold.config.sources import known_options, profile_path

PROFILES = ("development", "production")


def test_the_page_names_every_setting_once() -> None:
    page = document()
    for key in known_options():
        assert page.count(f"| `{key}` | `") == 1


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_loads_and_the_page_shows_it(name: str) -> None:
    assert load(env={}, profile=name).service.mode == name
    assert profile_path(name).read_text(encoding="utf-8") in document()


@pytest.mark.parametrize("name", PROFILES)
def test_every_line_of_a_profile_has_its_reason_and_takes_effect(name: str) -> None:
    text = profile_path(name).read_text(encoding="utf-8")
    values = [line for line in text.splitlines() if "=" in line and not line.startswith("#")]
    assert all(" # " in line for line in values)
    settings, options = load(env={}, profile=name), known_options()
    written = [(section, key, raw) for section, keys in tomllib.loads(text).items() for key, raw in keys.items()]
    assert len(written) == len(values)
    for section, key, raw in written:
        assert getattr(getattr(settings, section), key) == options[f"{section}.{key}"].parse(raw)
