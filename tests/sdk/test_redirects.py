"""A server cannot send a client, its key and its programs, to another host."""

from __future__ import annotations

import pytest
from websockets.datastructures import Headers
from websockets.http11 import Response

from tests.sdk.conftest import MakeClient
from tests.sdk.peer import Talk, serving
from tidebox.errors import TideboxError


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed(make_client: MakeClient, status: int) -> None:
    def serve(talk: Talk) -> None:
        talk.wait_closed()

    with serving(serve) as elsewhere:
        location = elsewhere.url.replace("http", "ws") + "/ws"
        with serving(Response(status, "Moved", Headers({"Location": location}), b"")) as peer:
            client = make_client(peer.url)
            with pytest.raises(TideboxError):
                client.run("print(1)")
        assert elsewhere.opened == []
