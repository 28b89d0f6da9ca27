"""The workspace of a box that only its agent can reach: copied in and out as a stream of records.

What comes out was made by hostile programs, and maybe by a hostile agent: nothing is believed but the limits.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path

from tidebox.agent import tree_records
from tidebox.errors import BoxGone, PayloadTooLarge, ProvisionFailed
from tidebox.model.box import Captured, CapturedTree, CaptureRule
from tidebox.model.events import Exited, OutputEvent
from tidebox.runtime import capture
from tidebox.runtime.link import Link, LinkExec
from tidebox.untrusted_files.globs import MatchBudget
from tidebox.untrusted_files.trees import Tally, TreeLimits, opened
from tidebox.wire.messages import ExecRequest

_SEND, _RECEIVE, _RENEW = "tidebox:send", "tidebox:receive", "tidebox:renew"
_RENEW_SECONDS = 5.0
_CHUNK = 1 << 20
_MOST_LISTED = 200_000
# Longer than any list that holds so many names; what is more is no listing.
_MOST_LISTING = 256 << 20


class Workspace:
    """Files of one box, through its link."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def put(self, files: Mapping[str, bytes], most_bytes: int) -> None:
        """Write files, by their paths."""
        if sum(map(len, files.values())) > most_bytes:
            raise _does_not_fit(most_bytes)
        await self._receive(_file_records(files), most_bytes)

    async def place(self, source: Path, limits: TreeLimits) -> Tally:
        """Copy a directory of ours into it."""
        tally = Tally()
        await self._receive(_tree_records(source, limits, tally), limits.max_bytes)
        return tally

    async def _receive(self, records: Iterator[bytes], most_bytes: int) -> None:
        program = self._link.open_exec(ExecRequest(cmd=_RECEIVE, args=[]))
        try:
            while chunk := await asyncio.to_thread(_next_chunk, records):
                if program.ended:
                    break
                await program.write(chunk)
            await program.end_input()
            code = await _exit_code(program)
        except BaseException:
            await _give_up(program)
            raise
        if code in (errno.ENOSPC, errno.EDQUOT):
            raise _does_not_fit(most_bytes)
        if code:
            raise ProvisionFailed(f"the files could not be written: {os.strerror(code)}", step="files")

    async def leave_alone(self) -> None:
        """Remove everything else that programs of the box have left."""
        program = self._link.open_exec(ExecRequest(cmd=_RENEW, args=[]))
        try:
            async with asyncio.timeout(_RENEW_SECONDS):
                await program.end_input()
                code = await _exit_code(program)
        except TimeoutError:
            raise BoxGone("the agent of the box does not tidy up") from None
        finally:
            await _give_up(program)
        if code:
            raise ProvisionFailed(f"the box could not be tidied up: {os.strerror(code)}", step="renew")

    async def capture(self, rule: CaptureRule) -> Captured:
        """The content of the files that ``rule`` names."""
        with tempfile.TemporaryDirectory(prefix="tidebox-") as directory:
            skipped = await self._fetch(Path(directory), rule)
            found = await asyncio.to_thread(_captured, Path(directory), rule)
        return Captured(found.files, found.skipped + sum(skipped.values()))

    async def capture_into(self, target: Path, rule: CaptureRule) -> CapturedTree:
        """Copy the files that ``rule`` names below ``target``."""
        with tempfile.TemporaryDirectory(prefix=".tidebox-", dir=target.parent) as directory:
            skipped = await self._fetch(Path(directory), rule)
            found = await asyncio.to_thread(_captured_into, Path(directory), target, rule)
        return CapturedTree(files=found.files, skipped=dict(skipped + Counter(found.skipped)))

    async def _fetch(self, target: Path, rule: CaptureRule) -> Counter[str]:
        """Have below ``target`` what the rule names, links included; what was left out by its reason."""
        records = await self._list(_MOST_LISTED, capture.MAX_DEPTH)
        chosen, skipped = await asyncio.to_thread(_choose, records, rule)
        limits = TreeLimits(max_bytes=rule.max_total_bytes, max_entries=_MOST_LISTED)
        await self._copy_out(target, chosen, limits, Tally())
        return skipped

    async def collect(self, target: Path, limits: TreeLimits) -> Tally:
        """Copy everything below ``target``."""
        tally = Tally()
        records = await self._list(limits.max_entries + 1, limits.max_depth)
        if len(records) > limits.max_entries:
            raise PayloadTooLarge(
                f"there are more than {limits.max_entries} files and directories", limit=limits.max_entries
            )
        kept = []
        for record in records:
            too_deep = record.kind == tree_records.DIRECTORY and record.path.count(b"/") >= limits.max_depth
            if record.kind == tree_records.OTHER or too_deep:
                tally.left_out += 1
            else:
                kept.append(record)
        tally.entries = len(records)
        tally.files = sum(record.kind in (tree_records.FILE, tree_records.LINK) for record in kept)
        await self._copy_out(target, kept, limits, tally)
        return tally

    async def _list(self, most_entries: int, most_depth: int) -> list[tree_records.TreeRecord]:
        data = bytearray()
        async for piece in self._output(["list", str(most_entries), str(most_depth)], b""):
            data += piece
            if len(data) > _MOST_LISTING:
                raise PayloadTooLarge("the list of files is too long", limit=_MOST_LISTING)
        try:
            return await asyncio.to_thread(tree_records.parse_list, bytes(data), most_entries)
        except ValueError as error:
            raise BoxGone(f"the agent of the box does not tell its files: {error}") from None

    async def _copy_out(
        self, target: Path, records: Sequence[tree_records.TreeRecord], limits: TreeLimits, tally: Tally
    ) -> None:
        asked = {record.path for record in records if record.kind == tree_records.FILE}

        def allow(record: tree_records.TreeRecord, length: int) -> None:
            # Nothing that was not asked for, and each file once.
            if not length and record.kind == tree_records.FILE:
                asked.remove(record.path)
            tally.bytes += length
            if tally.bytes > limits.max_bytes:
                raise PayloadTooLarge(
                    f"the files are larger than {limits.max_bytes} bytes together", limit=limits.max_bytes
                )

        names = b"".join(tree_records.NAME.pack(len(path)) + path for path in sorted(asked))
        with opened(target) as root:
            receiver = tree_records.Receiver(root, allow)
            try:
                # Directories and links are small, and known from the list already.
                known = b"".join(record.encode() for record in records if record.kind != tree_records.FILE)
                await asyncio.to_thread(receiver.feed, known)
                waiting = bytearray()
                async for piece in self._output(["files"], names):
                    waiting += piece
                    if len(waiting) >= _CHUNK:
                        await asyncio.to_thread(receiver.feed, bytes(waiting))
                        waiting.clear()
                await asyncio.to_thread(receiver.feed, bytes(waiting))
                if not receiver.ended:
                    raise BoxGone("the agent of the box did not send all files")
            except (ValueError, KeyError) as error:
                raise BoxGone(f"the agent of the box does not send its files: {error}") from None
            finally:
                receiver.close()

    async def _output(self, arguments: list[str], stdin: bytes) -> AsyncIterator[bytes]:
        program = self._link.open_exec(ExecRequest(cmd=_SEND, args=arguments))
        feeding = asyncio.get_running_loop().create_task(_feed(program, stdin))
        try:
            async for event in program.events():
                if isinstance(event, OutputEvent) and event.stream == "stdout":
                    yield event.data
                elif isinstance(event, Exited) and event.code != 0:
                    raise BoxGone("the agent of the box could not read its files")
        finally:
            feeding.cancel()
            await _give_up(program)


async def _feed(program: LinkExec, data: bytes) -> None:
    await program.write(data)
    await program.end_input()


async def _exit_code(program: LinkExec) -> int:
    async for event in program.events():
        if isinstance(event, Exited):
            return event.code if event.code is not None else errno.EIO
    return errno.EIO


async def _give_up(program: LinkExec) -> None:
    if not program.ended:
        await program.signal(signal.SIGKILL)
    program.abandon()


def _next_chunk(records: Iterator[bytes]) -> bytes:
    chunk = bytearray()
    for data in records:
        chunk += data
        if len(chunk) >= _CHUNK:
            break
    return bytes(chunk)


def _file_records(files: Mapping[str, bytes]) -> Iterator[bytes]:
    now = time.time_ns()
    for path, content in files.items():
        yield tree_records.TreeRecord(tree_records.FILE, 0o644, now, len(content), os.fsencode(path)).encode()
        for start in range(0, len(content), tree_records.MOST_PIECE):
            piece = content[start : start + tree_records.MOST_PIECE]
            yield tree_records.PIECE.pack(start, len(piece)) + piece
        yield tree_records.PIECE.pack(0, 0)
    yield tree_records.THE_END.encode()


def _tree_records(source: Path, limits: TreeLimits, tally: Tally) -> Iterator[bytes]:
    with opened(source) as root:
        for record in tree_records.walk(root, limits.max_entries + 1, limits.max_depth):
            tally.entries += 1
            if tally.entries > limits.max_entries:
                raise PayloadTooLarge(
                    f"there are more than {limits.max_entries} files and directories", limit=limits.max_entries
                )
            if record.kind == tree_records.OTHER:
                tally.left_out += 1
            elif record.kind == tree_records.FILE:
                tally.files += 1
                for data in tree_records.file_stream(root, record.path):
                    tally.bytes += len(data)
                    if tally.bytes > limits.max_bytes + limits.max_entries * tree_records.MOST_PATH:
                        raise _does_not_fit(limits.max_bytes)
                    yield data
            else:
                tally.files += record.kind == tree_records.LINK
                yield record.encode()
    yield tree_records.THE_END.encode()


def _choose(
    records: Sequence[tree_records.TreeRecord], rule: CaptureRule
) -> tuple[list[tree_records.TreeRecord], Counter[str]]:
    patience = MatchBudget(capture.SECONDS)
    wanted = capture.selector(rule, patience)
    chosen: list[tree_records.TreeRecord] = []
    skipped: Counter[str] = Counter()
    total = 0
    for record in records:
        if record.kind == tree_records.DIRECTORY or not wanted(os.fsdecode(record.path)):
            if patience.lost:
                skipped["patterns"] += 1
                break
            continue
        if record.kind == tree_records.OTHER:
            skipped["kind"] += 1
        elif record.kind == tree_records.FILE and record.size > rule.max_file_bytes:
            skipped["file_size"] += 1
        elif record.kind == tree_records.FILE and total + record.size > rule.max_total_bytes:
            skipped["total_size"] += 1
        else:
            total += record.size if record.kind == tree_records.FILE else 0
            chosen.append(record)
    return chosen, skipped


def _captured(directory: Path, rule: CaptureRule) -> Captured:
    with opened(directory) as root:
        return capture.capture(root, rule)


def _captured_into(directory: Path, target: Path, rule: CaptureRule) -> CapturedTree:
    with opened(directory) as root:
        return capture.capture_into(root, target, rule)


def _does_not_fit(most_bytes: int) -> PayloadTooLarge:
    return PayloadTooLarge("the files do not fit into the workspace", limit=most_bytes)
