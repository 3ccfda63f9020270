"""The service of `script/bench rehearse|rebuild|shadow`, under default settings but for what the environment says."""

from __future__ import annotations

from benchmarks.statehold_app import handler_of
from statehold import Service
from statehold.config import load

service = Service("bench-release", input="trades", handler=handler_of("running", batch=False), settings=load())
