"""An index of Python packages and a registry of Node packages on loopback, which serve what a test puts into them."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.server
import io
import json
import stat
import tarfile
import threading
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote

METADATA = "Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{more}"


def make_wheel(
    name: str,
    files: Mapping[str, str | bytes],
    *,
    version: str = "1.0",
    requires: tuple[str, ...] = (),
    links: Mapping[str, str] | None = None,
) -> bytes:
    """A wheel with these files, whatever their names."""
    buffer = io.BytesIO()
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in files.items():
            archive.writestr(zipfile.ZipInfo(path, (2024, 1, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED)
        for path, target in (links or {}).items():
            link = zipfile.ZipInfo(path, (2024, 1, 1, 0, 0, 0))
            link.create_system = 3
            link.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(link, target)
        archive.writestr(f"{info}/METADATA", metadata(name, version, requires))
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return buffer.getvalue()


def metadata(name: str, version: str = "1.0", requires: tuple[str, ...] = ()) -> str:
    """The metadata of a distribution."""
    return METADATA.format(name=name, version=version, more="".join(f"Requires-Dist: {item}\n" for item in requires))


def make_sdist(name: str, setup: str, version: str = "1.0") -> bytes:
    """A source distribution with this ``setup.py``."""
    files = {"setup.py": setup, "PKG-INFO": metadata(name, version)}
    return make_tarball({f"{name}-{version}/{path}": content for path, content in files.items()})


def make_tarball(files: Mapping[str, str], links: Mapping[str, str] | None = None) -> bytes:
    """A compressed tar archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for path, content in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(content.encode())
            archive.addfile(member, io.BytesIO(content.encode()))
        for path, target in (links or {}).items():
            member = tarfile.TarInfo(path)
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)
    return buffer.getvalue()


@dataclass
class Index:
    """What is served, and how often each path was asked for."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    """By file name, as the index says they are."""
    served: dict[str, bytes] = field(default_factory=dict)
    """Files that come otherwise than the index says."""
    extra: dict[str, str] = field(default_factory=dict)
    """Metadata by file name, for resolvers that would else look into the file."""
    node: dict[str, dict[str, object]] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)
    gate: threading.Event = field(default_factory=threading.Event)
    """While it is clear, archives do not come."""

    @property
    def environment(self) -> dict[str, str]:
        """The settings by which uv and npm use it, and nothing else."""
        return {"UV_DEFAULT_INDEX": f"{self.url}/simple", "NPM_CONFIG_REGISTRY": f"{self.url}/node"}

    def add(self, name: str, files: Mapping[str, str | bytes], **options: object) -> str:
        """Add a package as a wheel; the name of the file."""
        version = str(options.get("version", "1.0"))
        requires = options.get("requires", ())
        assert isinstance(requires, tuple)
        file_name = f"{name}-{version}-py3-none-any.whl"
        self.files[file_name] = make_wheel(name, files, **options)  # type: ignore[arg-type]
        self.extra[file_name] = metadata(name, version, requires)
        return file_name

    def add_node(self, name: str, files: Mapping[str, str], links: Mapping[str, str] | None = None) -> None:
        """Add a Node package; its files are below ``package/``."""
        manifest = json.loads(files.get("package/package.json", "{}")) | {"name": name, "version": "1.0.0"}
        archive = make_tarball({**files, "package/package.json": json.dumps(manifest)}, links)
        file_name = f"{name}-1.0.0.tgz"
        self.files[file_name] = archive
        integrity = "sha512-" + base64.b64encode(hashlib.sha512(archive).digest()).decode()
        dist = {"tarball": f"{self.url}/files/{file_name}", "integrity": integrity}
        self.node[name] = {
            "name": name,
            "dist-tags": {"latest": "1.0.0"},
            "versions": {"1.0.0": {**manifest, "dist": dist}},
        }

    def answer(self, path: str) -> tuple[str, bytes] | None:
        """The content of a path."""
        self.asked[path] += 1
        kind, _, rest = path.strip("/").partition("/")
        if kind == "simple":
            links = [self._link(name) for name in self.files if name.startswith(f"{rest.replace('-', '_')}-")]
            return ("text/html", "\n".join(links).encode()) if links else None
        if kind == "node":
            found = self.node.get(unquote(rest))
            return ("application/json", json.dumps(found).encode()) if found else None
        if rest.endswith(".metadata"):
            return "text/plain", self.extra[rest.removesuffix(".metadata")].encode()
        content = self.served.get(rest, self.files.get(rest))
        if content is None:
            return None
        self.gate.wait(60)
        return "application/octet-stream", content

    def _link(self, name: str) -> str:
        digest = hashlib.sha256(self.files[name]).hexdigest()
        core = 'data-core-metadata="true"' if name in self.extra else ""
        return f'<a href="/files/{name}#sha256={digest}" {core}>{name}</a><br>'


@contextlib.contextmanager
def running_index() -> Iterator[Index]:
    """An index, for as long as it is needed."""
    index = Index()
    index.gate.set()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = index.answer(self.path.partition("?")[0])
            if found is None:
                self.send_error(404)
                return
            kind, content = found
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            with contextlib.suppress(ConnectionError):
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    index.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield index
    finally:
        index.gate.set()
        server.shutdown()
        server.server_close()
        thread.join()
