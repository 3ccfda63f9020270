"""A language server over its standard input and output, with the requests of an editor."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote, urlparse


class LanguageServer:
    """One workspace, opened in one server process."""

    def __init__(self, command: list[str], workspace: Path) -> None:
        self._workspace, self._asked = workspace, 0
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=workspace
        )

    def __enter__(self) -> Self:
        root = self._workspace.as_uri()
        folders = [{"uri": root, "name": "workspace"}]
        abilities = {"workspace": {"configuration": True, "workspaceFolders": True}}
        self._ask(
            "initialize", {"processId": None, "rootUri": root, "workspaceFolders": folders, "capabilities": abilities}
        )
        self._report("initialized", {})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._process:  # closes its pipes
            self._process.kill()

    def definition(self, path: str, text: str, offset: int) -> list[Path]:
        """Return the files that define the symbol `offset` characters into the first occurrence of `text`."""
        return self._files("textDocument/definition", self._place(path, text, offset))

    def references(self, path: str, text: str, offset: int) -> list[Path]:
        """Return the files that use the symbol, each once."""
        asked = self._place(path, text, offset) | {"context": {"includeDeclaration": True}}
        return list(dict.fromkeys(self._files("textDocument/references", asked)))

    def _place(self, path: str, text: str, offset: int) -> dict[str, Any]:
        file = self._workspace / path
        content = file.read_text(encoding="utf-8")
        uri = file.as_uri()
        document = {"uri": uri, "languageId": "python", "version": 1, "text": content}
        self._report("textDocument/didOpen", {"textDocument": document})
        before = content[: content.index(text) + offset]
        at = {"line": before.count("\n"), "character": len(before) - before.rfind("\n") - 1}
        return {"textDocument": {"uri": uri}, "position": at}

    def _files(self, method: str, asked: dict[str, Any]) -> list[Path]:
        found = self._ask(method, asked) or []
        return [Path(unquote(urlparse(each["uri"]).path)) for each in found]

    def _ask(self, method: str, params: dict[str, Any]) -> Any:
        self._asked += 1
        number = self._asked
        self._send({"id": number, "method": method, "params": params})
        while True:
            message = self._receive()
            if "method" not in message and message.get("id") == number:
                assert "error" not in message, message
                return message["result"]
            if "method" in message and "id" in message:  # the server asks for its configuration
                items = (message.get("params") or {}).get("items", [])
                self._send({"id": message["id"], "result": [{} for _ in items]})

    def _report(self, method: str, params: dict[str, Any]) -> None:
        self._send({"method": method, "params": params})

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        self._process.stdin.flush()

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        length = 0
        while line := self._process.stdout.readline().strip():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        assert length, "the language server has ended"
        message: dict[str, Any] = json.loads(self._process.stdout.read(length))
        return message
