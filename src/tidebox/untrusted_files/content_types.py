"""Content types detected from a file's first bytes: the name of a hostile file says what its maker wants believed."""

from __future__ import annotations

import codecs
import mimetypes

HEAD_BYTES = 1024
UNKNOWN = "application/octet-stream"

_SIGNATURES: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (0, b"GIF87a", "image/gif"),
    (0, b"GIF89a", "image/gif"),
    (8, b"WEBP", "image/webp"),
    (0, b"BM", "image/bmp"),
    (0, b"II*\0", "image/tiff"),
    (0, b"MM\0*", "image/tiff"),
    (0, b"%PDF-", "application/pdf"),
    (0, b"\x1f\x8b", "application/gzip"),
    (0, b"BZh", "application/x-bzip2"),
    (0, b"\xfd7zXZ\0", "application/x-xz"),
    (0, b"\x28\xb5\x2f\xfd", "application/zstd"),
    (257, b"ustar", "application/x-tar"),
    (0, b"7z\xbc\xaf\x27\x1c", "application/x-7z-compressed"),
    (0, b"SQLite format 3\0", "application/vnd.sqlite3"),
    (0, b"PAR1", "application/vnd.apache.parquet"),
    (0, b"\0asm", "application/wasm"),
    (0, b"\x7fELF", "application/x-executable"),
    (4, b"ftyp", "video/mp4"),
    (0, b"\x1aE\xdf\xa3", "video/webm"),
    (0, b"OggS", "audio/ogg"),
    (0, b"ID3", "audio/mpeg"),
    (8, b"WAVE", "audio/wav"),
    (0, b"fLaC", "audio/flac"),
)
# Built into Python, never the machine's own list: the answer is the same everywhere.
_BY_NAME = mimetypes.MimeTypes()
_TEXT_TYPES = frozenset(
    {
        "application/json",
        "application/javascript",
        "application/xml",
        "application/x-sh",
        "application/x-ndjson",
        "application/yaml",
        "application/toml",
        "image/svg+xml",
    }
)
_MORE_NAMES = {
    ".jsonl": "application/x-ndjson",
    ".ndjson": "application/x-ndjson",
    ".md": "text/markdown",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
    ".toml": "application/toml",
    ".ipynb": "application/json",
    ".ts": "text/plain",
}


def content_type(path: str, head: bytes) -> str:
    """The type of a file that begins with ``head``; its name counts only where the bytes do not contradict it."""
    for offset, signature, kind in _SIGNATURES:
        if head.startswith(signature, offset):
            return kind
    guessed = _guess(path)
    if head.startswith(b"PK\x03\x04") or head.startswith(b"PK\x05\x06"):
        # Office documents, wheels and jars are zip archives too.
        is_archive = guessed.startswith("application/") and not is_text(guessed)
        return guessed if is_archive and guessed != UNKNOWN else "application/zip"
    if _is_utf8(head):
        return f"{guessed if is_text(guessed) else 'text/plain'}; charset=utf-8"
    return UNKNOWN


def is_text(kind: str) -> bool:
    """Whether files of a type are text, which is worth compressing."""
    plain = kind.partition(";")[0]
    return plain.startswith("text/") or plain in _TEXT_TYPES


def _guess(path: str) -> str:
    name = path.rpartition("/")[2].lower()
    _, dot, extension = name.rpartition(".")
    known = _MORE_NAMES.get(dot + extension) if dot else None
    return known or _BY_NAME.guess_type(f"x{dot}{extension}")[0] or UNKNOWN


def _is_utf8(head: bytes) -> bool:
    if b"\0" in head:
        return False
    try:
        # The head may end in the middle of a character.
        codecs.getincrementaldecoder("utf-8")().decode(head, final=len(head) < HEAD_BYTES)
    except UnicodeDecodeError:
        return False
    return True
