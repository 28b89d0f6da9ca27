"""Sandboxes of this server's own runtime."""

from __future__ import annotations

from tidebox.broker.sandboxes.providers.base import NO_EXTRAS, Provider, SandboxExtras
from tidebox.broker.sandboxes.sandbox import LiveSandbox, LocalSandbox
from tidebox.broker.sandboxes.warm_boxes import WarmBox, WarmBoxes
from tidebox.errors import RuntimeUnavailable
from tidebox.model.remote_servers import LOCAL


class LocalProvider(Provider):
    """Long-lived boxes, some of them made beforehand."""

    name = LOCAL
    durable = False

    def __init__(self, warm_boxes: WarmBoxes, *, most_opening: int, enabled: bool = True) -> None:
        """``most_opening`` is how many the machine makes at once."""
        self._warm_boxes = warm_boxes
        self._most_opening = most_opening
        self._enabled = enabled

    @property
    def up(self) -> bool:
        """Whether this server runs programs."""
        return self._enabled

    @property
    def busy(self) -> bool:
        """Whether none is ready, and more are being made than the machine makes at once."""
        return not self._warm_boxes.ready and self._warm_boxes.opening >= self._most_opening

    async def start(self) -> None:
        """Begin to make some beforehand."""
        if self._enabled:
            self._warm_boxes.start()

    def take(self) -> LiveSandbox | None:
        """Take a warm box, if there is one."""
        fresh = self._warm_boxes.take() if self._enabled else None
        return _sandbox(fresh) if fresh is not None else None

    async def create(
        self, binding_id: str, like: LiveSandbox | None = None, extras: SandboxExtras = NO_EXTRAS
    ) -> LiveSandbox:
        """Return a warm box, or open a new one."""
        if not self._enabled:
            raise RuntimeUnavailable("execution is turned off on this server")
        if isinstance(like, LocalSandbox) and not like.gone:
            return like.sibling()
        if extras:
            return _sandbox(await self._warm_boxes.open(extras))
        return self.take() or _sandbox(await self._warm_boxes.open())

    async def resume(self, binding_id: str) -> LiveSandbox | None:
        """Boxes die with their server."""
        return None

    async def release(self, binding_id: str) -> None:
        """Do nothing: a local sandbox is closed by its binding."""

    async def close(self) -> None:
        """Throw away what nobody took."""
        await self._warm_boxes.close()


def _sandbox(fresh: WarmBox) -> LocalSandbox:
    return LocalSandbox(fresh.sandbox_id, "", fresh.box)
