"""Which image programs get whose caller names none."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

HOST = "host"
"""The machine's own system directories; in a runtime that does not show them, the image of the program's language."""

LANGUAGE_IMAGES: Mapping[str, str] = MappingProxyType(
    {
        "python": "python:3.11-slim",
        "shell": "python:3.11-slim",
        "bash": "python:3.11-slim",
        "javascript": "node:20-alpine",
    }
)
"""The images of languages where ``host`` is not to be had, unless the settings name others."""


def image_of(image: str, language: str, chosen: Mapping[str, str]) -> str:
    """Resolve an image's name in a runtime without ``host``, for a program in ``language``."""
    if image != HOST:
        return image
    images = {**LANGUAGE_IMAGES, **chosen}
    # What is no language of ours is a command, as those of a shell are.
    return images.get(language, images["shell"])
