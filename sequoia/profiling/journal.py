"""Results on disk as they come, so that a long measurement continues where it was interrupted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FORMAT = "measurement-journal"


class Journal:
    """A JSONL file of (key, value) records behind one line that says what they belong to.

    ``path`` None keeps the records in memory. ``settings`` (JSON) is all that the results depend
    on: a file of other settings is refused, because its results would be mixed up with new ones.
    A last line that was cut off by an interrupt is dropped.

    ValueError, naming the file: not a journal, or one of other settings.
    """

    def __init__(self, path: str | Path | None, settings: Mapping[str, Any]) -> None:
        self.path = None if path is None else Path(path)
        self._records: dict[str, Any] = {}
        settings = json.loads(json.dumps(settings))  # as it will be read back: tuples are lists
        if self.path is not None and self.path.exists():
            self._read(self.path, settings)
        elif self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._append({"format": FORMAT, "settings": settings})

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, key: str) -> bool:
        return key in self._records

    def __getitem__(self, key: str) -> Any:
        return self._records[key]

    def values(self) -> list[Any]:
        """All values, oldest first."""
        return list(self._records.values())

    def add(self, key: str, value: Any) -> Any:
        """Store a JSON value, on disk at once; returns it."""
        self._records[key] = value
        self._append({"key": key, "value": value})
        return value

    def _append(self, record: Mapping[str, Any]) -> None:
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")

    def _read(self, path: Path, settings: Mapping[str, Any]) -> None:
        text = path.read_text(encoding="utf-8")
        if not text.endswith("\n"):  # the last write was interrupted
            text = text[: text.rfind("\n") + 1]
            path.write_text(text, encoding="utf-8")
        try:
            header, *records = [json.loads(line) for line in text.splitlines()]
            if header["format"] != FORMAT:
                raise ValueError
            self._records = {record["key"]: record["value"] for record in records}
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{path}: not a journal of measurements; give another file") from None
        differing = [
            name
            for name in {**header["settings"], **settings}
            if header["settings"].get(name) != settings.get(name)
        ]
        if differing:
            name = differing[0]
            raise ValueError(
                f"{path} was measured with {name} = {header['settings'].get(name)!r}, not "
                f"{settings.get(name)!r}: delete it to start anew, or give another folder"
            )
