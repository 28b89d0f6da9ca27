"""Forms with files, parsed as they arrive: each file goes to the disk, and nothing of it stays in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from tidebox.broker.storage.uploads import IncomingUpload, UploadPart
from tidebox.errors import InvalidRequest, PayloadTooLarge
from tidebox.untrusted_files.file_names import shown
from tidebox.untrusted_files.staging import archive_kind

MAX_FIELD_BYTES = 64 * 1024
"""Of all fields that are no files together."""
_IGNORE = "ignore"


class FormUpload:
    """Feeds the files of a form to an upload."""

    def __init__(self, content_type: str, upload: IncomingUpload, *, expand: bool) -> None:
        _, options = parse_options_header(content_type)
        boundary = options.get(b"boundary")
        if not boundary:
            raise InvalidRequest("a form without a boundary", field="content-type")
        self._upload = upload
        self._expand = expand
        self._happened: list[tuple[str, bytes]] = []
        self._headers: dict[bytes, bytes] = {}
        self._header = b""
        self._value = b""
        self._part: UploadPart | None = None
        self._field: str | None = None
        self._field_bytes = bytearray()
        self._whole = False
        try:
            self._parser = MultipartParser(boundary, self._callbacks())
        except FormParserError as error:
            raise InvalidRequest(f"not a form: {error}", field="content-type") from None

    def _callbacks(self) -> Any:
        def noting(name: str) -> Callable[[], None]:
            return lambda: self._happened.append((name, b""))

        def taking(name: str) -> Callable[[bytes, int, int], None]:
            return lambda data, start, end: self._happened.append((name, data[start:end]))

        return {
            "on_part_begin": noting("begin"),
            "on_header_field": taking("header"),
            "on_header_value": taking("value"),
            "on_header_end": noting("header_end"),
            "on_headers_finished": noting("headers"),
            "on_part_data": taking("data"),
            "on_part_end": noting("end"),
            "on_end": noting("whole"),
        }

    async def feed(self, data: bytes) -> None:
        """Take what came next of the body."""
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise InvalidRequest(f"the form is damaged: {error}") from None
        happened, self._happened = self._happened, []
        for name, piece in happened:
            if name == "data":
                await self._data(piece)
            elif name == "end":
                await self._end()
            else:
                self._step(name, piece)

    async def finish(self) -> None:
        """The body is over."""
        if not self._whole:
            raise InvalidRequest("the form is cut off")
        if not self._upload.part_count:
            raise InvalidRequest("the form has no files: a file is a part with a file name", field="files")

    def _step(self, name: str, piece: bytes) -> None:
        if name == "begin":
            self._headers = {}
        elif name == "header":
            self._header += piece
        elif name == "value":
            self._value += piece
        elif name == "header_end":
            self._headers[self._header.lower()] = self._value
            self._header = self._value = b""
        elif name == "headers":
            self._open()
        elif name == "whole":
            self._whole = True

    def _open(self) -> None:
        kind, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        if kind != b"form-data" or b"name" not in options:
            raise InvalidRequest("a part of the form that does not say its name")
        field = options[b"name"].decode("utf-8", "replace")
        filename = options.get(b"filename")
        if filename is not None:
            try:
                name = filename.decode()
            except UnicodeDecodeError:
                raise InvalidRequest("a file name that is not UTF-8", member=shown(filename)) from None
            self._part = self._upload.part(name, archive_kind(name) if self._expand else None)
        elif field == _IGNORE:
            self._field = field
        else:
            raise InvalidRequest(f"the part {shown(field)!r} is no file: it has no file name", field=shown(field))

    async def _data(self, piece: bytes) -> None:
        if self._part is not None:
            await self._part.write(piece)
            return
        self._field_bytes += piece
        if len(self._field_bytes) > MAX_FIELD_BYTES:
            raise PayloadTooLarge(f"fields of more than {MAX_FIELD_BYTES} bytes", limit=MAX_FIELD_BYTES)

    async def _end(self) -> None:
        if self._part is not None:
            await self._part.close()
            self._part = None
        elif self._field is not None:
            self._upload.ignore += self._field_bytes.decode("utf-8", "replace").splitlines()
            self._field_bytes.clear()
            self._field = None
