"""Drives a relay socket with the real client of the interpreter that runs this; prints one JSON object.

Run as ``python client.py SOCKET SCENARIO FILE GENERATION`` with the package's sources on PYTHONPATH: bodies are written
by our own codec and carried by the foreign client.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from microsandbox.agent import AgentClient, AgentStream

from tidebox.wire import bulk, files
from tidebox.wire.envelope import encode_message, open_envelope
from tidebox.wire.fields import Message
from tidebox.wire.frames import BODY_OFFSET, FLAG_BULK, Frame, encode_frame
from tidebox.wire.messages import (
    ExecExited,
    ExecFailed,
    ExecOutputAck,
    ExecRequest,
    ExecStarted,
    ExecStderr,
    ExecStdin,
    ExecStdinAck,
    ExecStdout,
    Ping,
    Touch,
)

SPEAKS = int(sys.argv[4])
PACED = SPEAKS >= 10
# The limits that our agent advertises.
WINDOW = 1 << 20 if PACED else 0
CHUNK = 65_536


def body(message: Message) -> bytes:
    return encode_message(message, 0, SPEAKS)[BODY_OFFSET:]


def message_of(frame: Any) -> Any:
    raw = encode_frame(frame["id"], frame["flags"], frame["body"])
    parsed = Frame(frame["id"], frame["flags"], raw)
    if frame["flags"] & FLAG_BULK:
        return bulk.decode_record(parsed)
    envelope = open_envelope(parsed)
    return envelope.decode(envelope.message_type())


async def ask(client: AgentClient, message: Message) -> Any:
    return message_of(await client.request(message.FLAGS, body(message)))


async def begin(client: AgentClient, message: Message) -> AgentStream:
    return await client.stream(message.FLAGS, body(message))


async def say(client: AgentClient, stream: AgentStream, message: Message) -> None:
    await client.send(stream.id, message.FLAGS, body(message))


async def collect(
    client: AgentClient, stream: AgentStream, stdin_acks: asyncio.Queue[int] | None = None
) -> dict[str, Any]:
    got: dict[str, Any] = {"stdout": b"", "stderr": b"", "started": False}
    consumed = 0
    async for frame in stream:
        message = message_of(frame)
        if isinstance(message, ExecStarted):
            got["started"] = True
        elif isinstance(message, (ExecStdout, ExecStderr)):
            got["stdout" if isinstance(message, ExecStdout) else "stderr"] += bytes(message.data)
            consumed += len(message.data) + 256
            if PACED:
                await say(client, stream, ExecOutputAck(consumed=consumed))
        elif isinstance(message, ExecStdinAck):
            if stdin_acks is not None:
                stdin_acks.put_nowait(message.consumed)
        elif isinstance(message, ExecExited):
            got["code"] = message.code
        elif isinstance(message, ExecFailed):
            got["failed"] = message.kind
    return got


def shell(script: str) -> ExecRequest:
    return ExecRequest(cmd="/bin/sh", args=["-c", script], env=["PATH=/usr/bin:/bin"])


async def ping(client: AgentClient) -> dict[str, Any]:
    pong = await ask(client, Ping())
    touched = await ask(client, Touch())
    return {"pong": pong.WIRE, "touched": touched.WIRE}


async def execute(client: AgentClient) -> dict[str, Any]:
    got = await collect(client, await begin(client, shell("echo out; echo err >&2; exit 7")))
    missing = await collect(client, await begin(client, ExecRequest(cmd="/no/such/bin")))
    return {
        "stdout": got["stdout"].decode(),
        "stderr": got["stderr"].decode(),
        "code": got["code"],
        "failed": missing["failed"],
    }


async def stdin(client: AgentClient) -> dict[str, Any]:
    stream = await begin(client, shell("cat"))
    sent = b"".join(b"line %d\n" % number for number in range(200_000))
    acks = asyncio.Queue[int]()
    reader = asyncio.create_task(collect(client, stream, acks))
    taken = 0
    for start in range(0, len(sent), CHUNK):
        while WINDOW and start + CHUNK - taken > WINDOW:
            taken = await acks.get()
        await say(client, stream, ExecStdin(data=sent[start : start + CHUNK]))
    await say(client, stream, ExecStdin(data=b""))
    got = await reader
    return {"same": got["stdout"] == sent, "code": got["code"], "acknowledged": taken > 0}


async def open_file(client: AgentClient, path: str, options: files.OpenOptions) -> int:
    response = await ask(client, files.FsRequest(op=files.OpenFile(path=path, options=options)))
    handle: int = response.data.handle
    return handle


async def plain_files(client: AgentClient) -> dict[str, Any]:
    """Up and down again as core.fs.data, in the largest chunks."""
    path = sys.argv[3]
    content = bytes(range(256)) * 65_536
    handle = await open_file(client, path, files.OpenOptions(write=True, create=True, truncate=True))
    stream = await begin(client, files.FsRequest(op=files.Write(handle=handle, offset=0, len=len(content))))
    for start in range(0, len(content), files.MAX_DATA_SIZE):
        await say(client, stream, files.FsData(data=content[start : start + files.MAX_DATA_SIZE]))
    await say(client, stream, files.FsData(data=b""))
    written = [message_of(frame) async for frame in stream]
    await ask(client, files.FsRequest(op=files.CloseHandle(handle=handle)))
    handle = await open_file(client, path, files.OpenOptions(read=True))
    digest = hashlib.sha256()
    stream = await begin(client, files.FsRequest(op=files.Read(handle=handle, offset=0)))
    async for frame in stream:
        message = message_of(frame)
        if isinstance(message, files.FsData):
            digest.update(message.data)
    await ask(client, files.FsRequest(op=files.CloseHandle(handle=handle)))
    missing = await ask(client, files.FsRequest(op=files.Stat(path=path + ".missing", follow_symlink=True)))
    return {
        "written": written[-1].ok,
        "same": digest.digest() == hashlib.sha256(content).digest(),
        "missing": [missing.ok, missing.error],
    }


async def bulk_files(client: AgentClient) -> dict[str, Any]:
    """Up and down again as raw records under credit."""
    path = sys.argv[3]
    content = bytes(range(256)) * 131_072
    handle = await open_file(client, path, files.OpenOptions(write=True, create=True, truncate=True))
    offer = bulk.BulkOffer(format=1, max_record_payload=3 << 20, guest_to_host_credit_limit=0)
    write = files.FsRequest(op=files.Write(handle=handle, offset=0, len=None), bulk=offer)
    stream = await begin(client, write)
    accepted = message_of(await stream.next())
    limit, size, sent = accepted.host_to_guest_credit_limit, accepted.max_record_payload, 0
    while sent < len(content):
        piece = content[sent : min(sent + size, limit)]
        if not piece:
            limit = message_of(await stream.next()).credit_limit
            continue
        record = b"".join(bulk.record_pieces(stream.id, bulk.KIND_FS, bulk.FLOW_HOST_TO_GUEST, sent, piece))
        await client.send(stream.id, FLAG_BULK, record[BODY_OFFSET:])
        sent += len(piece)
    await say(client, stream, bulk.BulkFinish(kind=1, flow=1, final_offset=sent))
    written = [message_of(frame) async for frame in stream][-1]
    await ask(client, files.FsRequest(op=files.CloseHandle(handle=handle)))

    handle = await open_file(client, path, files.OpenOptions(read=True))
    window = bulk.DEFAULT_WINDOW
    offer = bulk.BulkOffer(format=1, max_record_payload=3 << 20, guest_to_host_credit_limit=window)
    stream = await begin(client, files.FsRequest(op=files.Read(handle=handle, offset=0), bulk=offer))
    digest, got, final = hashlib.sha256(), 0, None
    async for frame in stream:
        message = message_of(frame)
        if isinstance(message, bulk.BulkRecord):
            digest.update(message.payload)
            got += len(message.payload)
            credit = bulk.BulkCredit(kind=1, flow=2, consumed_offset=got, credit_limit=got + window)
            await say(client, stream, credit)
        elif isinstance(message, bulk.BulkFinish):
            final = message.final_offset
    return {
        "written": written.ok,
        "same": digest.digest() == hashlib.sha256(content).digest(),
        "finished": final == got == len(content),
    }


async def slow_reader(client: AgentClient) -> dict[str, Any]:
    """A program whose output nobody takes does not hold up the program of another client."""
    flood = await begin(client, shell("head -c 50000000 /dev/zero"))
    await asyncio.sleep(0.5)
    started = time.monotonic()
    other = await AgentClient.connect(sys.argv[1], timeout=20)
    neighbour = await collect(other, await begin(other, shell("echo alive")))
    await other.close()
    waited = time.monotonic() - started
    total = consumed = 0
    async for frame in flood:
        message = message_of(frame)
        if isinstance(message, ExecStdout):
            total += len(message.data)
            consumed += len(message.data) + 256
            if PACED:
                await say(client, flood, ExecOutputAck(consumed=consumed))
    return {"neighbour": neighbour["stdout"].decode(), "prompt": waited < 5, "total": total}


async def leave_behind(client: AgentClient) -> dict[str, Any]:
    """Start a program that writes a file unless it dies with its client."""
    stream = await begin(client, shell(f"echo started; sleep 1.5; touch {sys.argv[3]}"))
    async for frame in stream:
        if isinstance(message_of(frame), ExecStdout):
            break
    return {"started": True}


SCENARIOS: dict[str, Callable[[AgentClient], Awaitable[dict[str, Any]]]] = {
    scenario.__name__: scenario
    for scenario in (ping, execute, stdin, plain_files, bulk_files, slow_reader, leave_behind)
}


async def main() -> None:
    client = await AgentClient.connect(sys.argv[1], timeout=20)
    try:
        result = await SCENARIOS[sys.argv[2]](client)
    except Exception as error:
        result = {"error": type(error).__name__, "text": str(error)}
    await client.close()
    sys.stdout.write(json.dumps(result))
    sys.stdout.flush()
    # The client's own threads may still call into an interpreter that is being torn down, which aborts it.
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main())
