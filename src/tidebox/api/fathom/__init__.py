"""The Fathom execute protocol on ``/ws``: docs/fathom.md."""

from tidebox.api.fathom.surface import FathomSurface

__all__ = ["FathomSurface"]
