"""Generates the files of a new service with a passing test, from the templates in `new_service`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from statehold.common.version import __version__
from statehold.errors import UsageError

_TEMPLATES: Final = Path(__file__).parent / "new_service"
#: path of a new file -> its template
_FILES: Final = {
    "{module}/app.py": "app.py.in",
    "tests/test_app.py": "test_app.py.in",
    "{name}.toml": "settings.toml.in",
    "deploy/{name}.service": "systemd.service.in",
    "Dockerfile": "Dockerfile.in",
    "deploy/kubernetes/compaction.yaml": "kubernetes/compaction.yaml.in",
    "deploy/kubernetes/configmap.yaml": "kubernetes/configmap.yaml.in",
    "deploy/kubernetes/poddisruptionbudget.yaml": "kubernetes/poddisruptionbudget.yaml.in",
    "deploy/kubernetes/service.yaml": "kubernetes/service.yaml.in",
    "deploy/kubernetes/servicemonitor.yaml": "kubernetes/servicemonitor.yaml.in",
    "deploy/kubernetes/statefulset.yaml": "kubernetes/statefulset.yaml.in",
    "README.md": "README.md.in",
}


def files(name: str) -> dict[str, str]:
    """Return the content of every file of a new service.

    :raises UsageError: the name is invalid.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise UsageError(f"{name!r}: use small letters, digits and single '-', such as order-totals")
    templates = {path: (_TEMPLATES / template).read_text(encoding="utf-8") for path, template in _FILES.items()}
    templates |= {
        "{module}/__init__.py": "",
        "conftest.py": '"""Marks the root, so that tests find the package."""\n',
        "requirements.txt": f"statehold[cli]=={__version__}\n",
        "requirements-compact.txt": f"statehold[cli,spark]=={__version__}\n",
        ".dockerignore": "*\n!{module}\n!{name}.toml\n!requirements*.txt\n**/__pycache__\n",
    }
    module = name.replace("-", "_")

    def named(text: str) -> str:
        return text.replace("{name}", name).replace("{module}", module)

    return {named(path): named(text) for path, text in templates.items()}


def write(name: str, directory: Path) -> list[Path]:
    """Write the files to `directory`; return their paths.

    :raises UsageError: the directory is not empty, or cannot be written.
    """
    made = files(name)
    try:
        if directory.exists() and any(directory.iterdir()):
            raise UsageError(f"{directory} is not empty; nothing was written. Choose another with --to")
        for path, text in made.items():
            target = directory / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{directory} cannot be written: {error.strerror}") from error
    return [directory / path for path in made]
