"""The protocol surface of one generation as data, and the frozen file that keeps it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tidebox.wire import bulk, frames
from tidebox.wire.generations import BULK_GENERATION
from tidebox.wire.messages import MESSAGE_TYPES

# Generations 1 and 2 were never snapshotted by the protocol's authors.
FIRST_SNAPSHOT = 3


def snapshot(generation: int) -> dict[str, Any]:
    """Everything a peer of that generation may see."""
    surface: dict[str, Any] = {
        "frame": {
            "flag_session_start": frames.FLAG_SESSION_START,
            "flag_shutdown": frames.FLAG_SHUTDOWN,
            "flag_terminal": frames.FLAG_TERMINAL,
            "header_size": frames.HEADER_SIZE,
            "max_frame_size": frames.MAX_FRAME_SIZE,
        },
        "message_types": [
            {"introduced_in": message_type.GENERATION, "wire": message_type.WIRE}
            for message_type in MESSAGE_TYPES
            if generation >= message_type.GENERATION
        ],
        "protocol_version": generation,
    }
    if generation >= BULK_GENERATION:
        surface["frame"]["flag_bulk"] = frames.FLAG_BULK
        surface["bulk"] = {
            "default_filesystem_record_payload": bulk.DEFAULT_FS_RECORD_PAYLOAD,
            "default_record_payload": bulk.DEFAULT_RECORD_PAYLOAD,
            "default_window": bulk.DEFAULT_WINDOW,
            "format_raw_v1": bulk.FORMAT_RAW_V1,
            "header_size": bulk.RECORD_HEADER_SIZE,
            "max_record_payload": bulk.MAX_RECORD_PAYLOAD,
            "max_window": bulk.MAX_WINDOW,
            "min_record_payload": bulk.MIN_RECORD_PAYLOAD,
        }
    return surface


def render(generation: int) -> str:
    """The exact text of a snapshot file."""
    return json.dumps(snapshot(generation), indent=2, sort_keys=True) + "\n"


def snapshot_path(generation: int) -> Path:
    """Where the file of a generation is."""
    return Path(__file__).with_name(f"gen-{generation}.json")
